"""The cells of a study: what its records say, what is published, and why a cell is empty."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import sqrt
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from scipy.stats import t as student

from openbench import paths
from openbench.config.constraints import Count, check_value
from openbench.core.record import ResultRecord
from openbench.errors import ConfigError, RecordError, check_known, did_you_mean
from openbench.metrics.selective.risk import UNABLE, SelectiveCurve, TprFpr, least_risk, oscr_selective
from openbench.results.tables.published import reference_rows
from openbench.results.tables.render import Estimate
from openbench.studies.runs import Archive, Made, Wanted, as_defined, merged, state, wanted
from openbench.studies.study import Column, Figures, Row, Study

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
    limit = _limit(*_variance(*ours), *_variance(*published))
    if limit is None:
        return Difference(gap, Verdict.UNKNOWN)
    return Difference(gap, Verdict.WITHIN if abs(gap) <= limit + rounding else Verdict.BEYOND)


def _variance(mean: Estimate, runs: int) -> tuple[float | None, int]:
    """The variance over runs with R − 1 in the denominator, None without a deviation; and R."""
    if mean.std is None or runs < 2:
        return None, runs
    return mean.std**2 * runs / (runs - 1), runs


def _limit(first: float | None, runs: int, second: float | None, others: int) -> float | None:
    """How far two means may be apart by chance; None where no deviation is known."""
    if first is None and second is None:
        return None
    a, b = ((one if one is not None else other or 0.0) for one, other in ((first, second), (second, first)))
    a, b = a / runs, b / others
    if a + b == 0.0:
        return 0.0
    if first is not None and second is not None:
        freedom = (a + b) ** 2 / (a * a / (runs - 1) + b * b / (others - 1))
    else:
        freedom = (runs if first is not None else others) - 1
    return float(student.ppf((1 + _CONFIDENCE) / 2, freedom)) * sqrt(a + b)


_NOTHING = ("", "/", "-", "–")
Line = tuple[str, Mapping[str, str]]  # its place, and its cells


@dataclass(frozen=True)
class Printed:
    """A published figure.

    Args:
        value: a fraction where percentages are printed.
        rounding: half a unit of its last digit.
        runs: how many it is the mean of; 1 where deviations are printed, but not of this one.
    """

    value: Estimate
    rounding: float
    runs: int


class Published:
    """The figures of a study's file.

    Args:
        study: the study; without `published` there are none.
    """

    def __init__(self, study: Study) -> None:
        self._where = f"study '{study.name}'"
        self._of = study.figures
        self._lines: list[Line] = []
        if self._of is not None:
            self._lines = _lines(self._of, study.path.parent, self._where)

    def figure(self, row: Row, column: Column) -> Printed | None:
        """Return what is printed for a cell; None where nothing is.

        Raises:
            ConfigError: several lines of the file fit, or a column that the file does not have.
            RecordError: a cell that is not a number.
        """
        if self._of is None:
            return None
        match = {**self._of.match, **({self._of.row: row.name} if self._of.row else {})}
        match |= {**row.published, **column.published}
        value, std = column.figure or self._of.value, column.std or self._of.std
        known = list(self._lines[0][1]) if self._lines else []
        check_known((*match, value, *([std] if std else [])), known, f"{self._where}: file '{self._of.file}'")
        fits = [line for line in self._lines if all(line[1][key] == text for key, text in match.items())]
        if len({(cells[value], cells.get(std, "")) for _, cells in fits}) > 1:
            told = ", ".join(f"{key} {text}" for key, text in match.items())
            raise ConfigError(
                f"{self._where}: {row.path}, {column.path} — {len(fits)} lines of '{self._of.file}' have {told} — name "
                "another column of the file in `published` of the row or the column"
            )
        return _printed(fits[0], value, std, self._of) if fits else None


def _lines(of: Figures, folder: Path, where: str) -> list[Line]:
    """The lines of a file beside the study, or of the reference files that openbench ships."""
    for place in (folder, paths.reference_dir()):
        if (place / of.file).is_file():
            return list(reference_rows(place, of.file))
    known = sorted(file.name for file in paths.reference_dir().glob("*.csv"))
    raise ConfigError(
        f"{where}: published: file '{of.file}' is neither in '{folder}' nor among the reference files"
        f"{did_you_mean(of.file, known)} — available: {', '.join(known)}"
    )


def _printed(line: Line, value: str, std: str, of: Figures) -> Printed | None:
    where, cells = line
    if cells[value] in _NOTHING:
        return None
    scale = 0.01 if of.percent else 1.0
    try:
        number = float(cells[value]) * scale
        spread = float(cells[std]) * scale if std and cells[std] not in _NOTHING else 0.0
    except ValueError as error:
        raise RecordError(f"{where}: found {cells[value]!r} — allowed: a number, '/' or nothing") from error
    # A deviation of exactly 0 marks a single run.
    runs = of.runs if spread or not std else 1
    return Printed(Estimate(number, std=spread or None), _half(cells[value]) * scale, runs)


def _half(text: str) -> float:
    """Half a unit of the last digit of a number."""
    return float(0.5 * 10.0 ** -len(text.partition(".")[2]))


_LEVEL = 0.95  # of the intervals that are shown where there is a choice
_BY_CHANCE = ("seed", "benchmark.draw")  # keys over whose values numbers vary by chance
NO_RECORD = "not run yet"
_OTHERWISE = "its config defines the benchmark otherwise than the config files do"
States = Mapping[str, str]  # by form of a benchmark
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
            for value in column.seeds:
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


def archive_of(study: Study, asked: Asked, records: Iterable[ResultRecord]) -> Archive:
    """Return what the study needs of records."""
    kept = {(column.set, column.key + end) for column in study.columns for end in ("", "_low", "_high")}
    keys = {key for runs in planned(study, asked).values() for run in runs.values() for key in run.values}
    return Archive.of(records, keys, lambda name, key: (name, key) in kept)


def states_of(runs: Iterable[Mapping[str, Wanted]], archive: Archive, asked: Asked) -> States:
    """Return the state of each benchmark that a table shows: as defined, else that of the most runs of the study.

    Args:
        runs: of each cell, from `planned`.
        archive: the records.
        asked: on the command line.
    """
    found: dict[str, dict[str, list[bool]]] = {}
    for run in {id(run): run for many in runs for run in many.values()}.values():
        for one in archive.fitting(run):
            defined = as_defined(one, run)
            if defined or asked.incomplete:
                found.setdefault(run.form, {}).setdefault(state(one, run), []).append(defined)
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
    deviations = {text for one in kept.values() for text in one.run.deviations}
    if any(one.run.pristine and one.form != cell.runs[at].form for at, one in kept.items()):
        deviations.add(_OTHERWISE)
    return replace(cell, made=kept, deviations=tuple(sorted(deviations)))


def _chosen(run: Wanted, archive: Archive, states: States) -> Made | str:
    """The record of a run, or why there is none for the table."""
    if run.refused:
        return run.refused
    fitting = archive.fitting(run)
    kept = [one for one in fitting if state(one, run) == states.get(run.form)]
    if len({one.run.row for one in kept}) > 1:
        ids = ", ".join(sorted(one.run.run_id for one in kept))
        return f"records of several settings fit ({ids}): add the override that tells them apart"
    if kept:
        return max(kept, key=lambda one: (one.run.level == _LEVEL, one.run.run_id))
    if not fitting:
        return NO_RECORD if archive.of_benchmark(run.benchmark) else f"nothing was run on {run.benchmark} yet"
    if not any(as_defined(one, run) for one in fitting):
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
        ConfigError: a row or a column that the problem does not have.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199, section 5.1.
    """
    where = f"study '{study.name}'"
    mean, samples = study.options.get("ood_mean", 2.0), study.options.get("samples", 400_000)
    check_value(mean, float, f"{where}: options.ood_mean")
    check_value(samples, Count, f"{where}: options.samples")
    ids, losses, ood = _sample(samples, float(mean))
    published, found = Published(study), []
    for row in study.rows:
        a, b = _weights(row, where)
        curve = SelectiveCurve.of(a * ids[0] + b * ids[1], losses, a * ood[0] + b * ood[1])
        found.append([_cell(study, row, at, curve, published) for at in range(len(study.columns))])
    return found


def _cell(study: Study, row: Row, at: int, curve: SelectiveCurve, published: Published) -> Cell:
    column = study.columns[at]
    if column.key not in _METRICS:
        raise ConfigError(
            f"study '{study.name}': columns.{column.path} — found '{column.key}' — allowed: {', '.join(_METRICS)}"
        )
    value, printed = _METRICS[column.key](curve), published.figure(row, column)
    if isinstance(value, str):
        return Cell(row, column, printed=printed, reason=f"{value}: no threshold meets both bounds")
    ours = Estimate(float(value))
    gap = difference((ours, 1), (printed.value, 1), printed.rounding) if printed else None
    return Cell(row, column, ours=ours, printed=printed, difference=gap)


def _weights(row: Row, where: str) -> tuple[float, float]:
    given = dict(word.split("=", 1) for word in row.run if "=" in word)
    try:
        a, b = (float(given[name]) for name in _SCORES)
    except (KeyError, ValueError) as error:
        found = " ".join(row.run)
        raise ConfigError(f"{where}: rows.{row.name} — found '{found}' — allowed: e.g. [r=1, g=0.2]") from error
    return a, b


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
