"""The published figures of a study: a row of a CSV for each cell, found by what stands in its columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from openbench import paths
from openbench.errors import ConfigError, RecordError, check_known, did_you_mean
from openbench.results.tables.published import reference_rows
from openbench.results.tables.render import Estimate
from openbench.studies.study import Column, Figures, Row, Study

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
