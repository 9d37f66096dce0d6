"""From the resolved `benchmark` config node to a Benchmark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openbench.core.benchmark import Benchmark, Split
from openbench.data.benchmark_config import BenchmarkConfig, SetNode
from openbench.data.dataset import Located, SetConfig, locate, missing_message, split_of, unread_split
from openbench.data.fingerprint import Fingerprint, fingerprint
from openbench.data.joined import join, joined_classes
from openbench.data.missing import SetStatus, missing_sets
from openbench.errors import DataError


@dataclass(frozen=True, eq=False)
class OpenSet:
    """One data set of a benchmark, and what was found of it.

    Args:
        entry: its node.
        config: the same, checked.
        located: what was found; None if it was not looked for, because nothing reads it.
    """

    entry: SetNode
    config: SetConfig
    located: Located | None

    @property
    def status(self) -> SetStatus | None:
        """What is missing of it; None if nothing is."""
        if self.located is None or 0 < self.located.wanted <= self.located.count:
            return None
        found = self.located
        return SetStatus(
            self.entry.path, self.config.name, self.entry.role, found.count, found.wanted, found.searched, ""
        )


def build_benchmark(node: Mapping[str, Any], reader: str | None = None) -> Benchmark:
    """Return the benchmark that a plain, resolved `benchmark` node describes: see BenchmarkConfig and `open_benchmark`.

    Args:
        node: as `BenchmarkConfig.parse` takes it.
        reader: what reads the ID training images.
    """
    return open_benchmark(BenchmarkConfig.parse(node), reader)


def open_benchmark(config: BenchmarkConfig, reader: str | None = None, sampled: Fingerprint = fingerprint) -> Benchmark:
    """Return the benchmark of a parsed node, with its sets found and compared with their manifests.

    Args:
        config: the node, parsed.
        reader: what reads the ID training images, for the message if they are missing, e.g. `method 'knn', which is
            fitted on it`; empty = nothing does, so they need not be there; None = not known, so they must be.
        sampled: picks the images of each set whose pixels enter its digest.

    Raises:
        ConfigError: an unknown or missing key of a set.
        DataError: sets are missing or incomplete, all of them in one message, or one is unreadable.
        LeakageError: two sets share classes, and must not.
    """
    classes, own = config.classes, config.members
    dropped = config.removed
    opened: dict[str, Split] = {}
    members: dict[str, dict[str, Split]] = {}
    for found in _complete([_looked_for(entry, reader) for entry in config.sets], config, reader or ""):
        entry = found.entry
        if found.located is None:
            opened[entry.path] = unread_split(found.config, entry.role, classes)
            continue
        if found.located.count == 0:
            dropped.append(entry.path)
            continue
        where = f"benchmark.{entry.path}"
        of = own.get(entry.member, classes)
        split = split_of(found.config, found.located, entry.role, of, where, sampled=sampled)
        if entry.member:
            members.setdefault(entry.path.removesuffix(f".{entry.member}"), {})[entry.member] = split
        else:
            opened[entry.path] = split if entry.path in config.defined else _added(split)
    opened |= {path: join(parts, joined_classes(own)) for path, parts in members.items()}
    return Benchmark(
        name=config.name,
        classes=classes,
        id_train=opened["id.train"],
        id_val=opened["id.val"],
        id_test=opened["id.test"],
        near=_group(opened, "near"),
        far=_group(opened, "far"),
        csid=_group(opened, "csid"),
        ood_val=opened.get("ood_val"),
        ood_train=opened.get("ood_train"),
        preprocess=config.preprocess,
        disjoint=config.disjoint,
        known_overlap=config.known_overlap,
        known_id_overlap=config.known_id_overlap,
        dropped=tuple(dropped),
    )


def _looked_for(entry: SetNode, reader: str | None) -> OpenSet:
    """A set and what was found of it; a set that nothing reads is used only if all of it is there."""
    config = SetConfig.from_node(entry.node, f"benchmark.{entry.path}")
    unread = entry.path == "id.train" and reader == ""
    if unread and config.digest_of == "list" and config.limit is None:
        return OpenSet(entry, config, None)
    found = OpenSet(entry, config, locate(config))
    return OpenSet(entry, config, None) if unread and found.status else found


def _complete(sets: Sequence[OpenSet], config: BenchmarkConfig, reader: str) -> Sequence[OpenSet]:
    """Return the sets, if the benchmark can be run without those that are missing.

    Raises:
        DataError: sets are missing.
    """
    statuses = [found.status for found in sets]
    gaps = [status for status in statuses if status is not None]
    if config.incomplete == "allow":
        gaps = [gap for gap in gaps if not gap.found and gap.path.startswith("id.")]
    if gaps:
        raise DataError(missing_sets(gaps, len(sets), config.typed, reader))
    return sets


def survey(benchmark: BenchmarkConfig) -> list[SetStatus]:
    """Return what is found of every set of a benchmark, without refusing anything that is missing.

    Raises:
        ConfigError: an unknown or missing key of a set.
    """
    result = []
    for entry in benchmark.sets:
        where = f"benchmark.{entry.path}"
        config = SetConfig.from_node(entry.node, where)
        try:
            located = locate(config)
        except DataError as error:
            result.append(SetStatus(entry.path, config.name, entry.role, 0, 0, (), str(error)))
            continue
        wanted = located.wanted
        message = missing_message(config, located, where, benchmark.typed) if located.count < wanted else ""
        result.append(SetStatus(entry.path, config.name, entry.role, located.count, wanted, located.searched, message))
    return result


def _added(split: Split) -> Split:
    """The split, marked as added: another set changes the means over sets, so this is another benchmark."""
    return replace(split, deviations=(*split.deviations, "not part of the benchmark as defined"))


def _group(opened: Mapping[str, Split], group: str) -> dict[str, Split]:
    return {path.partition(".")[2]: split for path, split in opened.items() if path.startswith(f"{group}.")}
