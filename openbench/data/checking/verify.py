"""What `check` finds out: is everything there and readable, and is no image on two sides that must be apart?"""

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

_SHOWN = 5
_LISTED = 20  # unreadable images of one split

# Role pairs on the same side of ID/OOD whose images must differ: what is learnt or tuned from against what is tested.
_APART = {
    Role.ID_TRAIN: (Role.ID_VAL, Role.ID_TEST, Role.CSID),
    Role.ID_VAL: (Role.ID_TRAIN, Role.ID_TEST, Role.CSID),
    Role.OOD_TRAIN: (Role.OOD_VAL, Role.NEAR, Role.FAR),
    Role.OOD_VAL: (Role.OOD_TRAIN, Role.NEAR, Role.FAR),
}


@dataclass(frozen=True)
class SplitCheck:
    """What was found of one split.

    Args:
        where: `role/name`.
        found: images found.
        expected: images listed.
        unreadable: a message per image that cannot be decoded.
        repeated: images that are identical to an earlier one of the same split.
        deviations: how the images differ from the set as defined.
        turned: images with an EXIF orientation, which is not applied.
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
    """Images that are on two sides at once.

    Args:
        first: `role/name` of one split.
        second: of the other.
        pairs: keys of identical images, one pair per image of `second`.
    """

    first: str
    second: str
    pairs: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{a} = {b}" for a, b in self.pairs[:_SHOWN])
        more = f", and {len(self.pairs) - _SHOWN} more" if len(self.pairs) > _SHOWN else ""
        return f"{self.first} and {self.second} share {len(self.pairs)} identical images: {shown}{more}"


@dataclass(frozen=True)
class CheckReport:
    """The findings on a benchmark.

    Args:
        name: the benchmark.
        splits: per split.
        shared: identical images on sides that must be apart.
        known: the same where `data_manifests/known_overlaps.txt` says that the published lists have them.
        missing: a line for each set that is missing or incomplete; empty if `incomplete=allow` accepts that.
        advice: where these were searched and what can be done.
        dropped: declared sets that are not there.
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
        """Everything that stands in the way of trustworthy numbers."""
        unreadable = [f"{s.where}: {text}" for s in self.splits for text in s.unreadable]
        return (*self.missing, *unreadable, *(str(shared) for shared in self.shared))

    @property
    def verdict(self) -> str:
        """The closing line: whether all is well, and how much of what was found."""
        found = [
            _counted(len(self.missing), "data set missing or incomplete", "data sets missing or incomplete"),
            _counted(sum(len(s.unreadable) for s in self.splits), "unreadable image", "unreadable images"),
            _counted(len(self.shared), "pair of sets with identical images", "pairs of sets with identical images"),
        ]
        images = f"{len(self.splits)} sets, {sum(s.found for s in self.splits):,} images"
        return (
            f"problems: {', '.join(filter(None, found))} ({images})" if self.problems else f"ok: {images}, no problem"
        )

    @property
    def ok(self) -> bool:
        """Whether there are no problems. Deviations that the config accepts are not problems; they are listed."""
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
        benchmark: its classes were checked to be disjoint when it was built.
    """
    checks: list[SplitCheck] = []
    content: dict[str, list[str | None]] = {}
    splits = {f"{split.role}/{split.name}": split for split in benchmark.splits()}
    for where, split in splits.items():
        logger.info(f"check {where}: {len(split)} images")
        hashes, unreadable = _hashes(split)
        content[where] = hashes
        readable = [found for found in hashes if found is not None]
        checks.append(
            SplitCheck(
                where,
                len(split),
                split.expected,
                tuple(unreadable),
                len(readable) - len(set(readable)),
                split.deviations,
                sum(is_turned(split.items, index) for index in range(len(split))),
            )
        )
    shared, known = _shared(splits, content)
    return CheckReport(benchmark.name, tuple(checks), tuple(shared), tuple(known), dropped=benchmark.dropped)


def _counted(count: int, one: str, several: str) -> str:
    """A number of things in words; empty if there are none."""
    return f"{count:,} {one if count == 1 else several}" if count else ""


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
    """Grey that is stored in three equal channels, as one: the same picture must have the same hash."""
    if (
        image.ndim == 3
        and np.array_equal(image[..., 0], image[..., 1])
        and np.array_equal(image[..., 0], image[..., 2])
    ):
        return image[..., 0]
    return image


def _shared(
    splits: Mapping[str, Split], content: Mapping[str, Sequence[str | None]]
) -> tuple[list[Shared], list[Shared]]:
    """Identical images on sides that must be apart: those that nobody knows of, and those that are known."""
    found: tuple[list[Shared], list[Shared]] = [], []
    for (a, first), (b, second) in combinations(splits.items(), 2):
        if not must_differ(first.role, second.role):
            continue
        key_of = {of: key for of, key in zip(reversed(content[a]), reversed(first.keys), strict=True) if of is not None}
        pairs = [(key_of[of], key) for of, key in zip(content[b], second.keys, strict=True) if of in key_of]
        for side, known in zip(found, (False, True), strict=True):
            if chosen := tuple(pair for pair in pairs if (frozenset(pair) in known_pairs()) == known):
                side.append(Shared(a, b, chosen))
    return found


def must_differ(first: Role, second: Role) -> bool:
    """Whether no image may be in splits of both roles."""
    return first.is_id != second.is_id or second in _APART.get(first, ()) or first in _APART.get(second, ())
