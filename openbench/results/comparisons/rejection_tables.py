"""The comparison of rejection as tables, one per OOD set, with the paper's figures beside them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from openbench.results.comparisons.rejection import Comparison, Curves, Rejection
from openbench.results.tables.paper_tables import REJECTION_SOURCE, RejectionFigure
from openbench.results.tables.table import Cell, Column, Table

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
