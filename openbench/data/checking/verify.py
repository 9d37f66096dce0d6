"""Verifying a benchmark: complete and readable sets, and no image in two splits that must not share any."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from openbench.core.benchmark import Benchmark, Image, Split
from openbench.core.request import Role
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import SetStatus, advice, open_benchmark, survey, with_outliers
from openbench.data.dataset import readable_fingerprint
from openbench.data.manifests import known_pairs
from openbench.data.sources.items import ADVICE, is_turned, not_applied
from openbench.digest import array_sha256
from openbench.errors import DataError

logger = logging.getLogger(__name__)

_PAIRS = 5  # in a message
_LISTED = 20  # unreadable images of one split

# Pairs of ID roles or of OOD roles whose images must differ: training and validation against test.
_APART = {
    Role.ID_TRAIN: (Role.ID_VAL, Role.ID_TEST, Role.CSID),
    Role.ID_VAL: (Role.ID_TRAIN, Role.ID_TEST, Role.CSID),
    Role.OOD_TRAIN: (Role.OOD_VAL, Role.NEAR, Role.FAR),
    Role.OOD_VAL: (Role.OOD_TRAIN, Role.NEAR, Role.FAR),
}


@dataclass(frozen=True)
class SplitCheck:
    """The findings on one split.

    Args:
        where: `role/name`.
        found: number of images found.
        expected: number of images listed.
        unreadable: a message per image that cannot be decoded.
        repeated: number of images that are identical to an earlier one of the split.
        deviations: how the images differ from the published set.
        turned: number of images with an EXIF orientation, which is not applied.
    """

    where: str
    found: int
    expected: int
    unreadable: tuple[str, ...] = ()
    repeated: int = 0
    deviations: tuple[str, ...] = ()
    turned: int = 0


@dataclass(frozen=True)
class Shared:
    """Identical images of two splits.

    Args:
        first: `role/name` of one split.
        second: `role/name` of the other.
        pairs: their keys, one pair per image of `second`.
    """

    first: str
    second: str
    pairs: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        pairs = ", ".join(f"{a} = {b}" for a, b in self.pairs[:_PAIRS])
        more = f", and {len(self.pairs) - _PAIRS} more" if len(self.pairs) > _PAIRS else ""
        return f"{self.first} and {self.second} share {len(self.pairs)} identical images: {pairs}{more}"


@dataclass(frozen=True)
class CheckReport:
    """The findings on a benchmark.

    Args:
        name: the benchmark.
        splits: the findings on each split.
        shared: identical images in splits that must not share any.
        known: identical images that the published lists have, by `data_manifests/known_overlaps.txt`.
        missing: a line for each set that is missing or incomplete; empty if `incomplete=allow` accepts that.
        dropped: declared sets that are missing.
        advice: where these were searched, and what can be done.
    """

    name: str
    splits: tuple[SplitCheck, ...] = ()
    shared: tuple[Shared, ...] = ()
    known: tuple[Shared, ...] = ()
    missing: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """All faults that make numbers untrustworthy."""
        unreadable = [f"{s.where}: {text}" for s in self.splits for text in s.unreadable]
        return (*self.missing, *unreadable, *(str(shared) for shared in self.shared))

    @property
    def verdict(self) -> str:
        """The closing line: the number of problems of each kind."""
        counts = {
            "data set{} missing or incomplete": len(self.missing),
            "unreadable image{}": sum(len(s.unreadable) for s in self.splits),
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
            lines += [f"      {not_applied(split.turned)}"] if split.turned else []
        lines += [f"  {name}: dropped" for name in self.dropped]
        lines += [f"  known: {shared}" for shared in self.known]
        for split in self.splits:
            lines += [f"  problem: {split.where}: {text}" for text in split.unreadable[:_LISTED]]
            rest = len(split.unreadable) - _LISTED
            lines += [f"  problem: {split.where}: {rest:,} more images cannot be read"] if rest > 0 else []
        lines += [f"  problem: {text}" for text in (*self.missing, *map(str, self.shared))]
        lines += [f"  {ADVICE}"] if any(split.turned for split in self.splits) else []
        return "\n".join([*lines, *self.advice])


def verify_node(config: BenchmarkConfig, outliers: Mapping[str, Any] | None = None) -> CheckReport:
    """Return the findings on a parsed `benchmark` node; what is missing is reported for all sets at once.

    Args:
        config: the benchmark's node, parsed.
        outliers: the node of the data set of outliers that a training learns from, if it does.

    Raises:
        ConfigError: an unknown or missing key.
        DataError: outliers are missing.
        LeakageError: two sets share classes, and must not.
    """
    statuses = survey(config)
    gaps = [status for status in statuses if status.missing]
    allowed = config.incomplete == "allow"
    fatal = [status for status in gaps if not allowed or (status.path.startswith("id.") and not status.found)]
    if fatal:
        return CheckReport(
            config.name,
            tuple(SplitCheck(_path(status), status.found, status.expected) for status in statuses),
            missing=tuple(map(str, fatal)),
            advice=tuple(advice(fatal, config.typed)),
        )
    benchmark = open_benchmark(config, sampled=readable_fingerprint)
    return verify_benchmark(benchmark if outliers is None else with_outliers(benchmark, outliers))


def verify_benchmark(benchmark: Benchmark) -> CheckReport:
    """Return the findings on a built benchmark; every image is decoded once and compared by content.

    Args:
        benchmark: with disjoint classes, as it was built.
    """
    checks: list[SplitCheck] = []
    hashes: dict[str, list[str | None]] = {}
    splits = {f"{split.role}/{split.name}": split for split in benchmark.splits()}
    for where, split in splits.items():
        logger.info(f"check {where}: {len(split)} images")
        hashes[where], unreadable = _hashes(split)
        readable = [value for value in hashes[where] if value is not None]
        turned = sum(is_turned(split.items, index) for index in range(len(split)))
        repeated = len(readable) - len(set(readable))
        checks.append(
            SplitCheck(where, len(split), split.expected, tuple(unreadable), repeated, split.deviations, turned)
        )
    shared, known = _shared(splits, hashes)
    return CheckReport(benchmark.name, tuple(checks), tuple(shared), tuple(known), dropped=benchmark.dropped)


def _path(status: SetStatus) -> str:
    name = status.path.rpartition(".")[2] if status.role in (Role.NEAR, Role.FAR, Role.CSID) else status.name
    return f"{status.role}/{name}"


def _hashes(split: Split) -> tuple[list[str | None], list[str]]:
    """A hash per image, None for unreadable ones and for vectors; and what is wrong with each unreadable one."""
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
    return image[..., 0] if image.ndim == 3 and not np.ptp(image, axis=2).any() else image


def _shared(
    splits: Mapping[str, Split], hashes: Mapping[str, Sequence[str | None]]
) -> tuple[list[Shared], list[Shared]]:
    """Identical images in splits that must not share any: new ones, and known ones."""
    lists: tuple[list[Shared], list[Shared]] = [], []
    for (a, first), (b, second) in combinations(splits.items(), 2):
        if not must_differ(first.role, second.role):
            continue
        key_of = {of: key for of, key in zip(reversed(hashes[a]), reversed(first.keys), strict=True) if of is not None}
        pairs = [(key_of[of], key) for of, key in zip(hashes[b], second.keys, strict=True) if of in key_of]
        for shared, known in zip(lists, (False, True), strict=True):
            if chosen := tuple(pair for pair in pairs if (frozenset(pair) in known_pairs()) == known):
                shared.append(Shared(a, b, chosen))
    return lists


def must_differ(first: Role, second: Role) -> bool:
    """Return whether no image may be in splits of both roles."""
    return first.is_id != second.is_id or second in _APART.get(first, ()) or first in _APART.get(second, ())
