"""Checks of a benchmark: complete and readable sets, and no image in two splits that must not share any.

`verify_node` decodes every image, for `check`; `refuse_same_images` compares files and rows, before every run.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np

from openbench.core.benchmark import Benchmark, Image, Split, must_differ
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import advice, fatal, open_benchmark, survey, with_outliers
from openbench.data.dataset import SetConfig, readable_fingerprint
from openbench.data.manifests import Manifest, known_pairs
from openbench.data.own.features import FeatureItems, FeatureRows
from openbench.data.sources.base import ArrayItems, FileItems, MadeItems
from openbench.digest import array_sha256
from openbench.errors import DataError, LeakageError, listed

logger = logging.getLogger(__name__)

_PAIRS = 5  # in a message
_LISTED = 50  # problems


@dataclass(frozen=True)
class SplitCheck:
    """The findings on one split.

    Args:
        where: `role/name`.
        found: number of images found.
        expected: number of images listed.
        repeated: number of images that are identical to an earlier one of the split.
        deviations: how the images differ from the published set.
    """

    where: str
    found: int
    expected: int
    repeated: int = 0
    deviations: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """The findings on a benchmark.

    Args:
        name: the benchmark.
        splits: the findings on each split.
        shared: a line for each two splits that must not share images and do.
        known: the same for identical images that the published lists have, by `data_manifests/known_overlaps.txt`.
        missing: a line for each set that is missing or incomplete; empty if `incomplete=allow` accepts that.
        changed: a line for each file that is not as it was when the benchmark was written.
        unreadable: a line for each image that cannot be decoded.
        dropped: declared sets that are missing.
        advice: where these were searched, and what can be done.
    """

    name: str
    splits: tuple[SplitCheck, ...] = ()
    shared: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """All faults that make numbers untrustworthy; images that cannot be read come last."""
        return (*self.missing, *self.changed, *self.shared, *self.unreadable)

    @property
    def verdict(self) -> str:
        """The closing line: the number of problems of each kind."""
        counts = {
            "data set{} missing or incomplete": len(self.missing),
            "unreadable image{}": len(self.unreadable),
            "changed file{}": len(self.changed),
            "pair{} of sets with identical images": len(self.shared),
        }
        problems = [f"{count:,} {text.format('s' * (count > 1))}" for text, count in counts.items() if count]
        images = f"{len(self.splits)} sets, {sum(s.found for s in self.splits):,} images"
        return f"problems: {', '.join(problems)} ({images})" if problems else f"ok: {images}, no problem"

    @property
    def ok(self) -> bool:
        """Whether there are no problems; deviations are not problems."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"benchmark {self.name}", f"  {'split':<24}{'found':>8}{'listed':>8}{'repeated':>10}"]
        for split in self.splits:
            lines.append(f"  {split.where:<24}{split.found:>8}{split.expected:>8}{split.repeated:>10}")
            lines += [f"      deviates: {text}" for text in split.deviations]
        lines += [f"  {name}: dropped" for name in self.dropped]
        lines += [f"  known: {shared}" for shared in self.known]
        lines += [f"  problem: {text}" for text in self.problems[:_LISTED]]
        lines += [f"  and {rest:,} more problems"] if (rest := len(self.problems) - _LISTED) > 0 else []
        return "\n".join([*lines, *self.advice])


def verify_node(config: BenchmarkConfig, outliers: Mapping[str, Any] | None = None) -> CheckReport:
    """Return the findings on a parsed `benchmark` node; all missing sets are reported at once.

    Args:
        config: the benchmark's node, parsed.
        outliers: the node of the data set of outliers that a training learns from, if it does.

    Raises:
        ConfigError: an unknown or missing key.
        DataError: outliers are missing.
        LeakageError: two sets share classes, and must not.
    """
    statuses = survey(config)
    if gaps := fatal(statuses, config):
        return CheckReport(
            config.name,
            tuple(SplitCheck(f"{s.role}/{s.name}", s.found, s.expected) for s in statuses),
            missing=tuple(map(str, gaps)),
            advice=tuple(advice(gaps, config.typed)),
        )
    benchmark = open_benchmark(config, sampled=readable_fingerprint)
    return verify_benchmark(benchmark if outliers is None else with_outliers(benchmark, outliers))


def verify_benchmark(benchmark: Benchmark) -> CheckReport:
    """Return the findings on a built benchmark; every image is decoded once and compared by content.

    Args:
        benchmark: with disjoint classes, as it was built.
    """
    checks, changed, unreadable = list[SplitCheck](), list[str](), list[str]()
    hashes: dict[str, list[str | None]] = {}
    splits = {f"{split.role}/{split.name}": split for split in benchmark.splits()}
    for where, split in splits.items():
        logger.info(f"check {where}: {len(split)} images")
        hashes[where], messages = _hashes(split)
        unreadable += [f"{where}: {text}" for text in messages]
        readable = [value for value in hashes[where] if value is not None]
        repeated = len(readable) - len(set(readable))
        if isinstance(split.source, FeatureRows):
            changed += [f"{where}: {text}" for text in split.source.changed()]
        checks.append(SplitCheck(where, len(split), split.expected, repeated, split.deviations))
    shared, known = map(tuple, _shared(splits, hashes))
    found = {"changed": tuple(changed), "unreadable": tuple(unreadable), "dropped": benchmark.dropped}
    return CheckReport(benchmark.name, tuple(checks), shared, known, **found)


def _hashes(split: Split) -> tuple[list[str | None], list[str]]:
    """A hash per image, None for unreadable ones and for rows of a table; and a message for each unreadable one."""
    if isinstance(split.items, FeatureItems):  # every row was read when they were hashed
        return [row.tobytes().hex() for row in split.items.contents[split.items.rows]], []
    hashes: list[str | None] = []
    unreadable = []
    for index in range(len(split)):
        try:
            item = split.items[index]
            # Equal rows of a table are equal measurements, not the same thing twice.
            hashes.append(array_sha256(_plane(item)) if item.ndim > 1 else None)
        except DataError as error:
            hashes.append(None)
            unreadable.append(f"'{split.keys[index]}': {str(error).rpartition(' — ')[0] or error}")
    return hashes, unreadable


def _plane(image: Image) -> Image:
    """The image, without its copies where three channels are equal: one picture has one hash."""
    return image[..., 0] if image.ndim == 3 and (image == image[..., :1]).all() else image


def _shared(splits: Mapping[str, Split], hashes: Mapping[str, Sequence[str | None]]) -> tuple[list[str], list[str]]:
    """A line for each two splits that must not share images and do: with new ones, and with known ones."""
    lists: tuple[list[str], list[str]] = [], []
    for (a, first), (b, second) in combinations(splits.items(), 2):
        if not must_differ(first.role, second.role):
            continue
        key_of = {of: key for of, key in zip(reversed(hashes[a]), reversed(first.keys), strict=True) if of is not None}
        pairs = [(key_of[of], key) for of, key in zip(hashes[b], second.keys, strict=True) if of in key_of]
        for shared, known in zip(lists, (False, True), strict=True):
            if chosen := [f"{x} = {y}" for x, y in pairs if (frozenset((x, y)) in known_pairs()) == known]:
                named = listed(chosen, _PAIRS, last=", and ")
                shared.append(f"{a} and {b} share {len(chosen)} identical images: {named}")
    return lists


def refuse_same_images(benchmark: Benchmark) -> None:
    """Check that no image is both ID and OOD, or both tested and learnt or tuned from.

    Two images are the same if they are the same file, or the same row of one array; files of the user's own, and
    rows of features, also if their bytes are equal. Nothing is decoded: `check` finds equal images in two
    published files. For sets that nothing reads see `refuse_listed_images`.

    Raises:
        LeakageError: an image is in two such splits.
    """
    places = [(split, _places(split.items)) for split in benchmark.splits() if not split.unread]
    for (a, first), (b, second) in combinations(places, 2):
        if not must_differ(a.role, b.role):
            continue
        shared = [position for place, position in second.items() if place in first]
        if shared:
            raise _leak(benchmark.name, (a, b), sorted({b.keys[position] for position in shared}))


def refuse_listed_images(benchmark: Benchmark, config: BenchmarkConfig) -> None:
    """Check that no image of a set that nothing reads is tested or tuned on: a network may have learnt from it.

    The lists of sets with the same sources are compared, without the images. A rule has no list.

    Args:
        benchmark: the benchmark.
        config: its config.

    Raises:
        LeakageError: an image of the list is tested or tuned on.
    """
    if not any(split.unread for split in benchmark.splits()):
        return
    sets = [(entry.role, entry.config) for entry in config.sets]
    for split in (split for split in benchmark.splits() if split.unread):
        for (role, unread), (other, tested) in product(sets, sets):
            if role == split.role and must_differ(role, other) and unread.sources == tested.sources:
                keys = {key for one in benchmark.of_role(other) for key in one.keys}
                shared = sorted(keys.intersection(_keys(unread)).intersection(_keys(tested)))
                if shared:
                    raise _leak(benchmark.name, (split, benchmark.of_role(other)[0]), shared)


def _keys(config: SetConfig) -> Sequence[str]:
    """The keys of a set's list; none for a rule."""
    listing = config.listing()
    return listing.keys if isinstance(listing, Manifest) else ()


def _leak(name: str, sides: tuple[Split, Split], shared: Sequence[str]) -> LeakageError:
    (a, b), kind = sides, "row" if isinstance(sides[0].items, FeatureItems) else "image"
    images = f"{len(shared):,} {kind}s" if len(shared) > 1 else f"1 {kind}"
    return LeakageError(
        f"benchmark '{name}': {a.role} {a.name} and {b.role} {b.name} have {images} in common, e.g. '{shared[0]}' — "
        f"remove them from one list: {kind}s that are learnt or tuned from must not be tested, and none is ID and OOD"
    )


def _places(items: Any) -> Mapping[object, int]:
    """The position of each image by its file, row, bytes or what it is made of; empty for other items."""
    from torch.utils.data import ConcatDataset

    if isinstance(items, ConcatDataset):  # joined ID sets
        parts = zip((0, *items.cumulative_sizes), map(_places, items.datasets), strict=False)
        return {place: start + position for start, places in parts for place, position in places.items()}
    if isinstance(items, ArrayItems):
        start = items.pixels.__array_interface__["data"][0]
        return {(start, int(row)): position for position, row in enumerate(np.asarray(items.rows))}
    if isinstance(items, MadeItems):
        return {of: position for position, of in enumerate(items.of)}
    if isinstance(items, FeatureItems):
        return {content.tobytes(): position for position, content in enumerate(items.contents[items.rows])}
    if not isinstance(items, FileItems):
        return {}
    real = {folder: os.path.realpath(folder) for folder in set(map(os.path.dirname, items.files))}
    paths = {
        os.path.join(real[os.path.dirname(path)], os.path.basename(path)): position
        for position, path in enumerate(items.files)
    }
    contents = {} if items.contents is None else {row.tobytes(): i for i, row in enumerate(items.contents)}
    return {**paths, **contents}
