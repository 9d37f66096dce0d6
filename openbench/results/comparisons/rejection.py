"""Comparison of methods as in the reject-option paper: selective risk at one bound per OOD set, from stored scores."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openbench.core.record import ResultRecord
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import CacheError, RecordError, did_you_mean
from openbench.metrics.curve import Floats
from openbench.metrics.selective import double_score
from openbench.metrics.selective.risk import SelectiveCurve, TprFpr, Unable, least_risk, oscr_selective
from openbench.results.comparisons.runs import OnLost, RowKey, by_row, refuse
from openbench.results.records.settings import is_per_set, strategy_of
from openbench.results.scores.stored import ScoreStore, per_set_name
from openbench.results.tables.published import REJECTION_SOURCE, RejectionFigure
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
        in_sample: whether its hyper-parameters were chosen on test data.
        weights: digest of the network.
        sets: its scores by OOD set, near ones first.
        deviations: how the benchmark differs from its definition.
    """

    who: RowKey
    in_sample: bool
    weights: str
    sets: Mapping[str, SelectiveScores]
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True)
class RejectionRow:
    """The results of one method against one OOD set; ID positive, fractions.

    Args:
        who: its row.
        in_sample: whether it was chosen on test data; then it does not count for ρ_max.
        fpr: share of OOD accepted at the TPR of the comparison.
        risk: selective risk at that TPR and ρ_max, or `unable`.
        auroc: AUROC.
        oscr: selective OSCR.
        ds_f1: best F1 with a threshold for each score; of a single score, with one.
        ds_aurc: area under the least risk over coverage, likewise.
    """

    who: RowKey
    in_sample: bool
    fpr: float
    risk: float | Unable
    auroc: float
    oscr: float
    ds_f1: float
    ds_aurc: float


@dataclass(frozen=True)
class RejectionComparison:
    """Methods against one OOD set.

    Args:
        ood: the set's name.
        tpr: φ_min.
        max_fpr: ρ_max, the largest FPR at that TPR among the methods compared.
        decided_by: the method that has it.
        rows: one per run, then one per double score.
    """

    ood: str
    tpr: float
    max_fpr: float
    decided_by: str
    rows: tuple[RejectionRow, ...]


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
    by_digest: dict[str, list[Contender]] = {}
    lost: list[CacheError] = []
    for row, benchmarks in by_row(r for r in of_benchmark if r.method.get("name") in order).items():
        for digest, record in benchmarks[benchmark].items():
            try:
                contender = _contender(row, record, scores)
                by_digest.setdefault(digest, []).append(contender)
            except CacheError as error:
                lost.append(error)
    for rows in by_digest.values():
        rows.sort(key=lambda row: order.index(row.who.method))
    for reason in lost:
        (on_lost if by_digest else refuse)(reason)
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


def compare(
    rows: Sequence[Contender], tpr: float, doubles: Sequence[tuple[str, str]] = ()
) -> list[RejectionComparison]:
    """Return the comparison for each OOD set.

    ρ_max is the largest share of OOD that a method accepts where it accepts `tpr` of ID; methods that were
    chosen on test data do not count, unless there are no others.

    Args:
        rows: at least one run.
        tpr: φ_min; .8 in the paper.
        doubles: (risk, ood) names of two methods whose double score is compared at the best weight of every operating
            point: in-sample, a bound.

    Raises:
        RecordError: a double score of a method without a run.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199, table 2.
    """
    pairs = [pair for double in doubles for pair in _pairs(rows, double)]
    return [_compare(rows, pairs, name, tpr) for name in rows[0].sets]


def _compare(
    rows: Sequence[Contender], pairs: Sequence[tuple[Contender, Contender]], name: str, tpr: float
) -> RejectionComparison:
    curves = [SelectiveCurve.of(s.id_test, s.losses, s.ood) for s in (row.sets[name] for row in rows)]
    shares = [curve.pair.fpr_at_tpr_id_positive(tpr) for curve in curves]
    deciding = [i for i, row in enumerate(rows) if not row.in_sample] or list(range(len(rows)))
    first = max(deciding, key=lambda i: shares[i])
    bound = TprFpr(tpr, shares[first])
    results = []
    for row, curve, share in zip(rows, curves, shares, strict=True):
        s, point = row.sets[name], least_risk(curve, bound)
        areas = (curve.pair.auroc(), oscr_selective(curve))
        joint = double_score.two_thresholds(
            (double_score.ScorePair(s.id_test, s.id_test), double_score.ScorePair(s.ood, s.ood)), s.losses
        )
        results.append(
            RejectionRow(
                row.who, row.in_sample, share, point if isinstance(point, str) else point.value, *areas, *joint
            )
        )
    results += [_double(*pair, name, bound) for pair in pairs]
    return RejectionComparison(name, tpr, shares[first], rows[first].who.method, tuple(results))


def _double(risk: Contender, ood: Contender, name: str, bound: TprFpr) -> RejectionRow:
    """The double score of two runs at the best weight of every operating point, in units of ID validation."""
    who = risk.who._replace(method=f"{risk.who.method}+{ood.who.method}", params="best weight of every point")
    r, g = risk.sets[name], ood.sets[name]
    sets = double_score.ScorePair(r.id_test, g.id_test), double_score.ScorePair(r.ood, g.ood)
    standard = double_score.Standard.of(double_score.ScorePair(r.id_val, g.id_val))
    best = double_score.best_weighing(double_score.weighings(sets, r.losses, standard, bound, double_score.DEFAULT_MUS))
    around = double_score.envelope(sets, r.losses, standard)
    point = best if isinstance(best, str) else best.point
    numbers = (
        point if isinstance(point, str) else point.value,
        around.auroc,
        around.oscr_selective,
        *double_score.two_thresholds(sets, r.losses),
    )
    return RejectionRow(who, True, around.fpr_at_tpr(bound.tpr), *numbers)


def _pairs(rows: Sequence[Contender], double: tuple[str, str]) -> list[tuple[Contender, Contender]]:
    """The runs of two methods on the same network."""
    sides = [[row for row in rows if row.who.method == name and not row.in_sample] for name in double]
    pairs = [(a, b) for a in sides[0] for b in sides[1] if a.weights == b.weights]
    if not pairs:
        lacking = [name for name, side in zip(double, sides, strict=True) if not side]
        what = f"no run of {' and '.join(lacking)}" if lacking else "no runs of the two on the same network"
        present = ", ".join(dict.fromkeys(row.who.method for row in rows if not row.in_sample))
        raise RecordError(f"double score {'+'.join(double)}: {what} (compared: {present}) — run both methods first")
    return pairs


def _contender(who: RowKey, record: ResultRecord, scores: ScoreStore) -> Contender:
    ood = [
        key.partition("/")[2] for role in (Role.NEAR, Role.FAR) for key in record.counts if key.startswith(f"{role}/")
    ]
    if is_per_set(record):
        sets = {name: _selective_scores(record, scores.read(per_set_name(record.run_id, name)), name) for name in ood}
    else:
        splits = scores.read(record.run_id)
        sets = {name: _selective_scores(record, splits, name) for name in ood}
    in_sample = strategy_of(record).startswith("oracle")
    deviations = tuple(map(str, record.benchmark.get("deviations") or ()))
    return Contender(who, in_sample, str(record.backbone.get("digest")), sets, deviations)


def _selective_scores(record: ResultRecord, splits: Sequence[SetScores], name: str) -> SelectiveScores:
    if "accuracy" not in record.metrics.get("id", {}):
        raise RecordError(
            f"benchmark '{record.benchmark.get('name')}' has one class, so no prediction can be wrong: there is no risk"
        )
    by_role = {split.role: split for split in splits if split.role in (Role.ID_TEST, Role.ID_VAL)}
    (ood,) = (s for s in splits if s.role in (Role.NEAR, Role.FAR) and s.name == name)
    test = by_role[Role.ID_TEST]
    right = np.asarray(test.predictions == test.labels, dtype=np.float64)
    return SelectiveScores(_floats(test), 1.0 - right, _floats(by_role[Role.ID_VAL]), _floats(ood))


def _floats(split: SetScores) -> Floats:
    return np.asarray(split.scores, dtype=np.float64)


_MARK = "†"
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
    title: str,
    compared: Sequence[RejectionComparison],
    published: Mapping[tuple[str, str], RejectionFigure],
    deviations: Sequence[str] = (),
) -> list[Table]:
    """Return a table for each OOD set.

    Args:
        title: the benchmark's.
        compared: from `compare`.
        published: the paper's figures by (OOD set, method); none for other benchmarks.
        deviations: how the benchmark differs from its definition.
    """
    tables = [_table(title, comparison, published) for comparison in compared]
    note = f"Not the benchmark as defined: {'; '.join(deviations)}."
    return [*tables[:-1], replace(tables[-1], notes=(*tables[-1].notes, note))] if deviations else tables


def _table(title: str, compared: RejectionComparison, published: Mapping[tuple[str, str], RejectionFigure]) -> Table:
    figures = [_published(compared, row, published) for row in compared.rows]
    parts = [row.who.about.split(" · ") for row in compared.rows]
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    abouts = [" · ".join(part for part in about if part not in shared) for about in parts]
    columns, rows = [Column("method"), Column("run"), Column("FPR ↓", "percent")], []
    for name, decimals in (("risk ↓", 3), ("AUROC ↑", 2), ("OSCR ↑", 2)):
        columns += [Column(name, "percent", decimals), Column("paper", "percent", decimals)]
    for row, about, figure in zip(compared.rows, abouts, figures, strict=True):
        cells: list[Cell] = [f"{row.who.method}{' ' + _MARK if row.in_sample else ''}", about, row.fpr]
        printed = (None, None, None) if figure is None else (figure.risk, figure.auroc, figure.oscr)
        for ours, theirs in zip((row.risk, row.auroc, row.oscr), printed, strict=True):
            cells += [ours, theirs]
        rows.append((*cells, row.ds_f1, row.ds_aurc))
    columns += [Column("DS-F1 ↑", "percent"), Column("DS-AURC ↓", "percent")]
    bound = f"TPR ≥ {compared.tpr:g} · FPR ≤ ρ_max = {100 * compared.max_fpr:.2f} % (by {compared.decided_by})"
    limits = sorted({f.max_fpr for f in figures if f is not None and f.max_fpr is not None})
    notes = [_IN_SAMPLE] * any(row.in_sample for row in compared.rows)
    if any(figures):
        rates = ", ".join(f"{100 * limit:g} %" for limit in limits)
        notes += [f"paper: {REJECTION_SOURCE}, with other networks; there ρ_max = {rates}."]
    heading = (title, f"against {compared.ood}", bound, *shared)
    table = Table(" · ".join(part for part in heading if part), tuple(columns), tuple(rows), _HEADER, tuple(notes))
    without = {"run": not any(abouts), "paper": not any(figures)}
    return table.with_columns([at for at, column in enumerate(columns) if not without.get(column.title)])


def _published(
    compared: RejectionComparison, row: RejectionRow, published: Mapping[tuple[str, str], RejectionFigure]
) -> RejectionFigure | None:
    """The paper's figure, where its risk is at the same TPR; KNN+MSP is knn_msp, and msp+knn at its best weights."""
    first, _, second = row.who.method.partition("+")
    figure = published.get((compared.ood, f"{second}_{first}" if second else first))
    return figure if figure is not None and figure.min_tpr == compared.tpr else None
