"""Methods compared as the reject-option paper does: selective risk at one bound per OOD set, from kept scores."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openbench.core.record import ResultRecord
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import CacheError, RecordError, did_you_mean
from openbench.metrics.curve import Floats
from openbench.metrics.selective.double_score import (
    DEFAULT_MUS,
    Envelope,
    ScorePair,
    Standard,
    best_weighing,
    envelope,
    weighings,
)
from openbench.metrics.selective.risk import SelectiveCurve, TprFpr, Unable, least_risk, oscr_selective
from openbench.results.comparisons.kept import OnLost, Who, by_row, is_per_set, refuse, strategy_of
from openbench.results.scores.stored import ScoreStore, per_set_name
from openbench.results.tables.published import REJECTION_SOURCE, RejectionFigure
from openbench.results.tables.render import Cell, Column, Table


@dataclass(frozen=True, eq=False)
class Against:
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

    who: Who
    in_sample: bool
    weights: str
    sets: Mapping[str, Against]
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejection:
    """The results of one method against one OOD set; ID positive, fractions.

    Args:
        who: its row.
        in_sample: whether it was chosen on test data; then it does not count for ρ_max.
        fpr: share of OOD accepted at the TPR of the comparison.
        risk: selective risk at that TPR and ρ_max, or `unable`.
        auroc: AUROC.
        oscr: selective OSCR.
        ap_in: average precision, at the sets' own proportions.
    """

    who: Who
    in_sample: bool
    fpr: float
    risk: float | Unable
    auroc: float
    oscr: float
    ap_in: float


@dataclass(frozen=True, eq=False)
class Curves:
    """The curves of one row against one OOD set; ID positive.

    Args:
        ood: the set's name.
        who: the row.
        in_sample: as in `Rejection`.
        points: by k of n ID inputs accepted FPR and precision (n,), by j of m OOD inputs accuracy of the accepted (m,).
    """

    ood: str
    who: Who
    in_sample: bool
    points: Envelope


@dataclass(frozen=True)
class Comparison:
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
    rows: tuple[Rejection, ...]


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
    everything = list(records)
    names = sorted({str(r.benchmark.get("name")) for r in everything})
    found = [r for r in everything if r.benchmark.get("name") == benchmark]
    if not found:
        raise RecordError(
            f"no record of benchmark '{benchmark}'{did_you_mean(benchmark, names)} — found {', '.join(names) or 'none'}"
            f" — run it first: python -m openbench run +benchmark={benchmark} method=msp"
        )
    present = sorted({str(r.method.get("name")) for r in found})
    for name in methods:
        if name not in present:
            raise RecordError(
                f"no record of method '{name}' on benchmark '{benchmark}'{did_you_mean(name, present)} — found "
                f"{', '.join(present)} — run it first: python -m openbench run +benchmark={benchmark} method={name}"
            )
    wanted = list(methods) or present
    result: dict[str, list[Contender]] = {}
    lost: list[CacheError] = []
    for who, benchmarks in by_row(r for r in found if r.method.get("name") in wanted).items():
        for digest, record in benchmarks[benchmark].items():
            try:
                result.setdefault(digest, []).append(_contender(who, record, scores))
            except CacheError as error:
                lost.append(error)
    result = {digest: rows for digest, rows in result.items() if rows}
    for reason in lost:
        (on_lost if result else refuse)(reason)
    return {digest: sorted(rows, key=lambda row: wanted.index(row.who.method)) for digest, rows in result.items()}


def compare(rows: Sequence[Contender], tpr: float, doubles: Sequence[tuple[str, str]] = ()) -> list[Comparison]:
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
) -> Comparison:
    curves = [SelectiveCurve.of(s.id_test, s.losses, s.ood) for s in (row.sets[name] for row in rows)]
    shares = [curve.pair.fpr_at_tpr_id_positive(tpr) for curve in curves]
    deciding = [i for i, row in enumerate(rows) if not row.in_sample] or list(range(len(rows)))
    first = max(deciding, key=lambda i: shares[i])
    bound = TprFpr(tpr, shares[first])
    found = []
    for row, curve, share in zip(rows, curves, shares, strict=True):
        point, precision = least_risk(curve, bound), curve.pair.aupr_in.average_precision
        risk = point if isinstance(point, str) else point.value
        areas = (curve.pair.auroc(), oscr_selective(curve), precision)
        found.append(Rejection(row.who, row.in_sample, share, risk, *areas))
    doubles = [_double(*pair, name, bound) for pair in pairs]
    return Comparison(name, tpr, shares[first], rows[first].who.method, (*found, *doubles))


def _double(risk: Contender, ood: Contender, name: str, bound: TprFpr) -> Rejection:
    """The double score of two runs at the best weight of every operating point."""
    sets, standard = _weighable(risk, ood, name)
    losses = risk.sets[name].losses
    best = best_weighing(weighings(sets, losses, standard, bound, DEFAULT_MUS))
    least = best if isinstance(best, str) else best.point
    around = envelope(sets, losses, standard)
    return Rejection(
        who=_double_who(risk, ood),
        in_sample=True,
        fpr=around.fpr_at_tpr(bound.tpr),
        risk=least if isinstance(least, str) else least.value,
        auroc=around.auroc,
        oscr=around.oscr_selective,
        ap_in=around.ap_in,
    )


def curves(rows: Sequence[Contender], doubles: Sequence[tuple[str, str]] = ()) -> Iterator[Curves]:
    """Yield the curves of every run and double score against every OOD set.

    Args:
        rows: as for `compare`.
        doubles: likewise; at every point their best weight.
    """
    pairs = [pair for double in doubles for pair in _pairs(rows, double)]
    for name in rows[0].sets:
        for row in rows:
            s = row.sets[name]  # at weight 0 the second score of a pair is absent
            alone = (ScorePair(s.id_test, s.id_test), ScorePair(s.ood, s.ood))
            yield Curves(name, row.who, row.in_sample, envelope(alone, s.losses, Standard(), [0.0]))
        for risk, ood in pairs:
            sets, standard = _weighable(risk, ood, name)
            yield Curves(name, _double_who(risk, ood), True, envelope(sets, risk.sets[name].losses, standard))


def _weighable(risk: Contender, ood: Contender, name: str) -> tuple[tuple[ScorePair, ScorePair], Standard]:
    """Both scores of ID test and of an OOD set, and their units on ID validation."""
    r, g = risk.sets[name], ood.sets[name]
    standard = Standard.of(ScorePair(r.id_val, g.id_val))
    return (ScorePair(r.id_test, g.id_test), ScorePair(r.ood, g.ood)), standard


def _double_who(risk: Contender, ood: Contender) -> Who:
    return risk.who._replace(method=f"{risk.who.method}+{ood.who.method}", params="best weight of every point")


def _pairs(rows: Sequence[Contender], double: tuple[str, str]) -> list[tuple[Contender, Contender]]:
    """The runs of two methods on the same network."""
    sides = [[row for row in rows if row.who.method == name and not row.in_sample] for name in double]
    found = [(a, b) for a in sides[0] for b in sides[1] if a.weights == b.weights]
    if not found:
        lacking = [name for name, side in zip(double, sides, strict=True) if not side]
        what = f"no run of {' and '.join(lacking)}" if lacking else "no runs of the two on the same network"
        present = ", ".join(dict.fromkeys(row.who.method for row in rows if not row.in_sample))
        raise RecordError(f"double score {'+'.join(double)}: {what} — compared: {present} — run both methods first")
    return found


def _contender(who: Who, record: ResultRecord, scores: ScoreStore) -> Contender:
    ood = [
        key.partition("/")[2] for role in (Role.NEAR, Role.FAR) for key in record.counts if key.startswith(f"{role}/")
    ]
    if is_per_set(record):
        sets = {name: _against(record, scores.read(per_set_name(record.run_id, name)), name) for name in ood}
    else:
        splits = scores.read(record.run_id)
        sets = {name: _against(record, splits, name) for name in ood}
    in_sample = strategy_of(record).startswith("oracle")
    deviations = tuple(map(str, record.benchmark.get("deviations") or ()))
    return Contender(who, in_sample, str(record.backbone.get("digest")), sets, deviations)


def _against(record: ResultRecord, splits: Sequence[SetScores], name: str) -> Against:
    if "accuracy" not in record.metrics.get("id", {}):
        raise RecordError(
            f"benchmark '{record.benchmark.get('name')}' has one class, so no prediction can be wrong — a selective "
            "risk needs a classifier"
        )
    by_role = {split.role: split for split in splits if split.role in (Role.ID_TEST, Role.ID_VAL)}
    (ood,) = (s for s in splits if s.role in (Role.NEAR, Role.FAR) and s.name == name)
    test = by_role[Role.ID_TEST]
    right = np.asarray(test.predictions == test.labels, dtype=np.float64)
    return Against(_floats(test), 1.0 - right, _floats(by_role[Role.ID_VAL]), _floats(ood))


def _floats(split: SetScores) -> Floats:
    return np.asarray(split.scores, dtype=np.float64)


_MARK = "†"
_HEADER = (
    "ID positive: TPR, share of ID accepted; FPR, share of OOD accepted · risk: least share of errors among the "
    "accepted ID at these bounds · OSCR: area over FPR under the accuracy among the accepted ID"
)
_IN_SAMPLE = (
    f"{_MARK} chosen on test data: a bound, not a result, and not counted for ρ_max. Each number of `a+b` has the "
    "weight of b that is best for it."
)


def rejection_tables(
    title: str,
    compared: Sequence[Comparison],
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


def curve_rows(found: Iterable[Curves], points: int = 1000) -> Iterator[tuple[str, str, str, str, str, float, float]]:
    """Yield (OOD set, method, run, in-sample or not, curve, x, y) of curves thinned out evenly.

    `roc`: FPR over TPR; `pr`: precision over recall, ID positive; `oscr`: accuracy among the accepted ID over FPR.

    Args:
        found: from `curves`.
        points: of each curve at most.
    """
    for each in found:
        lines = (("roc", each.points.fpr), ("pr", each.points.precision), ("oscr", each.points.accuracy))
        for name, values in lines:
            kept = sorted({round(i * (values.size - 1) / max(1, points - 1)) for i in range(points)})
            for k in kept:
                about = "in-sample" if each.in_sample else ""
                yield each.ood, each.who.method, each.who.about, about, name, (k + 1) / values.size, float(values[k])


def _table(title: str, compared: Comparison, published: Mapping[tuple[str, str], RejectionFigure]) -> Table:
    figures = [_published(compared, row, published) for row in compared.rows]
    shared, abouts = _shared([row.who.about.split(" · ") for row in compared.rows])
    columns = [Column("method")] + [Column("run")] * any(abouts)
    columns += [Column("FPR ↓", "percent")]
    for name, decimals in (("risk ↓", 3), ("AUROC ↑", 2), ("OSCR ↑", 2)):
        columns += [Column(name, "percent", decimals)] + [Column("paper", "percent", decimals)] * any(figures)
    rows = []
    for row, about, figure in zip(compared.rows, abouts, figures, strict=True):
        cells: list[Cell] = [f"{row.who.method}{' ' + _MARK if row.in_sample else ''}"]
        cells += [about] * any(abouts)
        cells += [row.fpr]
        printed = (None, None, None) if figure is None else (figure.risk, figure.auroc, figure.oscr)
        for ours, theirs in zip((row.risk, row.auroc, row.oscr), printed, strict=True):
            cells += [ours] + [theirs] * any(figures)
        rows.append(tuple(cells))
    bound = f"TPR ≥ {compared.tpr:g} · FPR ≤ ρ_max = {100 * compared.max_fpr:.2f} % (by {compared.decided_by})"
    limits = sorted({f.max_fpr for f in figures if f is not None and f.max_fpr is not None})
    notes = [_IN_SAMPLE] * any(row.in_sample for row in compared.rows)
    if any(figures):
        rates = ", ".join(f"{100 * limit:g} %" for limit in limits)
        notes += [f"paper: {REJECTION_SOURCE}, with other networks; there ρ_max = {rates}."]
    parts = (title, f"against {compared.ood}", bound, *shared)
    return Table(" · ".join(part for part in parts if part), tuple(columns), tuple(rows), _HEADER, tuple(notes))


def _published(
    compared: Comparison, row: Rejection, published: Mapping[tuple[str, str], RejectionFigure]
) -> RejectionFigure | None:
    """The paper's figure, where its risk is at the same TPR; KNN+MSP is knn_msp, and msp+knn at its best weights."""
    first, _, second = row.who.method.partition("+")
    figure = published.get((compared.ood, f"{second}_{first}" if second else first))
    return figure if figure is not None and figure.min_tpr == compared.tpr else None


def _shared(abouts: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """What is said of every row, and the rest of each."""
    shared = [part for part in abouts[0] if all(part in other for other in abouts)]
    return shared, [" · ".join(part for part in about if part not in shared) for about in abouts]
