"""Figures that others have published, read from the reference folder: shown beside ours, never ranked among them."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from openbench.errors import RecordError
from openbench.results.table import Estimate

# Citation of each file that is read, in order of preference: a paper's table before a page that anyone can extend.
SOURCES = {
    "openood_v1.5_table1.csv": "Zhang et al., OpenOOD v1.5, arXiv 2306.09301, table 1",
    "openood_leaderboard.csv": "OpenOOD's leaderboard page, state of 19 July 2025",
}
_NAMES = "names.csv"
FULL_SPECTRUM_SUFFIX = "_fs"
# Table 1 states no architecture per row; these are the paper's.
_TABLE1_BACKBONES = {"cifar10": "ResNet18", "cifar100": "ResNet18", "imagenet200": "ResNet18", "imagenet1k": "ResNet50"}
_TABLE1_POST_HOC = "Post-hoc Inference Methods"


@dataclass(frozen=True)
class Setup:
    """What a figure is about, in our names.

    Args:
        benchmark: e.g. `cifar10`; in the full-spectrum setting with the suffix `_fs`.
        training: e.g. `cross_entropy`.
        backbone: e.g. `resnet18_cifar`.
        method: e.g. `knn`.
    """

    benchmark: str
    training: str
    backbone: str
    method: str


@dataclass(frozen=True)
class Figure:
    """A published result; fractions in [0, 1], None where nothing was printed.

    Args:
        near: near AUROC.
        far: far AUROC.
        accuracy: ID accuracy.
        source: a key of SOURCES.
    """

    near: Estimate | None
    far: Estimate | None
    accuracy: float | None
    source: str


class Names:
    """Published names to ours: one to many, since a score may be known here under two names.

    Args:
        rows: (kind, published, ours, benchmark); an empty benchmark stands for every one.
    """

    def __init__(self, rows: list[tuple[str, str, str, str]]) -> None:
        self._ours: dict[tuple[str, str, str], list[str]] = {}
        for kind, published, ours, benchmark in rows:
            self._ours.setdefault((kind, published, benchmark), []).append(ours)

    def ours(self, kind: str, published: str, benchmark: str) -> list[str]:
        """Return our names; none if the thing does not exist here."""
        plain = benchmark.removesuffix(FULL_SPECTRUM_SUFFIX)
        return [*self._ours.get((kind, published, ""), []), *self._ours.get((kind, published, plain), [])]


def load_published(folder: Path) -> dict[Setup, Figure]:
    """Return every published figure that has a counterpart here; an absent folder or file holds none.

    Raises:
        RecordError: a file lacks a column or holds what is no number.
    """
    names = load_names(folder)
    found: dict[Setup, Figure] = {}
    for setup, figure in (*_table1(folder, names), *_leaderboard(folder, names)):
        found.setdefault(setup, figure)
    return found


def load_names(folder: Path) -> Names:
    """Return which published names are which of ours; an absent file knows none."""
    return Names([(r["kind"], r["published"], r["ours"], r["benchmark"]) for _, r in _rows(folder, _NAMES)])


def _table1(folder: Path, names: Names) -> Iterator[tuple[Setup, Figure]]:
    """Post-hoc rows only: of a training method the table does not say by which score it is judged."""
    source, figures = "openood_v1.5_table1.csv", dict[tuple[str, str], dict[str, Estimate | None]]()
    for where, row in _rows(folder, source):
        if row["group"] == _TABLE1_POST_HOC:
            value = _estimate(row["mean_percent"], row["std_percent"], where)
            figures.setdefault((row["benchmark"], row["method"]), {})[row["metric"]] = value
    for (benchmark, method), values in figures.items():
        accuracy = values.get("id_acc")
        figure = Figure(values.get("near_auroc"), values.get("far_auroc"), _value(accuracy), source)
        published = ("CE", _TABLE1_BACKBONES.get(benchmark, ""), method)
        yield from ((setup, figure) for setup in _setups(benchmark, published, names))


def _leaderboard(folder: Path, names: Names) -> Iterator[tuple[Setup, Figure]]:
    source = "openood_leaderboard.csv"
    for where, row in _rows(folder, source):
        accuracy = _estimate(row["id_acc"], "", where)
        figure = Figure(
            _estimate(row["near_auroc"], row["near_std"], where),
            _estimate(row["far_auroc"], row["far_std"], where),
            _value(accuracy),
            source,
        )
        published = (row["training"], row["architecture"], row["postprocessor"])
        yield from ((setup, figure) for setup in _setups(row["benchmark"], published, names))


def _setups(benchmark: str, published: tuple[str, str, str], names: Names) -> Iterator[Setup]:
    training, backbone, method = published
    for t in names.ours("training", training, benchmark):
        for b in names.ours("backbone", backbone, benchmark):
            for m in names.ours("method", method, benchmark):
                yield Setup(benchmark, t, b, m)


def _estimate(percent: str, std: str, where: str) -> Estimate | None:
    """Fractions of printed percentages; a deviation of exactly 0.00 marks a single run, not agreement of several."""
    if percent in ("", "/"):
        return None
    try:
        value, spread = float(percent) / 100, float(std or 0) / 100
    except ValueError as error:
        raise RecordError(f"{where}: found {percent!r} and {std!r} — allowed: numbers, '/' or nothing") from error
    return Estimate(value, std=spread or None)


def _value(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.value


def _rows(folder: Path, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row of a CSV with its place; nothing if there is no such file."""
    path = folder / name
    if not path.is_file():
        return
    with open(path, encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream), 2):
            if None in row or None in row.values():
                raise RecordError(f"{path}, line {number}: more or fewer cells than the first line has columns")
            yield f"{path}, line {number}", row


def reference_rows(folder: Path, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row of a reference file with its place; nothing if there is no such file.

    Args:
        folder: that of the reference files.
        name: e.g. `reject_option_table2.csv`.

    Raises:
        RecordError: a row with more or fewer cells than there are columns.
    """
    return _rows(folder, name)
