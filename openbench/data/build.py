"""Building a Benchmark from its config node: search and join its sets, and report missing ones."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from openbench import paths
from openbench.core.benchmark import Benchmark, Split
from openbench.core.request import Role
from openbench.data.benchmark_config import BenchmarkConfig, joined_classes
from openbench.data.dataset import (
    BenchmarkSet,
    Fingerprint,
    Located,
    SetConfig,
    fingerprint,
    locate,
    split_of,
    unread_split,
)
from openbench.digest import digest
from openbench.errors import DataError, LeakageError, MissingSetsError

WHERE = "outliers"
_OTHERS = "dataset@outliers=NAME (python -m openbench list dataset)"


def build_benchmark(node: Mapping[str, Any], reader: str | None = None) -> Benchmark:
    """Return the benchmark that a plain, resolved `benchmark` node describes: see BenchmarkConfig and `open_benchmark`.

    Args:
        node: as `BenchmarkConfig.parse` takes it.
        reader: see `open_benchmark`.
    """
    return open_benchmark(BenchmarkConfig.parse(node), reader)


def open_benchmark(
    config: BenchmarkConfig, reader: str | None = None, sampled: Fingerprint = fingerprint, backbone: str = ""
) -> Benchmark:
    """Return the benchmark of a parsed node, with its sets located and compared with their manifests.

    Args:
        config: the node, parsed.
        reader: what reads the ID training images, for the message if they are missing, e.g. `method 'knn', which is
            fitted on it`; empty = nothing does, so they may be missing; None = not known, so they may not.
        sampled: picks the images of each set whose pixels enter its digest.
        backbone: the backbone whose weights are missing too, for the message; empty = none.

    Raises:
        DataError: sets are missing or incomplete, all of them in one message, or one is unreadable.
        LeakageError: two sets share classes, and must not.
    """
    classes, dropped = config.class_names, config.removed
    splits: dict[str, Split] = {}
    members: dict[str, dict[str, Split]] = {}
    places = [_locate(entry, reader) for entry in config.sets]
    if gaps := fatal(filter(None, places), config):
        of_benchmark = (gaps, len(places), config.typed, reader or "")
        raise MissingSetsError(*(missing_sets(*of_benchmark, backbone=backbone, python=p) for p in (False, True)))
    for entry, located in zip(config.sets, places, strict=True):
        path, member = entry.path, entry.member
        if located is None:
            splits[path] = unread_split(entry, classes)
        elif not located.found:
            dropped.append(path)
        else:
            split = split_of(located, config.members.get(member, classes), sampled)
            if member:
                members.setdefault(path.removesuffix(f".{member}"), {})[member] = split
            else:
                # Another set changes the means over sets, so this is another benchmark.
                added = () if path in config.defined else ("not part of the benchmark as defined",)
                splits[path] = replace(split, deviations=(*split.deviations, *added))
    splits |= {path: join(parts, joined_classes(config.members)) for path, parts in members.items()}
    near, far, csid = (
        {path.partition(".")[2]: split for path, split in splits.items() if path.startswith(f"{group}.")}
        for group in ("near", "far", "csid")
    )
    return Benchmark(
        config.name,
        classes,
        *(splits["id.train"], splits["id.val"], splits["id.test"]),
        near,
        far,
        config.preprocess,
        csid,
        splits.get("ood_val"),
        splits.get("ood_train"),
        disjoint=tuple((Role(first), Role(second)) for first, second in config.disjoint),
        known_overlap=tuple(config.known_overlap),
        known_id_overlap=tuple(config.known_id_overlap),
        dropped=tuple(dropped),
    )


def _locate(entry: BenchmarkSet, reader: str | None) -> Located | None:
    """The place of a set; None for training images that nothing reads, unless all of them are there and count."""
    unread = entry.path == "id.train" and reader == ""
    if unread and entry.config.digest_of == "list" and entry.config.limit is None:
        return None
    located = locate(entry)
    return None if unread and located.missing else located


def fatal(places: Iterable[Located], config: BenchmarkConfig) -> list[Located]:
    """Return the incomplete sets; of a benchmark that may be incomplete, the ID sets without any image."""
    allowed = config.incomplete == "allow"
    return [s for s in places if s.missing and not (allowed and (s.found or not s.path.startswith("id.")))]


def survey(benchmark: BenchmarkConfig) -> list[Located]:
    """Return how much of every set of a benchmark is there; missing sets are no error."""
    result = []
    for entry in benchmark.sets:
        try:
            result.append(locate(entry))
        except DataError as error:
            result.append(Located(**vars(entry), error=str(error)))
    return result


def missing_sets(
    gaps: Sequence[Located], total: int, benchmark: str, reader: str = "", *, backbone: str = "", python: bool = False
) -> str:
    """Return one message on all that is missing: a summary with the command that helps, and details below.

    Args:
        gaps: the sets that are missing or incomplete.
        total: number of all sets.
        benchmark: the benchmark as typed after `+benchmark=`.
        reader: what reads the ID training images, e.g. `method 'knn', which is fitted on it`; empty = not known.
        backbone: the backbone whose weights are missing too; empty = none.
        python: whether to name arguments of `ob.evaluate` instead of overrides.
    """
    train = [gap.path for gap in gaps if gap.role == Role.ID_TRAIN and reader]
    named = ", ".join(gap.path + f" (needed by {reader})" * (gap.path in train[-1:]) for gap in gaps)
    verb = "is" if len(gaps) == 1 else "are"
    summary = f"benchmark '{benchmark}': {len(gaps)} of {total} data sets {verb} missing or incomplete: {named}"
    summary += f"; and the weights of backbone '{backbone}'" if backbone else ""
    words = [benchmark] * _is_shipped(benchmark) + [f"backbone={backbone}"] * bool(backbone)
    if words:
        summary += f" — python -m openbench data prepare {' '.join(words)}"
    return "\n".join([summary, *(f"  {gap}" for gap in gaps), *advice(gaps, benchmark, python)])


def advice(gaps: Sequence[Located], benchmark: str, python: bool = False) -> list[str]:
    """Return the lines on where the sets were searched, each path once, and what can be done.

    Args:
        gaps: the sets that are missing or incomplete.
        benchmark: the benchmark as typed after `+benchmark=`.
        python: whether to name arguments of `ob.evaluate` instead of overrides.
    """
    lines = [*_places(place for gap in gaps for place in gap.searched), "what to do:"]
    if _is_shipped(benchmark):
        lines.append(f"  download what may be downloaded: python -m openbench data prepare {benchmark}")
    unset = "" if os.environ.get("OPENBENCH_DATA") else " (it is not set)"
    lines.append(f"  put the sets into one of these places; OPENBENCH_DATA names the folder of all data{unset}")
    groups = ("near.", "far.", "csid.", "ood_")
    droppable = [f"~benchmark.{gap.path}" for gap in gaps if gap.path.startswith(groups)]
    if droppable:
        dropped = f"overrides={droppable}" if python else " ".join(droppable)
        lines.append(f"  or leave these sets out, which is recorded: {dropped}")
    if droppable or any(gap.found for gap in gaps):
        allowed = 'incomplete="allow"' if python else "benchmark.incomplete=allow"
        lines.append(f"  or use the images that are there, which is recorded: {allowed}")
    if any(gap.path == "id.train" for gap in gaps):
        lines.append("  or use a network with weights and a method that is not fitted on id.train, e.g. energy")
    return lines


def _is_shipped(benchmark: str) -> bool:
    return (paths.config_dir() / "benchmark" / f"{benchmark.split()[0]}.yaml").is_file()


def _places(places: Iterable[Path]) -> list[str]:
    """The paths that were searched: those below the data roots once for all roots."""
    roots = [root.absolute() for root in paths.data_roots()]
    below: dict[str, None] = {}
    others: dict[str, None] = {}
    for place in (place.absolute() for place in places):
        root = next((root for root in roots if place.is_relative_to(root)), None)
        (others if root is None else below)[str(place if root is None else place.relative_to(root))] = None
    lines = [f"searched below {' and '.join(map(str, roots))}:", *(f"  {folder}" for folder in below)] if below else []
    return [*lines, *(["searched:"] if others else []), *(f"  {place}" for place in others)]


def join(parts: Mapping[str, Split], classes: Mapping[str, Sequence[str]]) -> Split:
    """Return several ID splits of one role as one split, whose labels count through all classes.

    Args:
        parts: by the set's name; the labels of each count its own classes.
        classes: what `joined_classes` returns; labels count in this order.

    Raises:
        DataError: no split for a set, or splits that reach the network in different ways.
    """
    from torch.utils.data import ConcatDataset

    if lacking := [name for name in classes if name not in parts]:
        raise DataError(f"joined ID sets: {', '.join(lacking)} has classes and no images")
    splits = [parts[name] for name in classes]
    items: list[Any] = [split.items for split in splits]
    if len({split.as_stored for split in splits}) > 1:
        raise DataError("joined ID sets: `as_stored` is true for some and false for others — set it alike")
    starts = [0, *accumulate(len(names) for names in classes.values())]
    return replace(
        splits[0],
        name="+".join(split.name for split in splits),
        items=ConcatDataset(items),
        labels=np.concatenate([split.labels + start for split, start in zip(splits, starts, strict=False)]),
        keys=[key for split in splits for key in split.keys],
        classes=tuple(name for names in classes.values() for name in names),
        digest=digest({"joined": [split.digest for split in splits]}),
        expected=sum(split.expected for split in splits),
        source=tuple(split.source for split in splits),
        deviations=tuple(f"{split.name}: {text}" for split in splits for text in split.deviations),
    )


def with_outliers(benchmark: Benchmark, node: Mapping[str, Any]) -> Benchmark:
    """Return the benchmark as a training that learns from outliers sees it: they are its OOD training split.

    Args:
        benchmark: as it is scored; its digest does not cover these outliers.
        node: the config node of a data set.

    Raises:
        ConfigError: a key of the node is unknown or missing.
        DataError: images are missing or unreadable.
        LeakageError: the outliers have classes of the ID images, or of images that are tested or tuned on.
    """
    config = SetConfig.from_node({key: value for key, value in node.items() if not key.startswith("_")}, WHERE)
    located = locate(BenchmarkSet(WHERE, Role.OOD_TRAIN, config))
    if located.missing:
        raise DataError("\n".join([f"{located} found — choose other outliers: {_OTHERS}", *_places(located.searched)]))
    outliers = split_of(located, ())
    pairs = [(Role.OOD_TRAIN, role) for role in (Role.OOD_VAL, Role.NEAR, Role.FAR)]
    try:
        replace(benchmark, ood_train=outliers, disjoint=(*benchmark.disjoint, *pairs))
    except LeakageError as error:
        raise LeakageError(
            f"{error}, choose other outliers, {_OTHERS}, or name the classes to learn from: +outliers.keep=[…]"
        ) from error
    return replace(benchmark, ood_train=outliers)


def outliers_name(split: Split) -> str:
    """Return the name of a set of outliers for records, with their number if it is not complete."""
    part = len(split) < split.expected
    return f"{split.name} ({len(split)} of {split.expected})" if part else split.name
