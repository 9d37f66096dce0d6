"""The layout of a study: its cells as texts in rows and columns, ours beside the published figures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev

from numpy.typing import ArrayLike
from scipy.stats import t as student

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import CacheError
from openbench.metrics.intervals import paired_delong
from openbench.results.tables.render import Column as TableColumn
from openbench.results.tables.render import Estimate, cell_text
from openbench.studies.cells import NOT_PUBLISHED, Cell, Verdict
from openbench.studies.runs import Made
from openbench.studies.study import Study

LEVEL = 0.05
_LEAST = 3  # two differences that happen to be alike would make an interval of no width
Read = Callable[[str], Sequence[SetScores]]  # the kept scores of a run, or CacheError
OVER_RUNS, ON_IMAGES = "over runs: Student's paired t", "one run: DeLong's paired test on the same images"


@dataclass(frozen=True)
class Pair:
    """A cell less the cell of the row that it is compared with.

    Args:
        cell: the cell.
        difference: with its 95 % interval, if there is a test.
        p: two-sided, for no difference; None without a test.
        test: which; empty for none.
        significant: whether p is small enough beside those of the other rows of the column (Holm).
    """

    cell: Cell
    difference: Estimate | None = None
    p: float | None = None
    test: str = ""
    significant: bool = False


def paired(study: Study, cells: Sequence[Sequence[Cell]], read: Read) -> list[list[Pair]]:
    """Return every row but the one that the study names, compared with that one.

    Args:
        study: with a row to compare with.
        cells: row by row.
        read: returns the kept scores of a run.
    """
    base = next(line for line in cells if line[0].row.path == study.test)
    others = [line for line in cells if line is not base]
    found = [[_pair(study, cell, beside, read) for cell, beside in zip(line, base, strict=True)] for line in others]
    columns = [_holm([line[at] for line in found]) for at in range(len(base))]
    return [list(line) for line in zip(*columns, strict=True)]


def _pair(study: Study, cell: Cell, base: Cell, read: Read) -> Pair:
    if cell.ours is None or base.ours is None:
        return Pair(cell)
    both = [at for at in cell.made if at in base.made]
    # Released weights are one network, whatever the seed; draws of a table differ although their network does not.
    samples = {cell.made[at].run.network if study.repeat == "seed" else at: at for at in both}
    gaps = [cell.values[at] - base.values[at] for at in samples.values()]
    if len(gaps) >= _LEAST:
        return _over_runs(cell, gaps)
    if len(gaps) == 1 and cell.column.key == "auroc":
        (at,) = samples.values()
        return _on_images(Pair(cell, Estimate(gaps[0])), cell.made[at], base.made[at], read)
    return Pair(cell, Estimate(fmean(gaps))) if gaps else Pair(cell)


def _over_runs(cell: Cell, gaps: Sequence[float]) -> Pair:
    """d̄ ± t(.975, n − 1)·s/√n, and p of the paired t test."""
    mean, n = fmean(gaps), len(gaps)
    error = stdev(gaps) / sqrt(n)
    half = float(student.ppf(1 - LEVEL / 2, n - 1)) * error
    p = 2 * float(student.sf(abs(mean) / error, n - 1)) if error else float(mean == 0)
    return Pair(cell, Estimate(mean, mean - half, mean + half), p, OVER_RUNS)


def _on_images(plain: Pair, one: Made, base: Made, read: Read) -> Pair:
    """The pair with DeLong's interval and p; without where images differ or scores were not kept."""
    of = plain.cell.column.set
    if one.run.digest != base.run.digest or "/" in of:
        return plain
    try:
        first, second = (_sides(read(made.run.run_id), of) for made in (one, base))
    except CacheError:
        return plain
    found = paired_delong(first, second, 1 - LEVEL)
    return Pair(plain.cell, Estimate(found.difference, found.low, found.high), found.p, ON_IMAGES)


def _sides(sets: Sequence[SetScores], name: str) -> tuple[ArrayLike, list[ArrayLike]]:
    """The scores of ID test, and of each set of a group, or of the one set of that name."""
    groups = {"near": Role.NEAR, "far": Role.FAR}
    oods = [s for s in sets if (str(s.role) == str(groups[name]) if name in groups else s.name == name)]
    (ids,) = (s.scores for s in sets if s.role == Role.ID_TEST)
    chosen = [s for s in sorted(oods, key=lambda s: s.name) if str(s.role) in map(str, groups.values())]
    return ids, [s.scores for s in chosen]


def _holm(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs of a column, marked by Holm's procedure: the k-th smallest of m p values is held to .05/(m − k + 1)."""
    tested = sorted((at for at, pair in enumerate(pairs) if pair.p is not None), key=lambda at: pairs[at].p or 0.0)
    passed: set[int] = set()
    for rank, at in enumerate(tested):
        if (pairs[at].p or 0.0) > LEVEL / (len(tested) - rank):
            break
        passed.add(at)
    return [Pair(p.cell, p.difference, p.p, p.test, at in passed) for at, p in enumerate(pairs)]


NOT_AS_DEFINED = "†"
_SHOWN = 8  # names in a note; more are counted
_MARKS = {
    Verdict.ROUNDING: "= no larger than rounding of what is printed",
    Verdict.WITHIN: "~ no larger than seeds differ (95 %)",
    Verdict.BEYOND: "* beyond the spread of seeds (95 %)",
    Verdict.UNKNOWN: "? the spread of seeds is not known on either side",
}


@dataclass(frozen=True)
class Text:
    """A cell as it is printed.

    Args:
        text: the characters.
        best: whether it is the best of its column.
    """

    text: str
    best: bool = False


@dataclass(frozen=True)
class Head:
    """The head of a column.

    Args:
        group: the heading above it; empty for none.
        title: its own.
    """

    group: str
    title: str


@dataclass(frozen=True)
class Line:
    """A row.

    Args:
        group: the heading that it stands under; empty for none.
        name: its own.
        cells: a text for every head.
    """

    group: str
    name: str
    cells: tuple[Text, ...]


@dataclass(frozen=True)
class Sheet:
    """One table of a study, as any format shows it.

    Args:
        title: what it is about.
        heads: of its columns, but for the first, which has the names of the rows.
        lines: its rows.
        notes: footnotes.
    """

    title: str
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


def sheets(study: Study, cells: Sequence[Sequence[Cell]], asked: str = "") -> list[Sheet]:
    """Return the tables of a study: one, or one for each group of columns where published figures stand beside ours.

    Args:
        study: narrowed or not.
        cells: row by row.
        asked: overrides of the command line that change what is shown, for the title.
    """
    beside = any(cell.printed is not None for line in cells for cell in line)
    groups = list(dict.fromkeys(column.group for column in study.columns)) if beside else []
    found = []
    for group in groups or [""]:
        part = [at for at, column in enumerate(study.columns) if not groups or column.group == group]
        some = [[line[at] for at in part] for line in cells]
        heads = [head for at in range(len(part)) for head in _heads([line[at] for line in some])]
        if len(groups) > 1 or (groups and group):
            heads = [replace(head, group="") for head in heads]  # the title says it
        title = " · ".join(text for text in (study.title, group, asked) if text)
        notes = (*_legend(some), *_empty(some))
        found.append(Sheet(title, tuple(heads), tuple(_lines(some)), notes))
    return [*found[:-1], replace(found[-1], notes=(*found[-1].notes, *_general(study)))]


def paired_sheet(study: Study, pairs: Sequence[Sequence[Pair]], asked: str = "") -> Sheet:
    """Return the table of rows compared with one of them in pairs.

    Args:
        study: with a row to compare with.
        pairs: row by row, from `paired`.
        asked: overrides of the command line, for the title.
    """
    heads = [head for at in range(len(pairs[0])) for head in _heads([line[at].cell for line in pairs])]
    named = [head for head in heads if head.title not in ("paper", "difference")]
    lines = tuple(Line(line[0].cell.row.group, line[0].cell.row.name, tuple(map(_pair_text, line))) for line in pairs)
    tests = {pair.test: None for line in pairs for pair in line if pair.test}
    notes = [f"{'; '.join(tests)} · 95 % intervals · * p < .05 by Holm over the rows of a column"] * bool(tests)
    notes += ["without an interval: fewer than three runs, or the scores of the only one were not kept"] * any(
        pair.difference is not None and not pair.test for line in pairs for pair in line
    )
    title = " · ".join(text for text in (f"{study.title}: less {study.test}", asked) if text)
    return Sheet(title, tuple(named), lines, tuple(notes))


def _pair_text(pair: Pair) -> Text:
    if pair.difference is None:
        return Text("–")
    cell, found = pair.cell, pair.difference
    scale, digits = (100 if cell.column.kind == "percent" else 1), _decimals(cell)
    ends = (
        ""
        if found.low is None or found.high is None
        else (f" [{scale * found.low:+.{digits}f}, {scale * found.high:+.{digits}f}]")
    )
    return Text(f"{scale * found.value:+.{digits}f}{ends}{' *' * pair.significant}")


def _heads(cells: Sequence[Cell]) -> Iterator[Head]:
    column = cells[0].column
    arrow = {"max": " ↑", "min": " ↓", "none": ""}[column.best]
    unit = " %" if column.kind == "percent" and not any(cell.printed for cell in cells) else ""
    yield Head(column.group, f"{column.name}{unit}{arrow}")
    if any(cell.printed is not None for cell in cells):
        yield Head(column.group, "paper")
        yield Head(column.group, "difference")


def _lines(cells: Sequence[Sequence[Cell]]) -> Iterator[Line]:
    best = [_best([line[at] for line in cells]) for at in range(len(cells[0]))]
    beside = [any(line[at].printed is not None for line in cells) for at in range(len(cells[0]))]
    for line in cells:
        texts: list[Text] = []
        for at, cell in enumerate(line):
            texts.append(Text(ours_text(cell), cell.ours is not None and _rounded(cell) == best[at]))
            if beside[at]:
                texts += [Text(_written(cell, cell.printed.value) if cell.printed else "–"), Text(_difference(cell))]
        yield Line(line[0].row.group, line[0].row.name, tuple(texts))


def ours_text(cell: Cell) -> str:
    """Return our number as printed, with what is special about it."""
    if cell.ours is None:
        return "unable" if cell.reason.startswith("unable") else "–"
    parts = [_written(cell, cell.ours)]
    parts += [f"({len(cell.made)} of {len(cell.runs)})"] * cell.incomplete
    return " ".join(parts) + NOT_AS_DEFINED * bool(cell.deviations)


def _difference(cell: Cell) -> str:
    if cell.difference is None:
        return "–"
    scale = 100 if cell.column.kind == "percent" else 1
    return f"{scale * cell.difference.value:+.{_decimals(cell)}f} {cell.difference.verdict}"


def _written(cell: Cell, value: Estimate) -> str:
    shown = Estimate(value.value, std=value.std) if cell.printed is not None else value
    return cell_text(shown, TableColumn("", cell.column.kind, _decimals(cell)))


def _decimals(cell: Cell) -> int:
    """Two digits after the point of a percentage, three for risks, which are small."""
    return 3 if "risk" in cell.column.key else 2


def _rounded(cell: Cell) -> str:
    value = cell.ours.value if cell.ours is not None else 0.0
    return cell_text(value, TableColumn("", cell.column.kind, _decimals(cell)))


def _best(cells: Sequence[Cell]) -> str:
    """How the best number of a column is printed; empty where none is better."""
    found = [cell for cell in cells if cell.ours is not None]
    if len(found) < 2 or found[0].column.best == "none":
        return ""
    pick = max if found[0].column.best == "max" else min
    return _rounded(pick(found, key=lambda cell: cell.ours.value if cell.ours else 0.0))


def _legend(cells: Sequence[Sequence[Cell]]) -> Iterator[str]:
    every = [cell for line in cells for cell in line]
    several = any(cell.ours is not None and cell.ours.std is not None for cell in every)
    ends = any(cell.ours is not None and cell.ours.low is not None and cell.printed is None for cell in every)
    parts = ["mean ± population standard deviation over runs"] * several
    parts += ["in brackets the 95 % interval of a single run"] * ends
    parts += ["(n of N): so many of the runs are there"] * any(cell.incomplete and cell.ours for cell in every)
    if parts:
        yield " · ".join(parts)
    verdicts = {cell.difference.verdict for cell in every if cell.difference is not None}
    if verdicts:
        yield "difference, ours less the paper's: " + " · ".join(_MARKS[v] for v in Verdict if v in verdicts)
    deviations = list(dict.fromkeys(text for cell in every for text in cell.deviations))
    if deviations:
        more = f"; and {len(deviations) - _SHOWN} more" if len(deviations) > _SHOWN else ""
        yield f"{NOT_AS_DEFINED} not the benchmark as defined: {'; '.join(deviations[:_SHOWN])}{more}"


def _empty(cells: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """A line for every reason why cells are empty, with their names."""
    reasons: dict[str, list[Cell]] = {}
    for cell in (cell for line in cells for cell in line):
        if cell.ours is None and cell.reason != NOT_PUBLISHED:
            reasons.setdefault(cell.reason, []).append(cell)
    for reason, empty in reasons.items():
        rows = list(dict.fromkeys(cell.row.name for cell in empty))
        more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
        count = f"{len(empty)} cell{'s' * (len(empty) > 1)}"
        yield f"empty, {count}: {reason} — {', '.join(rows[:_SHOWN])}{more}"


def _general(study: Study) -> Iterator[str]:
    if study.source:
        yield f"paper: {study.source}"
    for text in study.deviations:
        yield f"deviates: {text}"
