"""Comparison of methods as in the reject-option paper: selective risk at one bound per OOD set, from stored scores."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from openbench.core.record import ResultRecord
from openbench.core.request import Role
from openbench.errors import RecordError, did_you_mean
from openbench.metrics.curve import Floats
from openbench.metrics.selective import double_score
from openbench.metrics.selective.risk import OperatingPoint, SelectiveCurve, TprFpr, Unable, least_risk, oscr_selective
from openbench.results.comparisons.runs import OnLost, RowKey, refuse, scored_rows
from openbench.results.records.settings import is_per_set, strategy_of
from openbench.results.scores.stored import ScoreStore, per_set_name
from openbench.results.tables.published import REJECTION_SOURCE, PaperFigures
from openbench.results.tables.render import Cell, Column, Table


@dataclass(frozen=True, eq=False)
class SelectiveScores:
    """One method's scores on one OOD set.

    Args:
        id_test: (n,) scores of ID test.
        losses: (n,) 1 − correct.
        id_val: (v,) scores of ID validation.
        ood: (m,) scores of the set.
    """

    id_test: Floats
    losses: Floats
    id_val: Floats
    ood: Floats


@dataclass(frozen=True, eq=False)
class Contender:
    """One run.

    Args:
        who: the row it makes.
        record: its record.
        sets: its scores by OOD set, near ones first.
    """

    who: RowKey
    record: ResultRecord
    sets: Mapping[str, SelectiveScores]

    @property
    def in_sample(self) -> bool:
        """Whether its hyper-parameters were chosen on test data."""
        return strategy_of(self.record).startswith("oracle")


def contenders(
    records: Iterable[ResultRecord],
    scores: ScoreStore,
    benchmark: str,
    methods: Sequence[str] = (),
    on_lost: OnLost = refuse,
) -> dict[str, list[Contender]]:
    """Return the runs on a benchmark by the benchmark's digest, in the order of `methods` or of their names.

    Args:
        records: any.
        scores: where their scores are.
        benchmark: its name.
        methods: which to compare; empty for all.
        on_lost: receives an error for each run whose scores cannot be read; the others are compared.

    Raises:
        RecordError: no run on the benchmark or of a method, no classifier, or two runs that one row cannot hold.
        CacheError: none of the runs has its scores any more.
    """
    records = list(records)
    present = {str(r.benchmark.get("name")) for r in records}
    of_benchmark = [r for r in records if r.benchmark.get("name") == benchmark]
    present_methods = {str(r.method.get("name")) for r in of_benchmark}
    _check_present("benchmark", [benchmark], present, f"+benchmark={benchmark} method=msp")
    _check_present("method", methods, present_methods, f"+benchmark={benchmark} method=NAME")
    order = list(methods) or sorted(present_methods)
    some = [record for record in of_benchmark if record.method.get("name") in order]
    by_digest: dict[str, list[Contender]] = {}
    for _, record, contender in scored_rows(some, lambda row, record: _contender(row, record, scores), on_lost):
        by_digest.setdefault(str(record.benchmark.get("digest")), []).append(contender)
    for rows in by_digest.values():
        rows.sort(key=lambda row: order.index(row.who.method))
    return by_digest


def _check_present(kind: str, names: Iterable[str], present: Iterable[str], run: str) -> None:
    """Refuse a benchmark or method without a record."""
    known = sorted(present)
    for name in names:
        if name not in known:
            raise RecordError(
                f"no record of {kind} '{name}'{did_you_mean(name, known)}, found {', '.join(known) or 'none'} — run it "
                f"first: python -m openbench run {run.replace('NAME', name)}"
            )


def _contender(who: RowKey, record: ResultRecord, scores: ScoreStore) -> Contender:
    if "accuracy" not in record.metrics.get("id", {}):
        raise RecordError(
            f"benchmark '{record.benchmark.get('name')}' has one class, so no prediction can be wrong: there is no risk"
        )
    shared = [] if is_per_set(record) else scores.read(record.run_id)
    keys = [key.partition("/") for key in record.counts]
    sets = {}
    for role, (of, _, name) in product((Role.NEAR, Role.FAR), keys):
        if of != role:
            continue
        splits = shared or scores.read(per_set_name(record.run_id, name))
        (ood,) = (s for s in splits if (s.role, s.name) == (role, name))
        test, val = (next(s for s in splits if s.role == of) for of in (Role.ID_TEST, Role.ID_VAL))
        wrong = np.asarray(test.predictions != test.labels, np.float64)
        ids, vals, oods = (np.asarray(s.scores, np.float64) for s in (test, val, ood))
        sets[name] = SelectiveScores(ids, wrong, vals, oods)
    return Contender(who, record, sets)


def _pairs(rows: Sequence[Contender], double: tuple[str, str]) -> list[tuple[Contender, Contender]]:
    """The runs of two methods on the same network."""
    sides = [[row for row in rows if row.who.method == name and not row.in_sample] for name in double]
    pairs = [(a, b) for a, b in product(*sides) if a.record.backbone.get("digest") == b.record.backbone.get("digest")]
    if not pairs:
        lacking = [name for name, side in zip(double, sides, strict=True) if not side]
        what = f"no run of {' and '.join(lacking)}" if lacking else "no runs of the two on the same network"
        present = ", ".join(dict.fromkeys(row.who.method for row in rows if not row.in_sample))
        raise RecordError(f"double score {'+'.join(double)}: {what} (compared: {present}) — run both methods first")
    return pairs


_MARK = "†"
_PAPER = ("risk", "auroc", "oscr")
_COLUMNS = Column.of(
    *("method", "run", ("FPR ↓", "percent"), ("risk ↓", "percent", 3), ("paper", "percent", 3)),
    *((title, "percent") for title in ("AUROC ↑", "paper", "OSCR ↑", "paper", "DS-F1 ↑", "DS-AURC ↓")),
)
_HEADER = (
    "ID positive: TPR, share of ID accepted; FPR, share of OOD accepted · risk: least share of errors among the "
    "accepted ID at these bounds · OSCR: area over FPR under the accuracy among the accepted ID · DS-F1: best F1 of "
    "accepting what is ID and right; DS-AURC: area over TPR under the share of OOD and errors among the accepted; "
    "`a+b` has a threshold for each score"
)
_IN_SAMPLE = (
    f"{_MARK} chosen on test data: a bound, not a result, and not counted for ρ_max. Each number of `a+b` has the "
    "weight of b that is best for it, or the best thresholds."
)


def rejection_tables(
    title: str, rows: Sequence[Contender], tpr: float, doubles: Sequence[tuple[str, str]], figures: PaperFigures
) -> list[Table]:
    """Return a table for each OOD set: a row for each run, then one for each double score.

    ρ_max is the largest share of OOD that a method accepts where it accepts `tpr` of ID; methods that were
    chosen on test data do not count, unless there are no others.

    Args:
        title: the benchmark's.
        rows: at least one run on it.
        tpr: φ_min; .8 in the paper.
        doubles: (risk, ood) names of two methods whose double score is compared at the best weight of every operating
            point: in-sample, a bound.
        figures: the paper's, from `rejection_figures`.

    Raises:
        RecordError: a double score of a method without a run.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199, table 2.
    """
    pairs = [pair for double in doubles for pair in _pairs(rows, double)]
    benchmark = str(rows[0].record.benchmark.get("name"))
    printed = {key: paper for key, paper in figures.items() if key[0] == benchmark and paper.get("min_tpr") == tpr}
    tables = [_table(title, rows, tpr, pairs, ood=name, figures=printed) for name in rows[0].sets]
    deviations = rows[0].record.benchmark.get("deviations") or ()
    if deviations:
        note = f"Not the benchmark as defined: {'; '.join(map(str, deviations))}."
        tables[-1] = replace(tables[-1], notes=(*tables[-1].notes, note))
    return tables


def _table(
    title: str,
    rows: Sequence[Contender],
    tpr: float,
    pairs: Sequence[tuple[Contender, Contender]],
    *,
    ood: str,
    figures: PaperFigures,
) -> Table:
    """The table of one OOD set, with the paper's figures at the same TPR."""
    curves = [SelectiveCurve.of(s.id_test, s.losses, s.ood) for s in (row.sets[ood] for row in rows)]
    shares = [curve.pair.fpr_at_tpr_id_positive(tpr) for curve in curves]
    counted = [i for i, row in enumerate(rows) if not row.in_sample] or range(len(rows))
    first = max(counted, key=lambda i: shares[i])
    bound = TprFpr(tpr, shares[first])
    found = [
        (row.who, row.in_sample, _numbers(row.sets[ood], curve, share, bound))
        for row, curve, share in zip(rows, curves, shares, strict=True)
    ]
    for risk, other in pairs:
        who = risk.who._replace(method=f"{risk.who.method}+{other.who.method}", params="best weight of every point")
        found.append((who, True, _double(risk.sets[ood], other.sets[ood], bound)))
    # KNN+MSP is knn_msp in the paper's figures, and msp+knn at its best weights.
    papers = {method: paper for (_, of, method), paper in figures.items() if of == ood}
    printed = [papers.get("_".join(reversed(who.method.split("+"))), {}) for who, *_ in found]
    parts = [who.about.split(" · ") for who, *_ in found]
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    abouts = [" · ".join(part for part in about if part not in shared) for about in parts]
    lines: list[tuple[Cell, ...]] = []
    for (who, in_sample, (fpr, *compared, f1, aurc)), about, paper in zip(found, abouts, printed, strict=True):
        beside = [cell for pair in zip(compared, map(paper.get, _PAPER), strict=True) for cell in pair]
        lines.append((f"{who.method}{f' {_MARK}' * in_sample}", about, fpr, *beside, f1, aurc))
    notes = [_IN_SAMPLE] * any(in_sample for _, in_sample, _ in found)
    if any(printed):
        rates = ", ".join(f"{100 * limit:g} %" for limit in sorted({p["max_fpr"] for p in printed if "max_fpr" in p}))
        notes += [f"paper: {REJECTION_SOURCE}, with other networks; there ρ_max = {rates}."]
    decided = f"TPR ≥ {tpr:g} · FPR ≤ ρ_max = {100 * shares[first]:.2f} % (by {rows[first].who.method})"
    heading = " · ".join(part for part in (title, f"against {ood}", decided, *shared) if part)
    table = Table(heading, _COLUMNS, tuple(lines), _HEADER, tuple(notes))
    without = {"run": not any(abouts), "paper": not any(printed)}
    return table.with_columns([at for at, column in enumerate(_COLUMNS) if not without.get(column.title)])


def _numbers(s: SelectiveScores, curve: SelectiveCurve, share: float, bound: TprFpr) -> Sequence[float | Unable]:
    """FPR, risk, AUROC and OSCR; best F1 with a threshold, and the area under the least risk over coverage."""
    point = least_risk(curve, bound)
    alike = double_score.ScorePair(s.id_test, s.id_test), double_score.ScorePair(s.ood, s.ood)
    areas = curve.pair.auroc(), oscr_selective(curve)
    return share, _risk(point), *areas, *double_score.two_thresholds(alike, s.losses)


def _double(r: SelectiveScores, g: SelectiveScores, bound: TprFpr) -> Sequence[float | Unable]:
    """The same of a double score at the best weight of every operating point, in units of ID validation."""
    sets = double_score.ScorePair(r.id_test, g.id_test), double_score.ScorePair(r.ood, g.ood)
    standard = double_score.Standard.of(double_score.ScorePair(r.id_val, g.id_val))
    best = double_score.best_weighing(double_score.weighings(sets, r.losses, standard, bound, double_score.DEFAULT_MUS))
    around = double_score.envelope(sets, r.losses, standard)
    areas = around.auroc, around.oscr_selective
    point = best if isinstance(best, str) else best.point
    return around.fpr_at_tpr(bound.tpr), _risk(point), *areas, *double_score.two_thresholds(sets, r.losses)


def _risk(point: OperatingPoint | Unable) -> float | Unable:
    return point if isinstance(point, str) else point.value
