"""Published figures of others, from the reference folder: shown next to ours, never ranked."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from openbench.errors import RecordError
from openbench.results.records.settings import NONE
from openbench.results.tables.render import Estimate, value_of

LEADERBOARD = "openood_leaderboard.csv"
# Citation of each file that is read, in order of preference: a paper's table before a page that anyone can extend.
SOURCES = {
    "openood_v1.5_table1.csv": "Zhang et al., OpenOOD v1.5, arXiv 2306.09301, table 1",
    "openood_v1.5_augmentations.csv": "Zhang et al., OpenOOD v1.5, arXiv 2306.09301, tables 3 and 4",
    LEADERBOARD: "OpenOOD's leaderboard page, state of 19 July 2025",
}
_NAMES = "names.csv"
FULL_SPECTRUM_SUFFIX = "_fs"
# The paper's tables state no architecture per row; these are the paper's.
_PAPER_BACKBONES = {"cifar10": "ResNet18", "cifar100": "ResNet18", "imagenet200": "ResNet18", "imagenet1k": "ResNet50"}
_TABLE1_POST_HOC = "Post-hoc Inference Methods"
_PLAIN_TRAINING = "CE"
_PLAIN_AUGMENTATION = "CrossEntropy"
# ADBench's tables beside the published figures: source, metrics and their titles, and the columns of
# `results/adbench/comparison.csv`, whose first three name a cell.
ADBENCH = "Novello et al., arXiv 2403.11532, tables 6 to 8: ADBench's figures and their conformal correction"
ADBENCH_METRICS = {"auroc": "AUROC", "conformal_auroc": "conformal AUROC"}
ADBENCH_CELL = ("dataset", "method", "metric")
ADBENCH_COLUMNS = {**dict.fromkeys(ADBENCH_CELL, "str"), **dict.fromkeys(("ours", "std"), "float64"), "draws": "int64"}
ADBENCH_COLUMNS |= dict.fromkeys(("published", "difference"), "float64")
Key = tuple[str, str, str]  # benchmark, training, method; or another three names
PaperFigures = Mapping[Key, Mapping[str, float]]


@dataclass(frozen=True)
class Setup:
    """What a figure is about, in our names, or in those of a published row.

    Args:
        benchmark: e.g. `cifar10`; in the full-spectrum setting with the suffix `_fs`.
        training: e.g. `cross_entropy`.
        backbone: e.g. `resnet18_cifar`.
        method: e.g. `knn`.
        augment: e.g. `pixmix`; `none` for crops and flips only.
    """

    benchmark: str
    training: str
    backbone: str
    method: str
    augment: str = NONE


@dataclass(frozen=True)
class Figure:
    """A published result; fractions in [0, 1], None where nothing was printed.

    Args:
        near: near AUROC.
        far: far AUROC.
        accuracy: ID accuracy.
        source: a key of SOURCES.
        outliers: on which outliers the network was trained, or `none`.
    """

    near: Estimate | None
    far: Estimate | None
    accuracy: float | None
    source: str
    outliers: str = NONE


class Names:
    """Published names to ours: one to many, since a score may be known here under two names.

    Args:
        rows: of names.csv. `kind` is method, training, augment, backbone or detector; `published` is empty for the
            method of a table that prints the training only; an empty `benchmark` stands for all, and an empty
            `training` for trainings without a line of their own.
    """

    def __init__(self, rows: Iterable[Mapping[str, str]]) -> None:
        self._ours: dict[tuple[str, str, str, str], list[str]] = {}
        for row in rows:
            key = (row["kind"], row["published"], row["benchmark"], row.get("training", ""))
            self._ours.setdefault(key, []).append(row["ours"])

    def ours(self, kind: str, published: str, benchmark: str, training: str = "") -> list[str]:
        """Return our names; none if the thing does not exist here."""
        plain = benchmark.removesuffix(FULL_SPECTRUM_SUFFIX)
        names = [name for b in ("", plain) for name in self._ours.get((kind, published, b, training), [])]
        return names if names or not training else self.ours(kind, published, benchmark)

    def choices(self, printed: Setup) -> list[list[Any]]:
        """Return our trainings, each with its augmentation, our backbones and our methods, as a printed row names them.

        A published training may be an augmentation, or `TRAINING + AUGMENT`.
        """
        benchmark = printed.benchmark
        first, _, second = printed.training.partition(" + ")
        plain, augments = self.ours("training", first, benchmark), self.ours("augment", second or first, benchmark)
        trainings = [] if second else [(training, NONE) for training in plain]
        trainings += product(plain if second else self.ours("training", _PLAIN_TRAINING, benchmark), augments)
        methods = self.ours("method", printed.method, benchmark, printed.training)
        return [trainings, self.ours("backbone", printed.backbone, benchmark), methods]


def load_published(folder: Path) -> dict[Setup, Figure]:
    """Return every published figure that has a counterpart here; an absent folder or file holds none.

    Raises:
        RecordError: a file lacks a column or has a value that is not a number.
    """
    names, figures = load_names(folder), dict[Setup, Figure]()
    for printed, figure in (*_paper(folder), *_leaderboard(folder)):
        for (training, augment), backbone, method in product(*names.choices(printed)):
            figures.setdefault(Setup(printed.benchmark, training, backbone, method, augment), figure)
    return figures


def published_rows(folder: Path) -> dict[str, list[tuple[Setup, Figure]]]:
    """Return the published rows of every benchmark: those of the leaderboard page, then those that papers add to it.

    Each has its names here, or the printed name of what does not exist here.

    Args:
        folder: of the reference files; without files there are no rows.

    Raises:
        RecordError: as for `load_published`.
    """
    names, rows = load_names(folder), dict[Setup, list[Figure]]()
    for printed, figure in (*_leaderboard(folder), *_paper(folder)):
        unknown: list[Any] = [(printed.training, NONE), printed.backbone, printed.method]
        (training, augment), backbone, method = (
            next(iter(ours), other) for ours, other in zip(names.choices(printed), unknown, strict=True)
        )
        known = rows.setdefault(Setup(printed.benchmark, training, backbone, method, augment), [])
        if figure.source == LEADERBOARD or not known:
            known.append(figure)
    every = [(setup, figure) for setup, figures in rows.items() for figure in figures]
    return {name: [row for row in every if row[0].benchmark == name] for name in sorted({s.benchmark for s in rows})}


def published_name(benchmark: str, *, full_spectrum: bool) -> str:
    """Return how figures name the benchmark of a board.

    A benchmark with csID sets may carry the suffix in its name: its standard side is that of the one without them.
    """
    return benchmark.removesuffix(FULL_SPECTRUM_SUFFIX) + FULL_SPECTRUM_SUFFIX * full_spectrum


def load_names(folder: Path) -> Names:
    """Return which published names mean which of openbench's; without the file there are none."""
    return Names(row for _, row in reference_rows(folder, _NAMES))


def _paper(folder: Path) -> Iterator[tuple[Setup, Figure]]:
    """Table 1 of the paper, and tables 3 and 4 on augmentations, where ID accuracy is printed once for all scores."""
    for source, name_row in (("openood_v1.5_table1.csv", _of_table1), ("openood_v1.5_augmentations.csv", _of_augments)):
        printed: dict[Key, dict[str, Estimate | None]] = {}
        for where, row in reference_rows(folder, source):
            key, percent, std = name_row(row)
            printed.setdefault(key, {})[row["metric"]] = _estimate(percent, std, where)
        for (benchmark, training, method), values in printed.items():
            found = values.get("id_acc") or printed.get((benchmark, training, ""), {}).get("id_acc")
            accuracy, near, far = value_of(found), values.get("near_auroc"), values.get("far_auroc")
            backbone = _PAPER_BACKBONES.get(benchmark.removesuffix(FULL_SPECTRUM_SUFFIX), "")
            if values.keys() - {"id_acc"}:
                yield Setup(benchmark, training, backbone, method), Figure(near, far, accuracy, source)


def _of_table1(row: Mapping[str, str]) -> tuple[Key, str, str]:
    """Benchmark, training and method; percent; deviation. Trainings are judged by the score that names.csv says."""
    post_hoc = row["group"] == _TABLE1_POST_HOC
    training, method = (_PLAIN_TRAINING, row["method"]) if post_hoc else (row["method"], "")
    return (row["benchmark"], training, method), row["mean_percent"], row["std_percent"]


def _of_augments(row: Mapping[str, str]) -> tuple[Key, str, str]:
    """Likewise of a network that was trained with an augmentation."""
    benchmark = row["benchmark"] + FULL_SPECTRUM_SUFFIX * (row["setting"] == "full_spectrum")
    training = _PLAIN_TRAINING if row["augmentation"] == _PLAIN_AUGMENTATION else row["augmentation"]
    return (benchmark, training, "" if row["metric"] == "id_acc" else row["method"]), row["percent"], ""


def _leaderboard(folder: Path) -> Iterator[tuple[Setup, Figure]]:
    for where, row in reference_rows(folder, LEADERBOARD):
        accuracy = value_of(_estimate(row["id_acc"], "", where))
        near, far = (_estimate(row[f"{group}_auroc"], row[f"{group}_std"], where) for group in ("near", "far"))
        outliers = NONE if row["outlier_data"] == "no" else row["outlier_data"]
        figure = Figure(near, far, accuracy, LEADERBOARD, outliers)
        yield Setup(row["benchmark"], row["training"], row["architecture"], row["postprocessor"]), figure


def _estimate(percent: str, std: str, where: str) -> Estimate | None:
    """Fractions of printed percentages; a deviation of exactly 0.00 marks a single run, not agreement of several."""
    if percent in ("", "/"):
        return None
    return Estimate(number_in(percent, where) / 100, std=number_in(std or "0", where) / 100 or None)


def reference_rows(folder: Path, name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row of a reference file with its place; nothing if there is no such file.

    Args:
        folder: that of the reference files.
        name: e.g. `reject_option_table2.csv`.

    Raises:
        RecordError: a row with more or fewer cells than there are columns.
    """
    path = folder / name
    if not path.is_file():
        return
    with open(path, encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream), 2):
            if None in row or None in row.values():
                raise RecordError(f"{path}, line {number}: more or fewer cells than the first line has columns")
            yield f"{path}, line {number}", row


REJECTION_SOURCE = "Franc, Prusa, Paplham, arXiv 2307.05199, table 2"
_PAPERS = "paper_names.csv"


def rejection_figures(folder: Path) -> PaperFigures:
    """Return what the reject-option paper prints by our names of (benchmark, OOD set, method); none without the files.

    Keys, as far as they are printed: `min_tpr` and `max_fpr`, φ_min and ρ_max of the `risk`, which is the selective one
    there; `auroc`; `oscr`, the accuracy among the accepted over FPR. All are fractions.

    Args:
        folder: that of the reference files.

    Raises:
        RecordError: a cell that is not a number, or a name that is not in `paper_names.csv`.
    """
    columns, figures = {"benchmark": "id", "set": "ood", "method": "method"}, dict[Key, dict[str, float]]()
    for where, key_of, row in _figures(folder, "reject_option_table2", columns):
        values = {"risk" if row["metric"] == "selective_risk" else row["metric"]: number_in(row["value"], where)}
        values |= {key: number_in(row[key], where) for key in ("min_tpr", "max_fpr") if row[key]}
        figures.setdefault(key_of, {}).update(values)
    return figures


def rebench_figures(folder: Path) -> PaperFigures:
    """Return {`f1`, `auroc`, `fpr95`, `aupr`} by our names of (collection, training, method); none without the files.

    Args:
        folder: that of the reference files.

    Raises:
        RecordError: a cell that is not a number, or a name that is not in `paper_names.csv`.
    """
    columns = {"benchmark": "case", "training": "method", "method": "method"}
    return {
        key_of: {key: number_in(row[key], where) for key in ("f1", "auroc", "fpr95", "aupr")}
        for where, key_of, row in _figures(folder, "rebenchmarking_tables", columns)
    }


def _figures(folder: Path, table: str, columns: Mapping[str, str]) -> Iterator[tuple[str, Key, Mapping[str, str]]]:
    """Yield place, key in our names, and cells of each row of a table; nothing without the files.

    Args:
        folder: that of the reference files.
        table: its name.
        columns: kind of name → the column that has it; three, in the order of the key.
    """
    known = [row for _, row in reference_rows(folder, _PAPERS) if row["table"] == table]
    names = {(row["kind"], row["published"]): row["ours"] for row in known}
    for where, row in reference_rows(folder, f"{table}.csv") if names else ():
        printed = [(kind, row[column]) for kind, column in columns.items()]
        for kind, published in printed:
            if (kind, published) not in names:
                raise RecordError(f"{where}: {kind} '{published}' is not in {_PAPERS} — add its name here")
        first, second, third = map(names.__getitem__, printed)
        yield where, (first, second, third), row


def number_in(text: str, where: str) -> float:
    """Return the number in a cell of a reference file.

    Raises:
        RecordError: it is not a number; the message names its place.
    """
    try:
        return float(text)
    except ValueError as error:
        raise RecordError(f"{where}: found {text!r} — allowed: a number") from error
