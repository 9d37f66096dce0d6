"""A benchmark of a user's own images, written as a config folder: a yaml file, and a list per split."""

import math
import shlex
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from openbench import paths
from openbench.config.overrides import is_name
from openbench.core.benchmark import check_distinct
from openbench.core.preprocess import Preprocess
from openbench.data.loading import channel_statistics, cropped
from openbench.data.own.images import NO_CLASS, OwnImages, Row, own_path, read_rows
from openbench.data.sources.base import spaced
from openbench.errors import ConfigError, DataError, LeakageError
from openbench.storage.files import write_whole
from openbench.storage.yaml_file import yaml_text

PARTS = ("train", "val", "test")
SHARES = (0.6, 0.1, 0.3)
_SAMPLE = 2000


@dataclass(frozen=True)
class OwnSet:
    """Images for one role.

    Args:
        at: absolute path of their folder or file.
        rows: key and class of each.
        source: what the config of its data set overrides in `sources`.
    """

    at: Path
    rows: tuple[Row, ...]
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that occur, sorted."""
        return tuple(sorted({label for _, label in self.rows} - {NO_CLASS}))


@dataclass(frozen=True)
class OwnBenchmark:
    """What `write` puts into a config folder.

    Args:
        name: what users type after `+benchmark=`.
        id_sets: `train`, `val`, `test`.
        ood: sets by their path, e.g. `near.birds`, `ood_val`.
        corruptions: whether a csID set of corrupted test images is added.
        backbone: config of the network.
        side: height and width of its input.
        epochs: of training; None = the training config's.
        one_class: whether nothing is classified.
    """

    name: str
    id_sets: Mapping[str, OwnSet]
    ood: Mapping[str, OwnSet] = field(default_factory=dict)
    corruptions: bool = False
    backbone: str = "resnet18_cifar"
    side: int = 32
    epochs: int | None = None
    one_class: bool = False

    def __post_init__(self) -> None:
        """Check the name, and that a classifier can be trained and tested on the sets."""
        if not self.name.replace("_", "").isalnum() or not self.name.isascii():
            raise ConfigError(f"benchmark name '{self.name}' — use letters, digits and underscores")
        if (paths.config_dir() / "benchmark" / f"{self.name}.yaml").exists():
            raise ConfigError(f"'{self.name}' is a benchmark that openbench ships — choose another name")
        for what, name in [("benchmark", self.name), *(("set", where.partition(".")[2]) for where in self.ood)]:
            if not is_name(name):
                raise ConfigError(f"{what} name '{name}' is read by yaml as a number or another value — choose another")
        if not any(where.startswith(("near.", "far.")) for where in self.ood):
            raise ConfigError("no OOD test set — give at least one, near or far: NAME=PATH")
        classes, train = self.classes, self.id_sets["train"].at
        if len(classes) < 2 and not self.one_class:
            raise DataError(f"'{train}' has the classes {list(classes)} — at least two are needed")
        check_distinct(classes, f"'{train}'")
        shifted = {where: images for where, images in self.ood.items() if where.startswith("csid.")}
        for part, images in {**self.id_sets, **shifted}.items():
            unknown = sorted({label for _, label in images.rows} - set(classes))
            if unknown:
                raise DataError(f"'{images.at}' ({part}): classes {unknown[:5]} are not among the training classes")
        for where, images in self.ood.items():
            shared = sorted(set(images.classes) & set(classes))
            if shared and where not in shifted:
                raise LeakageError(f"{where} '{images.at}' and ID share the classes {shared[:5]} — remove them")

    @property
    def sets(self) -> dict[str, OwnSet]:
        """All sets by their path below `benchmark`."""
        return {**{f"id.{part}": images for part, images in self.id_sets.items()}, **self.ood}

    @property
    def classes(self) -> tuple[str, ...]:
        """The ID classes in label order."""
        return self.id_sets["train"].classes


def read_set(path: str) -> OwnSet:
    """Return the images at a path.

    Raises:
        DataError: no such place, or no images in it.
    """
    place = own_path(path)
    if place is None:
        raise DataError(f"'{path}' not found — name a folder of images, a .csv or an .npz")
    at = place.resolve()
    return OwnSet(at, tuple(read_rows(at)), {"own": {"path": str(at)}})


def read_id(path: str, seed: int = 0) -> dict[str, OwnSet]:
    """Return training, validation and test images below one path.

    A folder with `train` and `test` (and `val`, else cut from `train`) is taken as it is; anything else is split
    60 : 10 : 30 within each class.

    Raises:
        DataError: no such place, no images, or a class with fewer than three.
    """
    folder = own_path(path)
    if folder is None or not all((folder / part).is_dir() for part in ("train", "test")):
        return dict(zip(PARTS, split(read_set(path), SHARES, seed), strict=True))
    train, test = read_set(str(folder / "train")), read_set(str(folder / "test"))
    if (folder / "val").is_dir():
        return {"train": train, "val": read_set(str(folder / "val")), "test": test}
    train, val = split(train, (0.9, 0.1), seed)
    return {"train": train, "val": val, "test": test}


def split(whole: OwnSet, shares: Sequence[float], seed: int) -> list[OwnSet]:
    """Return a set cut into parts at random, within each class, every part with at least one image of each.

    Raises:
        DataError: a class with fewer images than there are parts.
    """
    labels, class_of = np.unique([label for _, label in whole.rows], return_inverse=True)
    chosen: list[list[int]] = [[] for _ in shares]
    for number, label in enumerate(labels.tolist()):
        positions = np.flatnonzero(class_of == number)
        if len(positions) < len(shares):
            raise DataError(f"'{whole.at}': class '{label}' has {len(positions)} images for {len(shares)} parts")
        # Each class has its own generator: adding a class does not change the others.
        order = np.random.default_rng([seed, *label.encode()]).permutation(positions)
        sizes = [max(1, math.floor(len(order) * share)) for share in shares[1:]]
        for part, piece in enumerate(np.split(order, np.cumsum([len(order) - sum(sizes), *sizes])[:-1])):
            chosen[part] += piece.tolist()
    return [replace(whole, rows=tuple(whole.rows[i] for i in sorted(part))) for part in chosen]


def write(benchmark: OwnBenchmark, folder: Path) -> list[Path]:
    """Write a benchmark of images as `write_files` does; return the files."""
    (mean, std), side = mean_and_std(benchmark), benchmark.side
    header = [
        f"{sum(len(s.rows) for s in benchmark.id_sets.values())} ID images of {len(benchmark.classes)} classes; "
        f"the lists in lists/{benchmark.name}/*.csv, beside this folder, name the images of each split.",
        "The mean and the deviation are those of the training images after resizing.",
    ]
    defaults = [f"/dataset@benchmark.{where}: own" for where in benchmark.sets]
    defaults += ["/dataset@benchmark.csid.corrupted: id_corrupted"] * benchmark.corruptions
    defaults += ["_self_", f"override /backbone: {benchmark.backbone}"]
    rest = {"training": {"recipe": {"epochs": benchmark.epochs}}} if benchmark.epochs is not None else {}
    preprocess = {"resize": side, "crop": side, "mean": mean, "std": std}
    return write_files(benchmark, folder, header, defaults, preprocess=preprocess, **rest)


def write_files(
    benchmark: OwnBenchmark,
    folder: Path,
    header: Sequence[str],
    defaults: Sequence[str],
    *,
    preprocess: Mapping[str, Any],
    **rest: Any,
) -> list[Path]:
    """Write `folder/benchmark/NAME.yaml` and `folder/lists/NAME/*.csv`; return the files.

    Args:
        benchmark: names the classes and the samples of each set.
        folder: a config folder, new or not.
        header: the comment on top of the yaml file, below its command.
        defaults: the entries of its defaults list.
        preprocess: of the benchmark.
        **rest: the nodes beside the benchmark's.

    Raises:
        ConfigError: another file is there, or the folder cannot be written.
    """
    name = benchmark.name
    declared = [*benchmark.ood, *(["csid.corrupted"] if benchmark.corruptions else [])]
    node: dict[str, Any] = {"name": name, "classes": [*benchmark.classes], "declared": declared, "incomplete": "error"}
    files: dict[Path, str] = {}
    for where, own in benchmark.sets.items():
        group, _, title = where.rpartition(".")
        path = folder / "lists" / name / f"{where}.csv"
        files[path] = pd.DataFrame(own.rows, columns=["path", "label"]).to_csv(index=False, lineterminator="\n")
        of_set = {
            "manifest": str(path.resolve()),
            "sources": deepcopy(own.source),
        }  # YAML would write an alias of a shared one
        within = node.setdefault(group, {}) if group else node
        within[title] = {"name": name if group == "id" else title, **of_set}
    lines = ["# @package _global_", "#", *(f"# {line}" for line in (command(benchmark, folder), *header))]
    lines += ["defaults:", *(f"  - {line}" for line in defaults), ""]
    text = yaml_text({"benchmark": {**node, "preprocess": preprocess}, **rest})
    files[folder / "benchmark" / f"{name}.yaml"] = "\n".join([*lines, text])
    try:
        for file, text in files.items():
            if file.exists() and file.read_bytes() != text.encode():
                raise ConfigError(f"'{file}' exists, so nothing was written — delete it, or choose another name")
        for file, text in files.items():
            write_whole(file, text.encode())
    except OSError as error:
        raise ConfigError(
            f"benchmark '{name}' cannot be written to '{folder}' ({error.strerror or error}) — "
            "make room, or choose another folder: --to DIR"
        ) from error
    return list(files)


def mean_and_std(benchmark: OwnBenchmark) -> tuple[list[float], list[float]]:
    """Return the channel means and deviations of up to 2,000 training images in the network's size."""
    train = benchmark.id_sets["train"]
    rows = spaced(len(train.rows), _SAMPLE)
    found = OwnImages(str(train.at)).find(train.at, [train.rows[i][0] for i in rows])
    if found is None or found.count < len(rows):
        raise DataError(f"'{train.at}': {0 if found is None else found.count} of {len(rows)} listed images found")
    geometry = Preprocess(resize=benchmark.side, crop=benchmark.side, mean=(0.0,) * 3, std=(1.0,) * 3)
    mean, std = channel_statistics(cropped(found.items[index], geometry) for index in range(len(rows)))
    # Black images would divide by zero; one grey level is the smallest step there is.
    return [round(float(v), 4) for v in mean], [round(float(v), 4) for v in np.maximum(std, 1 / 255)]


def command(benchmark: OwnBenchmark, folder: Path, name: str = "run") -> str:
    """Return the command line that uses a written benchmark."""
    tuning = "" if "ood_val" in benchmark.ood or name == "check" else " tune=none"
    return f"python -m openbench {name} --config-dir {shlex.quote(str(folder))} +benchmark={benchmark.name}{tuning}"
