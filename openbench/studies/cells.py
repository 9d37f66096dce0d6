"""The cells of a study: the mean over the records of its runs, the published figure, and why a cell is empty."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import pi, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

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
# Mark of what is known of a difference → what programs call it, and what it says.
VERDICTS = {
    "=": ("rounding", "no larger than rounding of what is printed"),
    "~": ("within seeds", "no larger than seeds differ (95 %)"),
    "*": ("beyond seeds", "beyond the spread of seeds (95 %)"),
    "?": ("spread not known", "the spread of seeds is not known on either side"),
}


@dataclass(frozen=True)
class PublishedFigure:
    """A published figure.

    Args:
        value: a fraction where percentages are printed.
        rounding: half a unit of its last digit.
        runs: how many it is the mean of; 1 where deviations are printed, but not of this one.
    """

    value: Estimate
    rounding: float = 0.0
    runs: int = 1


@dataclass(frozen=True)
class Difference:
    """Ours less the published figure.

    Args:
        value: the difference.
        verdict: one of VERDICTS.
    """

    value: float
    verdict: str


def difference(ours: Estimate, runs: int, published: PublishedFigure) -> Difference:
    """Return the difference of two means over runs, by Welch's test where both deviations are known.

    Beyond the spread is |d| > t(.975, ν)·√(s²/R + s'²/R') + rounding, where s and s' are the deviations over runs
    (R − 1 in the denominator) and ν Welch and Satterthwaite's degrees of freedom. Where only one deviation is known, it
    stands for both, and ν is that of its runs.

    Args:
        ours: a mean over runs with its population deviation, if that is known.
        runs: how many.
        published: likewise.

    Reference: Welch, Biometrika 34 (1947).
    """
    gap = ours.value - published.value.value
    if abs(gap) <= published.rounding * (1 + 1e-9):
        return Difference(gap, "=")
    sides = ((ours, runs), (published.value, published.runs))
    known = [(mean.std**2 * n / (n - 1), n) for mean, n in sides if mean.std is not None and n > 1]
    if not known:
        return Difference(gap, "?")
    # Squared errors of both means; a variance that is known on one side only stands for both.
    a, b = known[0][0] / runs, known[-1][0] / published.runs
    freedom = known[0][1] - 1.0
    if len(known) == 2 and a + b:
        freedom = (a + b) ** 2 / (a * a / (runs - 1) + b * b / (published.runs - 1))
    limit = float(stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * sqrt(a + b)
    return Difference(gap, "~" if abs(gap) <= limit + published.rounding else "*")


_LEVEL = 0.95  # of the intervals that are shown where there is a choice
_BY_CHANCE = ("seed", "benchmark.draw")  # keys over whose values numbers vary by chance
NO_RECORD = "not run yet"
NOT_PUBLISHED = "not in the published table"


@dataclass(frozen=True)
class Cell:
    """One cell.

    Args:
        row: its row.
        column: its column.
        published: the published figure.
        reason: why there is no number of ours; empty if there is one.
        runs: {value of the repeated key: run}; empty if the study has no cell here.
        records: those of the runs that exist, likewise.
        ours: the mean over them, with their deviation; with the interval of a single one.
        difference: ours less the published figure.
        deviations: how the benchmark of its records differs from its definition.
    """

    row: Row
    column: Column
    published: PublishedFigure | None = None
    reason: str = ""
    runs: Mapping[str, PlannedRun] = field(default_factory=dict)
    records: Mapping[str, Run] = field(default_factory=dict)
    ours: Estimate | None = None
    difference: Difference | None = None
    deviations: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, float]:
        """Its number in each record, by the value of the repeated key."""
        numbers = {at: run.metrics.get(self.column.set, {}).get(self.column.key) for at, run in self.records.items()}
        return {at: value for at, value in numbers.items() if isinstance(value, float | int)}

    @property
    def incomplete(self) -> bool:
        """Whether some of its runs have no record."""
        return bool(self.records) and len(self.records) < len(self.runs)


Grid = Sequence[Sequence[Cell]]  # row by row


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


def needed(study: Study) -> Keep:
    """Return which numbers of records a study shows."""
    keys = {(column.set, column.key + end) for column in study.columns for end in ("", "_low", "_high")}
    return lambda name, key: (name, key) in keys


def planned(study: Study, options: StudyOptions) -> Grid:
    """Return the cells with their runs and published figures, without records.

    Raises:
        ConfigError: overrides that name no benchmark or are not those of a run, or figures that cannot be found.
        RecordError: a figure that is not a number.
    """
    lines, runs = _figure_lines(study), dict[tuple[str, ...], PlannedRun]()
    lines_by = cache(partial(_by_cells, lines))  # tables of a thousand cells are found among thousands of lines

    def runs_of(row: Row, column: Column) -> Iterator[tuple[str, PlannedRun]]:
        there = next((row.there[key] for key in column.places if key in row.there), ())
        for value in column.seeds if study.layout != "mixture" else ():
            repeated = [f"{study.repeat}={value}"]
            words = merged(study.run, column.run, row.run, there, repeated, options.overrides)
            if words not in runs:
                where = f"study '{study.name}': {row.path}, {column.path}"
                runs[words] = planned_run(words, where, options.config_dir)
            at = next((v.partition("=")[2] for v in words if v.partition("=")[0] == study.repeat), value)
            yield at, runs[words]

    def cell(row: Row, column: Column) -> Cell:
        figure = _figure(study, lines[0][1], lines_by, row, column) if lines else None
        reason = next((row.without[key] for key in (*column.places, "") if key in row.without), "")
        if not reason and study.only_published and figure is None:
            reason = NOT_PUBLISHED
        return Cell(row, column, figure, reason, {} if reason else dict(runs_of(row, column)))

    return [[cell(row, column) for column in study.columns] for row in study.rows]


def different_runs(grid: Grid) -> list[PlannedRun]:
    """Return every run of some cells once."""
    return list({run.words: run for line in grid for cell in line for run in cell.runs.values()}.values())


def cells(study: Study, options: StudyOptions, records: Records) -> Grid:
    """Return the cells, row by row.

    Args:
        study: any, narrowed or not.
        options: of the command line.
        records: of the results folder.

    Raises:
        ConfigError: as for `planned`.
    """
    grid = planned(study, options)
    if study.layout == "mixture":
        return _mixture(study, grid)
    states = states_of(different_runs(grid), records, options)
    return [[cell if cell.reason else _filled(cell, study, records, states) for cell in line] for line in grid]


def empty_cells(grid: Grid) -> dict[str, list[Cell]]:
    """Return {why there is no number: the cells}, but for cells that a study does not have."""
    empty: dict[str, list[Cell]] = {}
    for cell in (cell for line in grid for cell in line if cell.reason not in ("", NOT_PUBLISHED)):
        empty.setdefault(cell.reason, []).append(cell)
    return empty


def without(grid: Grid) -> list[str]:
    """Return a line for each reason why cells are empty, with all of them."""
    named = {why: ", ".join(f"{c.row.name} ({c.column.name})" for c in some) for why, some in empty_cells(grid).items()}
    return [f"without, {reason}: {names}" for reason, names in named.items()]


def states_of(runs: Sequence[PlannedRun], records: Records, options: StudyOptions) -> dict[str, str]:
    """Return {key of a benchmark: the digest of its images that the table shows}.

    That of the benchmark as defined, or, where incomplete ones count, that of most runs.
    """
    counts: dict[str, dict[str, list[bool]]] = {}
    for run in runs:
        for record in records.matching(run):
            if record.pristine or options.incomplete:
                counts.setdefault(run.benchmark_key, {}).setdefault(record.digest, []).append(record.pristine)
    return {
        key: max(states, key=lambda state: (any(states[state]), len(states[state]), state))
        for key, states in counts.items()
    }


def shown_records(run: PlannedRun, records: Records, states: Mapping[str, str]) -> list[Run]:
    """Return the records of a run on the state of its benchmark that the table shows."""
    # Attacked images depend on the network and the method, so that each run has a digest of its own.
    attacked, state = ATTACK in run.names, states.get(run.benchmark_key)
    return [record for record in records.matching(run) if attacked or record.digest == state]


def _filled(cell: Cell, study: Study, records: Records, states: Mapping[str, str]) -> Cell:
    """The cell with its records, their mean and its difference, or with the reason why it is empty."""
    chosen = {at: _record_of(run, records, states) for at, run in cell.runs.items()}
    existing = {at: record for at, record in chosen.items() if isinstance(record, Run)}
    if not existing:
        return replace(cell, reason=next((why for why in chosen.values() if isinstance(why, str)), NO_RECORD))
    name, key, found = cell.column.set, cell.column.key, replace(cell, records=existing)
    if not key:  # the layout brings its numbers
        return found
    having = {at: existing[at] for at in found.values}
    # Released weights are one network, whatever the seed.
    samples = {run.network if study.repeat == "seed" else at: run for at, run in having.items()}
    ours = mean_over(list(samples.values()), name, key) if samples else None
    if not isinstance(ours, Estimate):
        unable = any(run.metrics.get(name, {}).get(key) == UNABLE for run in existing.values())
        what = f"{UNABLE}: no threshold meets its bounds" if unable else f"its records have no {key}"
        return replace(found, reason=f"{what} ({name})")
    deviations = tuple(sorted({text for run in having.values() for text in run.deviations}))
    found = replace(found, records=having, ours=ours, deviations=deviations)
    if cell.published is None:
        return found
    # Groups of data differ for other reasons than chance: their spread explains no difference.
    sample = (ours, len(samples)) if study.repeat in _BY_CHANCE else (Estimate(ours.value), 1)
    return replace(found, difference=difference(*sample, cell.published))


def _record_of(run: PlannedRun, records: Records, states: Mapping[str, str]) -> Run | str:
    """The record of a run, or why there is none for the table."""
    if run.refused:
        return run.refused
    matching, shown = records.matching(run), shown_records(run, records, states)
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


_NOTHING = ("", "/", "-", "–")
_FigureLines = Sequence[tuple[str, Mapping[str, str]]]  # the place of each line of a file, and its cells
_LinesBy = Mapping[tuple[str | None, ...], _FigureLines]


def _figure_lines(study: Study) -> _FigureLines:
    """The lines of the study's file of figures; none without `published`."""
    if study.figures is None:
        return []
    folders, name = (study.path.parent, paths.reference_dir()), study.figures.file
    folder = next((folder for folder in folders if (folder / name).is_file()), None)
    if folder is None:
        what = f"study '{study.name}': published: file '{name}' not found in '{folders[0]}' or the reference files"
        raise ConfigError(not_found(what, name, sorted(file.name for file in folders[1].glob("*.csv"))))
    return list(reference_rows(folder, name))


def _by_cells(every: _FigureLines, columns: tuple[str, ...]) -> _LinesBy:
    """The lines by what stands in some columns."""
    found: dict[tuple[str | None, ...], list[tuple[str, Mapping[str, str]]]] = {}
    for line in every:
        found.setdefault(tuple(map(line[1].get, columns)), []).append(line)
    return found


def _figure(
    study: Study, titles: Iterable[str], lines_by: Callable[..., _LinesBy], row: Row, column: Column
) -> PublishedFigure | None:
    """The figure for a cell; None where nothing is printed."""
    source, where = study.figures, f"study '{study.name}'"
    if source is None:
        return None
    match = source.match | ({source.row: row.name} if source.row else {}) | row.published | column.published
    value, std = column.figure or source.value, column.std or source.std
    check_known((*match, value, *([std] if std else [])), titles, f"{where}: file '{source.file}'")
    lines = lines_by(tuple(match)).get(tuple(match.values()), [])
    if len({(texts[value], texts.get(std, "")) for _, texts in lines}) > 1:
        what = f"{row.path}, {column.path}: {len(lines)} lines of '{source.file}' have {match}"
        raise ConfigError(f"{where}: {what} — name another column of the file in `published`")
    if not lines or lines[0][1][value] in _NOTHING:
        return None
    place, texts = lines[0]
    scale = 0.01 if source.percent else 1.0
    spread = 0.0 if texts.get(std, "") in _NOTHING else number_in(texts[std], place) * scale
    printed = Estimate(number_in(texts[value], place) * scale, std=spread or None)
    half = 0.5 * 10.0 ** -len(texts[value].partition(".")[2])
    # A deviation of exactly 0 marks a single run.
    return PublishedFigure(printed, half * scale, source.runs if spread or not std else 1)


_WEIGHTS, _MEANS, _OOD_DEVIATION = np.array([0.3, 0.3, 0.4]), np.array([-1.0, 1.0, 3.0]), float(np.sqrt(0.2))
_PRIOR = 0.25  # of OOD
_BOUND = TprFpr(0.7, 0.2)
Floats = NDArray[np.float64]

_METRICS: dict[str, Callable[[SelectiveCurve], float | str]] = {
    "auroc": lambda curve: curve.pair.auroc(),
    "aupr_in": lambda curve: curve.pair.aupr_in.trapezoid,
    "oscr_selective": oscr_selective,
    "risk@tpr0.7,fpr0.2": lambda curve: found if isinstance(found := least_risk(curve, _BOUND), str) else found.value,
}


def _mixture(study: Study, grid: Grid) -> Grid:
    """The cells of a study with the layout `mixture`: metrics of a large sample, drawn with seed 0.

    A quarter of all inputs are OOD, p_I = .3 N(−1, 1) + .3 N(1, 1) + .4 N(3, 1), p_O = N(m, .2). The scores are
    a·r + b·g of r, the risk of the Bayes classifier given the input, and g = p_O / p_I; a row's `run` says a and b as
    `r=1` and `g=0.2`, the options m as `ood_mean` and the number of ID inputs as `samples`.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199, section 5.1.
    """
    where, mean, size = f"study '{study.name}'", study.options.ood_mean, study.options.samples
    for column in study.columns:
        check_choice(f"{where}: columns.{column.path}", column.key, list(_METRICS))
    rng = np.random.default_rng(0)
    y = rng.choice(len(_MEANS), size, p=_WEIGHTS)
    x = rng.normal(_MEANS[y])
    likeliest, *ids = _ideal(x, mean)
    _, *ood = _ideal(rng.normal(mean, _OOD_DEVIATION, round(size * _PRIOR / (1 - _PRIOR))), mean)

    def filled(cell: Cell, curve: SelectiveCurve) -> Cell:
        value = _METRICS[cell.column.key](curve)
        if isinstance(value, str):
            return replace(cell, reason=f"{value}: no threshold meets both bounds")
        ours = Estimate(float(value))
        return replace(cell, ours=ours, difference=difference(ours, 1, cell.published) if cell.published else None)

    found = []
    for line in grid:
        name, weights = line[0].row.name, dict(word.partition("=")[::2] for word in line[0].row.run)
        a, b = (number_in(weights.get(score, ""), f"{where}: rows.{name}: {score}") for score in ("r", "g"))
        curve = SelectiveCurve.of(a * ids[0] + b * ids[1], (likeliest != y) * 1.0, a * ood[0] + b * ood[1])
        found.append([filled(cell, curve) for cell in line])
    return found


def _density(x: Floats, mean: float | Floats, deviation: float = 1.0) -> Floats:
    """The density of a normal distribution."""
    return np.asarray(np.exp(-(((x - mean) / deviation) ** 2) / 2) / sqrt(2 * pi) / deviation)


def _ideal(x: Floats, mean: float) -> tuple[NDArray[np.int64], Floats, Floats]:
    """The likeliest class of inputs, and both scores."""
    classes = _WEIGHTS[:, None] * _density(x, _MEANS[:, None])
    risk = 1 - classes.max(axis=0) / classes.sum(axis=0)
    return classes.argmax(axis=0), risk, _density(x, mean, _OOD_DEVIATION) / classes.sum(axis=0)
