"""The cells of a study: what its records say, what is published, and why a cell is empty."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, pstdev

from openbench.core.record import ResultRecord
from openbench.metrics.selective.risk import UNABLE
from openbench.results.tables.render import Estimate
from openbench.studies.figures import Printed, Published
from openbench.studies.made import Archive, Made
from openbench.studies.spread import Difference, difference
from openbench.studies.study import Column, Row, Study
from openbench.studies.wanted import Wanted, merged, wanted

_LEVEL = 0.95  # of the intervals that are shown where there is a choice
_BY_CHANCE = ("seed", "benchmark.draw")  # keys over whose values numbers vary by chance
NO_RECORD = "not run yet"
States = Mapping[tuple[str, ...], str]  # by form of a benchmark
NOT_PUBLISHED = "not in the published table"


@dataclass(frozen=True)
class Cell:
    """One cell.

    Args:
        row: its row.
        column: its column.
        runs: what it is made of, by the value of the repeated key; empty if the study has no cell here.
        made: the records that are there, likewise.
        ours: the mean over them, with their deviation; with the interval of a single one.
        printed: the published figure.
        difference: ours less that.
        reason: why there is no number of ours; empty if there is one.
        deviations: how the benchmark of its records differs from its definition.
    """

    row: Row
    column: Column
    runs: Mapping[str, Wanted] = field(default_factory=dict)
    made: Mapping[str, Made] = field(default_factory=dict)
    ours: Estimate | None = None
    printed: Printed | None = None
    difference: Difference | None = None
    reason: str = ""
    deviations: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, float]:
        """Its number in each record, by the value of the repeated key."""
        found = {at: number(one, self.column) for at, one in self.made.items()}
        return {at: value for at, value in found.items() if isinstance(value, float | int)}

    @property
    def incomplete(self) -> bool:
        """Whether some of its runs are not there."""
        return bool(self.made) and len(self.made) < len(self.runs)


@dataclass(frozen=True)
class Asked:
    """What is asked of a study on the command line.

    Args:
        words: overrides of all runs, after the study's own.
        incomplete: whether records of benchmarks that are not as defined count.
        config_dir: the user's folder of group files.
    """

    words: tuple[str, ...] = ()
    incomplete: bool = False
    config_dir: Path | None = None


def number(one: Made, column: Column) -> float | int | str | None:
    """Return the number of a record that a column is about; None if it has none."""
    return one.run.metrics.get(column.set, {}).get(column.key)


def planned(study: Study, asked: Asked) -> dict[tuple[str, str], dict[str, Wanted]]:
    """Return {(row, column): {value of the repeated key: run}} of every cell that the study has.

    Raises:
        ConfigError: overrides that name no benchmark, or that a study cannot look records up by.
    """
    published, found = Published(study), dict[tuple[str, str], dict[str, Wanted]]()
    known: dict[tuple[str, ...], Wanted] = {}
    for row in study.rows if study.layout != "mixture" else ():
        for column in study.columns:
            where = f"study '{study.name}': {row.path}, {column.path}"
            if why_not(study, row, column, published):
                continue
            runs = found.setdefault((row.path, column.path), {})
            for value in column.repeated:
                there = next((row.there[key] for key in _places(column) if key in row.there), ())
                words = merged(study.run, column.run, row.run, there, [f"{study.repeat}={value}"], asked.words)
                if words not in known:
                    known[words] = wanted(words, where, asked.config_dir)
                at = next((v.partition("=")[2] for v in words if v.partition("=")[0] == study.repeat), value)
                runs.setdefault(at, known[words])
    return found


def why_not(study: Study, row: Row, column: Column, published: Published) -> str:
    """Return why the study has no cell in a row and column; empty if it has one."""
    stated = next((row.without[key] for key in (*_places(column), "") if key in row.without), "")
    if stated:
        return stated
    return NOT_PUBLISHED if study.only_published and published.figure(row, column) is None else ""


def _places(column: Column) -> tuple[str, ...]:
    """What a row may name a column by, the narrowest first."""
    return column.path, column.name, column.group


def cells(study: Study, asked: Asked, archive: Archive) -> list[list[Cell]]:
    """Return the cells, row by row.

    Args:
        study: any, narrowed or not.
        asked: on the command line.
        archive: the records.
    """
    published, runs = Published(study), planned(study, asked)
    states = states_of(runs.values(), archive, asked)
    found = []
    for row in study.rows:
        line = []
        for column in study.columns:
            printed = published.figure(row, column)
            cell = Cell(row, column, runs.get((row.path, column.path), {}), printed=printed)
            reason = why_not(study, row, column, published)
            line.append(_filled(cell, archive, states, reason))
        found.append(line)
    return [[_compared(cell, study) for cell in line] for line in found]


def keys_of(study: Study, asked: Asked) -> set[str]:
    """Return the dotted keys of configs that the study sets."""
    return {key for runs in planned(study, asked).values() for run in runs.values() for key in run.values}


def archive_of(study: Study, asked: Asked, records: Iterable[ResultRecord]) -> Archive:
    """Return what the study needs of records."""
    kept = {(column.set, column.key + end) for column in study.columns for end in ("", "_low", "_high")}
    return Archive.of(records, keys_of(study, asked), lambda name, key: (name, key) in kept, asked.config_dir)


def states_of(runs: Iterable[Mapping[str, Wanted]], archive: Archive, asked: Asked) -> States:
    """Return the state of each benchmark that a table shows: as defined, else that of the most runs of the study.

    Args:
        runs: of each cell, from `planned`.
        archive: the records.
        asked: on the command line.
    """
    found: dict[tuple[str, ...], dict[str, list[bool]]] = {}
    for run in {id(run): run for many in runs for run in many.values()}.values():
        for one in archive.fitting(run):
            defined = archive.as_defined(one, run)
            if defined or asked.incomplete:
                found.setdefault(run.form, {}).setdefault(archive.state(one, run), []).append(defined)
    return {
        name: max(states, key=lambda made_of: (any(states[made_of]), len(states[made_of]), made_of))
        for name, states in found.items()
    }


def _filled(cell: Cell, archive: Archive, states: States, reason: str) -> Cell:
    """The cell with its records, or with the reason why it is empty."""
    if reason:
        return replace(cell, reason=reason)
    chosen = {at: _chosen(run, archive, states) for at, run in cell.runs.items()}
    made = {at: one for at, one in chosen.items() if isinstance(one, Made)}
    if not made:
        return replace(cell, reason=next((why for why in chosen.values() if isinstance(why, str)), NO_RECORD))
    if not cell.column.key:  # the layout brings its numbers
        return replace(cell, made=made)
    numbers = {at: number(one, cell.column) for at, one in made.items()}
    kept = {at: made[at] for at, value in numbers.items() if isinstance(value, float | int)}
    if not kept:
        unable = UNABLE in numbers.values()
        what = f"{UNABLE}: no threshold meets its bounds" if unable else f"its records have no {cell.column.key}"
        return replace(cell, made=made, reason=f"{what} ({cell.column.set})")
    told = [(*one.run.deviations, *archive.doubts(one, cell.runs[at])) for at, one in kept.items()]
    deviations = tuple(sorted({text for texts in told for text in texts}))
    return replace(cell, made=kept, deviations=deviations)


def _chosen(run: Wanted, archive: Archive, states: States) -> Made | str:
    """The record of a run, or why there is none for the table."""
    if run.refused:
        return run.refused
    fitting = archive.fitting(run)
    kept = [one for one in fitting if archive.state(one, run) == states.get(run.form)]
    if len({one.run.row for one in kept}) > 1:
        ids = ", ".join(sorted(one.run.run_id for one in kept))
        return f"records of several settings fit ({ids}): add the override that tells them apart"
    if kept:
        return max(kept, key=lambda one: (one.run.level == _LEVEL, one.run.run_id))
    if not fitting:
        return NO_RECORD if archive.of_benchmark(run.benchmark) else f"nothing was run on {run.benchmark} yet"
    doubts = [text for one in fitting for text in archive.doubts(one, run)]
    if doubts and not any(archive.as_defined(one, run) for one in fitting):
        return f"run on {run.benchmark} as defined by its word alone: {doubts[0]} (--allow incomplete shows it)"
    if all(not one.run.pristine for one in fitting):
        return f"run on {run.benchmark}, but not as defined (--allow incomplete shows it)"
    return f"run on another state of {run.benchmark}"


def _mean(made: Sequence[Made], column: Column) -> Estimate:
    """The mean and population deviation over runs; of a single one its value and interval."""
    values = [float(number(one, column) or 0.0) for one in made]
    if len(values) > 1:
        return Estimate(fmean(values), std=pstdev(values))
    (one,) = made
    numbers = one.run.metrics[column.set]
    low, high = (numbers.get(f"{column.key}_{end}") for end in ("low", "high"))
    if isinstance(low, float | int) and isinstance(high, float | int):
        return Estimate(values[0], float(low), float(high))
    return Estimate(values[0])


def _compared(cell: Cell, study: Study) -> Cell:
    """The cell with its mean and, where a figure is published, the difference."""
    if not cell.made or cell.reason or not cell.column.key:
        return cell
    # Released weights are one network, whatever the seed.
    samples = {one.run.network if study.repeat == "seed" else at: one for at, one in cell.made.items()}
    ours = _mean(list(samples.values()), cell.column)
    if cell.printed is None:
        return replace(cell, ours=ours)
    # Groups of data differ for other reasons than chance: their spread explains no difference.
    sample = (ours, len(samples)) if study.repeat in _BY_CHANCE else (Estimate(ours.value), 1)
    found = difference(sample, (cell.printed.value, cell.printed.runs), cell.printed.rounding)
    return replace(cell, ours=ours, difference=found)
