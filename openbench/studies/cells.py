"""The cells of a study: the mean over the records of its runs, the published figure, and why a cell is empty."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t as student

from openbench import paths
from openbench.config.overrides import ATTACK
from openbench.errors import ConfigError, check_choice, check_known, not_found
from openbench.metrics.selective.risk import UNABLE, SelectiveCurve, TprFpr, least_risk, oscr_selective
from openbench.results.frame import Keep, Run
from openbench.results.leaderboard.ranking import mean_over
from openbench.results.tables.published import number_in, reference_rows
from openbench.results.tables.render import Estimate
from openbench.studies.runs import PlannedRun, Records, merged, planned_run
from openbench.studies.study import Column, Row, Study

_CONFIDENCE = 0.95
Sample = tuple[Estimate, int]  # a mean over runs, and how many


class Verdict(StrEnum):
    """What is known of a difference; the value is how a table marks it."""

    ROUNDING = "="  # no larger than rounding of what is printed
    WITHIN = "~"  # no larger than seeds differ
    BEYOND = "*"  # larger than seeds differ
    UNKNOWN = "?"  # nothing is known of how seeds differ


@dataclass(frozen=True)
class Difference:
    """Ours less the published figure.

    Args:
        value: the difference.
        verdict: what is known of it.
    """

    value: float
    verdict: Verdict


def difference(ours: Sample, published: Sample, rounding: float) -> Difference:
    """Return the difference of two means over runs, by Welch's test where both deviations are known.

    Beyond the spread is |d| > t(.975, ν)·√(s²/R + s'²/R') + rounding, where s and s' are the deviations over runs
    (R − 1 in the denominator) and ν Welch and Satterthwaite's degrees of freedom. Where only one deviation is known, it
    stands for both, and ν is that of its runs.

    Args:
        ours: a mean over runs with its population deviation, if that is known, and how many runs there are.
        published: likewise.
        rounding: half a unit of the last printed digit.

    Reference: Welch, Biometrika 34 (1947).
    """
    gap = ours[0].value - published[0].value
    if abs(gap) <= rounding * (1 + 1e-9):
        return Difference(gap, Verdict.ROUNDING)
    sides = (ours, published)
    known = [(mean.std**2 * n / (n - 1), n) for mean, n in sides if mean.std is not None and n > 1]
    if not known:
        return Difference(gap, Verdict.UNKNOWN)
    # Squared errors of both means; a variance that is known on one side only stands for both.
    a, b = known[0][0] / ours[1], known[-1][0] / published[1]
    freedom = known[0][1] - 1.0
    if len(known) == 2 and a + b:
        freedom = (a + b) ** 2 / (a * a / (ours[1] - 1) + b * b / (published[1] - 1))
    limit = float(student.ppf((1 + _CONFIDENCE) / 2, freedom)) * sqrt(a + b)
    return Difference(gap, Verdict.WITHIN if abs(gap) <= limit + rounding else Verdict.BEYOND)


_NOTHING = ("", "/", "-", "–")


@dataclass(frozen=True)
class PublishedFigure:
    """A published figure.

    Args:
        value: a fraction where percentages are printed.
        rounding: half a unit of its last digit.
        runs: how many it is the mean of; 1 where deviations are printed, but not of this one.
    """

    value: Estimate
    rounding: float
    runs: int


class PublishedTable:
    """The figures in a study's file; none without `published`.

    Args:
        study: any.

    Raises:
        ConfigError: there is no such file.
    """

    def __init__(self, study: Study) -> None:
        self._source, self._where = study.figures, f"study '{study.name}'"
        self._lines: list[tuple[str, Mapping[str, str]]] = []  # the place of each line, and its cells
        if self._source is None:
            return
        folders, name = (study.path.parent, paths.reference_dir()), self._source.file
        folder = next((folder for folder in folders if (folder / name).is_file()), None)
        if folder is None:
            what = f"{self._where}: published: file '{name}' not found in '{study.path.parent}' or the reference files"
            raise ConfigError(not_found(what, name, sorted(file.name for file in folders[1].glob("*.csv"))))
        self._lines = list(reference_rows(folder, name))

    def figure(self, row: Row, column: Column) -> PublishedFigure | None:
        """Return the figure for a cell; None where nothing is printed.

        Raises:
            ConfigError: several lines of the file match, or a column that the file does not have.
            RecordError: a cell that is not a number.
        """
        source = self._source
        if source is None:
            return None
        match = source.match | ({source.row: row.name} if source.row else {}) | row.published | column.published
        value, std = column.figure or source.value, column.std or source.std
        titles = list(self._lines[0][1]) if self._lines else []
        check_known((*match, value, *([std] if std else [])), titles, f"{self._where}: file '{source.file}'")
        lines = [line for line in self._lines if all(line[1][key] == text for key, text in match.items())]
        if len({(cells[value], cells.get(std, "")) for _, cells in lines}) > 1:
            keys = ", ".join(f"{key} {text}" for key, text in match.items())
            raise ConfigError(
                f"{self._where}: {row.path}, {column.path}: {len(lines)} lines of '{source.file}' have {keys} — name "
                "another column of the file in `published` of the row or the column"
            )
        if not lines or lines[0][1][value] in _NOTHING:
            return None
        where, cells = lines[0]
        scale = 0.01 if source.percent else 1.0
        spread = 0.0 if cells.get(std, "") in _NOTHING else number_in(cells[std], where) * scale
        printed = Estimate(number_in(cells[value], where) * scale, std=spread or None)
        half = 0.5 * 10.0 ** -len(cells[value].partition(".")[2])
        # A deviation of exactly 0 marks a single run.
        return PublishedFigure(printed, half * scale, source.runs if spread or not std else 1)


_LEVEL = 0.95  # of the intervals that are shown where there is a choice
_BY_CHANCE = ("seed", "benchmark.draw")  # keys over whose values numbers vary by chance
NO_RECORD = "not run yet"
NOT_PUBLISHED = "not in the published table"
PlannedCells = Mapping[tuple[str, str], Mapping[str, PlannedRun]]  # {(row, column): {value of the repeated key: run}}


@dataclass(frozen=True)
class Cell:
    """One cell.

    Args:
        row: its row.
        column: its column.
        runs: {value of the repeated key: run}; empty if the study has no cell here.
        records: those of the runs that exist, likewise.
        ours: the mean over them, with their deviation; with the interval of a single one.
        published: the published figure.
        difference: ours less that.
        reason: why there is no number of ours; empty if there is one.
        deviations: how the benchmark of its records differs from its definition.
    """

    row: Row
    column: Column
    runs: Mapping[str, PlannedRun] = field(default_factory=dict)
    records: Mapping[str, Run] = field(default_factory=dict)
    ours: Estimate | None = None
    published: PublishedFigure | None = None
    difference: Difference | None = None
    reason: str = ""
    deviations: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, float]:
        """Its number in each record, by the value of the repeated key."""
        numbers = {at: number(record, self.column) for at, record in self.records.items()}
        return {at: value for at, value in numbers.items() if isinstance(value, float | int)}

    @property
    def incomplete(self) -> bool:
        """Whether some of its runs have no record."""
        return bool(self.records) and len(self.records) < len(self.runs)


@dataclass(frozen=True)
class StudyOptions:
    """What the command line adds to a study.

    Args:
        overrides: of all runs, after the study's.
        incomplete: whether records of benchmarks with missing images count.
        config_dir: the user's folder of group files.
    """

    overrides: tuple[str, ...] = ()
    incomplete: bool = False
    config_dir: Path | None = None


def number(run: Run, column: Column) -> float | int | str | None:
    """Return the number of a record for a column; None if it has none."""
    return run.metrics.get(column.set, {}).get(column.key)


def needed(study: Study) -> Keep:
    """Return which numbers of records a study shows."""
    keys = {(column.set, column.key + end) for column in study.columns for end in ("", "_low", "_high")}
    return lambda name, key: (name, key) in keys


def planned(study: Study, options: StudyOptions) -> PlannedCells:
    """Return the runs of every cell that the study has.

    Raises:
        ConfigError: overrides that name no benchmark, or that are not those of a run.
    """
    published, planned_cells = PublishedTable(study), dict[tuple[str, str], dict[str, PlannedRun]]()
    runs: dict[tuple[str, ...], PlannedRun] = {}
    for row in study.rows if study.layout != "mixture" else ():
        for column in study.columns:
            if why_not(study, row, column, published):
                continue
            cell = planned_cells.setdefault((row.path, column.path), {})
            for value in column.seeds:
                there = next((row.there[key] for key in column.places if key in row.there), ())
                repeated = [f"{study.repeat}={value}"]
                words = merged(study.run, column.run, row.run, there, repeated, options.overrides)
                if words not in runs:
                    where = f"study '{study.name}': {row.path}, {column.path}"
                    runs[words] = planned_run(words, where, options.config_dir)
                at = next((v.partition("=")[2] for v in words if v.partition("=")[0] == study.repeat), value)
                cell.setdefault(at, runs[words])
    return planned_cells


def why_not(study: Study, row: Row, column: Column, published: PublishedTable) -> str:
    """Return why the study has no cell in a row and column; empty if it has one."""
    stated = next((row.without[key] for key in (*column.places, "") if key in row.without), "")
    if stated:
        return stated
    return NOT_PUBLISHED if study.only_published and published.figure(row, column) is None else ""


def cells(study: Study, options: StudyOptions, records: Records) -> list[list[Cell]]:
    """Return the cells, row by row.

    Args:
        study: any, narrowed or not.
        options: of the command line.
        records: of the results folder.
    """
    published, runs = PublishedTable(study), planned(study, options)
    states = states_of(runs, records, options)

    def cell(row: Row, column: Column) -> Cell:
        figure = published.figure(row, column)
        empty = Cell(row, column, runs.get((row.path, column.path), {}), published=figure)
        reason = why_not(study, row, column, published)
        return replace(empty, reason=reason) if reason else _compared(_filled(empty, records, states), study)

    return [[cell(row, column) for column in study.columns] for row in study.rows]


def empty_cells(grid: Sequence[Sequence[Cell]]) -> dict[str, list[Cell]]:
    """Return {why there is no number: the cells}, but for cells that a study does not have."""
    empty: dict[str, list[Cell]] = {}
    for cell in (cell for line in grid for cell in line if cell.reason not in ("", NOT_PUBLISHED)):
        empty.setdefault(cell.reason, []).append(cell)
    return empty


def without(grid: Sequence[Sequence[Cell]]) -> list[str]:
    """Return a line for each reason why cells are empty, with all of them."""
    named = {why: ", ".join(f"{c.row.name} ({c.column.name})" for c in some) for why, some in empty_cells(grid).items()}
    return [f"without, {reason}: {names}" for reason, names in named.items()]


def states_of(runs: PlannedCells, records: Records, options: StudyOptions) -> dict[str, str]:
    """Return {key of a benchmark: the digest of its images that the table shows}.

    That of the benchmark as defined, or, where incomplete ones count, that of most runs.

    Args:
        runs: of each cell.
        records: of the results folder.
        options: of the command line.
    """
    counts: dict[str, dict[str, list[bool]]] = {}
    for run in {id(run): run for many in runs.values() for run in many.values()}.values():
        for record in records.matching(run):
            if record.pristine or options.incomplete:
                counts.setdefault(run.benchmark_key, {}).setdefault(record.digest, []).append(record.pristine)
    return {
        key: max(states, key=lambda state: (any(states[state]), len(states[state]), state))
        for key, states in counts.items()
    }


def _filled(cell: Cell, records: Records, states: Mapping[str, str]) -> Cell:
    """The cell with its records, or with the reason why it is empty."""
    chosen = {at: _record_of(run, records, states) for at, run in cell.runs.items()}
    existing = {at: record for at, record in chosen.items() if isinstance(record, Run)}
    if not existing:
        return replace(cell, reason=next((why for why in chosen.values() if isinstance(why, str)), NO_RECORD))
    if not cell.column.key:  # the layout brings its numbers
        return replace(cell, records=existing)
    numbers = {at: number(record, cell.column) for at, record in existing.items()}
    with_number = {at: existing[at] for at, value in numbers.items() if isinstance(value, float | int)}
    if not with_number:
        unable = UNABLE in numbers.values()
        what = f"{UNABLE}: no threshold meets its bounds" if unable else f"its records have no {cell.column.key}"
        return replace(cell, records=existing, reason=f"{what} ({cell.column.set})")
    deviations = sorted({text for record in with_number.values() for text in record.deviations})
    return replace(cell, records=with_number, deviations=tuple(deviations))


def _record_of(run: PlannedRun, records: Records, states: Mapping[str, str]) -> Run | str:
    """The record of a run, or why there is none for the table."""
    if run.refused:
        return run.refused
    matching = records.matching(run)
    # Attacked images depend on the network and the method, so that each run has a digest of its own.
    attacked = ATTACK in run.names
    shown = [record for record in matching if attacked or record.digest == states.get(run.benchmark_key)]
    if len({record.row for record in shown}) > 1:
        ids = ", ".join(sorted(record.run_id for record in shown))
        return f"records of several settings match ({ids}): add the override that distinguishes them"
    if shown:
        return max(shown, key=lambda record: (record.level == _LEVEL, record.run_id))
    if not matching:
        return NO_RECORD if records.of_benchmark(run.benchmark) else f"nothing was run on {run.benchmark} yet"
    if not any(record.pristine for record in matching):
        return f"run on {run.benchmark}, but not as defined (--allow incomplete shows it)"
    return f"run on another state of {run.benchmark}"


def _compared(cell: Cell, study: Study) -> Cell:
    """The cell with its mean and, where a figure is published, the difference."""
    if not cell.records or cell.reason:
        return cell
    # Released weights are one network, whatever the seed.
    samples = {run.network if study.repeat == "seed" else at: run for at, run in cell.records.items()}
    ours, figure = mean_over(list(samples.values()), cell.column.set, cell.column.key), cell.published
    if not isinstance(ours, Estimate):
        return cell  # the layout brings its numbers
    if figure is None:
        return replace(cell, ours=ours)
    # Groups of data differ for other reasons than chance: their spread explains no difference.
    sample = (ours, len(samples)) if study.repeat in _BY_CHANCE else (Estimate(ours.value), 1)
    return replace(cell, ours=ours, difference=difference(sample, (figure.value, figure.runs), figure.rounding))


_WEIGHTS, _MEANS, _OOD_DEVIATION = np.array([0.3, 0.3, 0.4]), np.array([-1.0, 1.0, 3.0]), float(np.sqrt(0.2))
_PRIOR = 0.25  # of OOD
_BOUND = TprFpr(0.7, 0.2)
_SCORES = ("r", "g")
Floats = NDArray[np.float64]

_METRICS: dict[str, Callable[[SelectiveCurve], float | str]] = {
    "auroc": lambda curve: curve.pair.auroc(),
    "aupr_in": lambda curve: curve.pair.aupr_in.trapezoid,
    "oscr_selective": oscr_selective,
    "risk@tpr0.7,fpr0.2": lambda curve: found if isinstance(found := least_risk(curve, _BOUND), str) else found.value,
}


def mixture_cells(study: Study) -> list[list[Cell]]:
    """Return the cells of a study with the layout `mixture`: metrics of a large sample, drawn with seed 0.

    A quarter of all inputs are OOD, p_I = .3 N(−1, 1) + .3 N(1, 1) + .4 N(3, 1), p_O = N(m, .2). The scores are
    a·r + b·g of r, the risk of the Bayes classifier given the input, and g = p_O / p_I; a row's `run` says a and b as
    `r=1` and `g=0.2`.

    Args:
        study: with the options `ood_mean` (m) and `samples`, the number of ID inputs.

    Raises:
        ConfigError: a column that the problem does not have.
        RecordError: a row without a and b.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199, section 5.1.
    """
    where = f"study '{study.name}'"
    mean, samples = float(study.options.get("ood_mean", 2.0)), study.options.get("samples", 400_000)
    ids, losses, ood = _sample(samples, mean)
    published, grid = PublishedTable(study), list[list[Cell]]()
    for row in study.rows:
        weights = dict(word.partition("=")[::2] for word in row.run)
        a, b = (number_in(weights.get(name, ""), f"{where}: rows.{row.name}: {name}") for name in _SCORES)
        curve = SelectiveCurve.of(a * ids[0] + b * ids[1], losses, a * ood[0] + b * ood[1])
        grid.append([])
        for column in study.columns:
            check_choice(f"{where}: columns.{column.path}", column.key, list(_METRICS))
            value, figure = _METRICS[column.key](curve), published.figure(row, column)
            ours = None if isinstance(value, str) else Estimate(float(value))
            reason = "" if ours else f"{value}: no threshold meets both bounds"
            gap = difference((ours, 1), (figure.value, 1), figure.rounding) if ours and figure else None
            grid[-1].append(Cell(row, column, ours=ours, published=figure, difference=gap, reason=reason))
    return grid


def _sample(size: int, mean: float) -> tuple[Sequence[Floats], Floats, Sequence[Floats]]:
    """Both scores of ID inputs, their losses, and both scores of OOD inputs."""
    rng = np.random.default_rng(0)
    y = rng.choice(len(_MEANS), size, p=_WEIGHTS)
    x = rng.normal(_MEANS[y])
    classes = _densities(x)
    losses = (classes.argmax(axis=0) != y).astype(np.float64)
    outside = rng.normal(mean, _OOD_DEVIATION, round(size * _PRIOR / (1 - _PRIOR)))
    return _ideal(x, mean), losses, _ideal(outside, mean)


def _densities(x: Floats) -> Floats:
    """(3, n) densities of the classes, weighted."""
    return np.asarray(_WEIGHTS[:, None] * norm.pdf(x, _MEANS[:, None]))


def _ideal(x: Floats, mean: float) -> tuple[Floats, Floats]:
    classes = _densities(x)
    return 1 - classes.max(axis=0) / classes.sum(axis=0), norm.pdf(x, mean, _OOD_DEVIATION) / classes.sum(axis=0)
