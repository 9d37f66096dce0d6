"""Rows of a study compared with one of them in pairs: over runs of the same seeds or draws, or on the same images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from numpy.typing import ArrayLike
from scipy.stats import t as student

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import CacheError
from openbench.metrics.intervals import paired_delong
from openbench.results.tables.render import Estimate
from openbench.studies.cells import Cell
from openbench.studies.made import Made
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
