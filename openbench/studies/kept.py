"""Tables and pictures made of the kept scores of a study's runs: methods at one bound, one threshold for all."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

from openbench import paths
from openbench.config.constraints import Count, check_value
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import CacheError, ConfigError, check_known, did_you_mean
from openbench.results.comparisons.rejection import compare, contenders, rejection_tables
from openbench.results.comparisons.rows import OnLost
from openbench.results.comparisons.thresholds import scored_runs, summary_tables
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.published import rebench_figures, rejection_figures
from openbench.results.tables.render import Column, Table
from openbench.studies.cells import Cell
from openbench.studies.curves import KINDS
from openbench.studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DRAWN: Mapping[str, Any] = {"pictures": list[str], "curves": list[str]}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "rejection": {"tpr": Annotated[float, Interval(ge=0, le=1)], "doubles": list[str], **_DRAWN},
    "thresholds": _DRAWN,
    "grid": _DRAWN,
    "mixture": {"ood_mean": float, "samples": Count},
}
PICTURES = ("thresholds", "roc", "histograms", "selective")


class KeptScores(ScoreStore):
    """Scores of runs, from the cache or else from beside the records.

    Args:
        cache: the folder of the cache's scores.
        published: the folder of those that were published.
    """

    def __init__(self, cache: Path, published: Path) -> None:
        super().__init__(cache)
        self._published = ScoreStore(published)

    def read(self, run_id: str) -> list[SetScores]:
        """Return the scores of a run, as `ScoreStore.read` does."""
        try:
            return super().read(run_id)
        except CacheError as error:
            try:
                return self._published.read(run_id)
            except CacheError:
                raise error from None


def check_options(study: Study) -> None:
    """Refuse options that a study's layout does not have, and values that they do not take.

    Raises:
        ConfigError: there is one.
    """
    where, kinds = f"study '{study.name}': options", _OPTIONS[study.layout]
    check_known(study.options, kinds, where)
    for key, value in study.options.items():
        check_value(value, kinds[key], f"{where}.{key}")
    for text in study.options.get("doubles", ()):
        if not re.fullmatch(r"[^+]+\+[^+]+", text):
            raise ConfigError(f"{where}.doubles — found '{text}' — allowed: two methods, e.g. msp+knn")
    for key, known in (("pictures", PICTURES), ("curves", tuple(KINDS))):
        for name in study.options.get(key, ()):
            if name not in known:
                raise ConfigError(
                    f"{where}.{key} — found '{name}'{did_you_mean(str(name), known)} — allowed: {', '.join(known)}"
                )


def kept_tables(
    study: Study,
    cells: Sequence[Sequence[Cell]],
    records: Sequence[ResultRecord],
    scores: ScoreStore,
    on_lost: OnLost,
) -> list[Table]:
    """Return the tables of a layout that is made of kept scores.

    Args:
        study: with the layout `rejection` or `thresholds`.
        cells: row by row.
        records: of the runs in the cells.
        scores: where their scores are.
        on_lost: receives an error for each run whose scores cannot be read.
    """
    notes = (*_absent(cells), *([f"paper: {study.source}"] * bool(study.source)))
    if not records:
        rows = tuple((line[0].row.name, "–") for line in cells)
        return [Table(study.title, (Column(""), Column("")), rows, notes=notes)]
    make = _rejection if study.layout == "rejection" else _thresholds
    *tables, last = make(study, records, scores, on_lost)
    notes += tuple(f"deviates: {text}" for text in study.deviations)
    return [*tables, replace(last, notes=(*last.notes, *notes))]


def _rejection(study: Study, records: Sequence[ResultRecord], scores: ScoreStore, on_lost: OnLost) -> Iterator[Table]:
    figures = rejection_figures(paths.reference_dir())
    doubles = [tuple(text.split("+")) for text in study.options.get("doubles", ())]
    for benchmark in dict.fromkeys(str(record.benchmark["name"]) for record in records):
        found = contenders(records, scores, benchmark, (), on_lost)
        published = {key[1:]: figure for key, figure in figures.items() if key[0] == benchmark}
        for rows in found.values():
            names = {row.who.method for row in rows}
            known = [(one, other) for one, other in doubles if {one, other} <= names]
            compared = compare(rows, float(study.options.get("tpr", 0.8)), known)
            yield from rejection_tables(benchmark, compared, published, rows[0].deviations)


def _thresholds(study: Study, records: Sequence[ResultRecord], scores: ScoreStore, on_lost: OnLost) -> Iterator[Table]:
    names = sorted({str(record.benchmark["name"]) for record in records})
    yield from summary_tables(scored_runs(records, scores, names, on_lost), rebench_figures(paths.reference_dir()))


def _absent(cells: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """A line for every reason why runs are not in the tables."""
    reasons: dict[str, list[str]] = {}
    for cell in (cell for line in cells for cell in line):
        if cell.reason:
            reasons.setdefault(cell.reason, []).append(f"{cell.row.name} ({cell.column.name})")
    yield from (f"without, {reason}: {', '.join(named)}" for reason, named in reasons.items())


def pictures(study: Study, cells: Sequence[Sequence[Cell]], scores: ScoreStore) -> Iterator[tuple[str, "Figure"]]:
    """Yield (name, figure) of every picture that a study asks for of each of its rows, as far as scores are kept.

    Args:
        study: with the option `pictures`.
        cells: row by row.
        scores: where the scores of the runs are.
    """
    from openbench.results import plots

    draws: dict[str, Callable[[plots.Sets], Figure | None]] = {
        "thresholds": lambda sets: plots.error_rates({"": sets}),
        "roc": lambda sets: plots.roc({"": sets}),
        "histograms": lambda sets: plots.histograms({"": sets}),
        "selective": plots.selective,
    }
    done: set[str] = set()
    for cell in (cell for line in cells for cell in line):
        for made in list(cell.made.values())[:1]:
            if made.run.run_id in done:
                continue
            done.add(made.run.run_id)
            try:
                sets = scores.read(made.run.run_id)
            except CacheError:
                continue
            for kind in study.options.get("pictures", ()):
                figure = draws[kind](sets)
                if figure is not None:
                    yield f"{made.run.benchmark}-{cell.row.name}-{kind}".replace("/", "_").replace(" ", "_"), figure
