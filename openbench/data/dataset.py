"""From a data set's config node to a Split: find the container, match it with the manifest, fingerprint the pixels."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.config.build import build
from openbench.config.constraints import Checked, Count, Seed, check_value, check_values, hints_of
from openbench.core.benchmark import Items, Split
from openbench.core.request import Role
from openbench.data.folder_rule import FolderRule, load_rule
from openbench.data.manifests import Manifest, load_classes, load_manifest
from openbench.data.own.images import Contents, contents_of, digest_of
from openbench.data.sources.base import Found, Source, raised_versions
from openbench.data.sources.items import FileItems, VectorItems
from openbench.data.tabular import is_table_part, table_part
from openbench.digest import array_sha256, digest
from openbench.errors import ConfigError, DataError, check_known
from openbench.source import foreign_sources

Incomplete = Literal["error", "allow"]
Fingerprint = Callable[[Items], dict[int, NDArray[Any]]]
_SAMPLED = 32  # images of a set whose pixels enter its digest: reading all of them would take as long as a run
DigestOf = Literal["images", "list"]


@dataclass(frozen=True)
class SetConfig(Checked):
    """A data set's config node.

    Args:
        name: the data set, for messages and as the name of ID splits.
        manifest: name of its list, e.g. `cifar10/test`, or of its rule, or path of the user's own images or list.
        sources: containers by name in which it may come, tried in this order; the first complete one is used, else
            the one that has the most. They are never mixed: they may hold different versions of the same image.
        size: (height, width) of every image as published, or None if it varies.
        min_side: least length of the shorter side as published, or None.
        limit: keep a random subset of that many images, or None for all.
        seed: of that subset.
        keep: only the images of these classes: their names, or the name of a class list; None for all.
        as_stored: whether the images come at the size that networks take, so that they are not cropped; see `Split`.
        digest_of: what stands for the set in the benchmark's digest: `images` (those found), or `list`, so that the
            digest does not depend on whether images are there. The set's own digest always covers the images.
    """

    name: str
    manifest: str
    sources: Mapping[str, Source]
    size: tuple[Count, Count] | None = None
    min_side: Count | None = None
    limit: Count | None = None
    seed: Seed = 0
    keep: str | Sequence[str] | None = None
    as_stored: bool = False
    digest_of: DigestOf = "images"

    @classmethod
    def from_node(cls, node: Mapping[str, Any], where: str) -> "SetConfig":
        """Check the keys of a node and build its sources.

        Raises:
            ConfigError: an unknown key, a missing one, or a source that cannot be built.
        """
        check_known(node, [f.name for f in fields(cls)], where)
        for key in ("name", "manifest", "sources"):
            if not node.get(key):
                raise ConfigError(
                    f"{where}: `{key}` is missing — a set needs a dataset config and a manifest: add "
                    f"`/dataset@{where}: NAME` to the defaults and `manifest:` below; to remove a set use `~{where}`"
                )
        check_value(node["sources"], Mapping[str, Mapping[str, Any]], f"{where}.sources")
        sources = {name: build(source, f"{where}.sources.{name}", Source) for name, source in node["sources"].items()}
        check_values({**node, "sources": sources}, hints_of(cls), where)
        return cls(**{**node, "sources": sources})

    def listing(self) -> Manifest | FolderRule:
        """The manifest or rule of the set, limited to the classes kept.

        Raises:
            DataError: no such thing, one that cannot be read, or a class to keep that it does not have.
        """
        whole = load_listing(self.manifest)
        if self.keep is None:
            return whole
        kept = load_classes(self.keep) if isinstance(self.keep, str) else self.keep
        lacking = sorted(set(kept) - set(whole.class_names()))
        if lacking:
            raise DataError(
                f"data set '{self.name}': manifest '{self.manifest}' has no images of the classes {lacking} — "
                "leave them out of `keep`"
            )
        return whole.only(kept)

    def identity(self) -> str:
        """Return what stands for the whole set without its images: a digest of its list or rule."""
        listing = self.listing()
        # How the other classes are counted is no part of the set.
        listed = listing.digest if isinstance(listing, Manifest) else replace(listing, part_of=None)
        return digest({"list": listed, "limit": self.limit})


@dataclass(frozen=True, eq=False)
class Located:
    """Where a set was found, if anywhere.

    Args:
        manifest: what was looked for, after `limit`.
        listed: how many images the manifest lists.
        wanted: how many of them are to be found, after `limit`.
        found: what the best place has; None if no place has anything.
        source: the source of `found`.
        searched: every place that was looked at.
    """

    manifest: Manifest
    listed: int
    wanted: int
    found: Found | None = None
    source: Source | None = None
    searched: tuple[Path, ...] = ()

    @property
    def count(self) -> int:
        """How many images were found."""
        return 0 if self.found is None else self.found.count


def load_listing(name: str) -> Manifest | FolderRule:
    """Return the manifest or the rule of that name.

    Raises:
        DataError: no such thing, or one that cannot be read.
    """
    if is_table_part(name):
        return table_part(name)
    return load_rule(name) or load_manifest(name)


def locate(config: SetConfig) -> Located:
    """Look for a set in every place that its sources name below `paths.data_roots()`.

    Raises:
        DataError: no such manifest, or a container is there and is not what it should be.
    """
    listing = config.listing()
    best = nothing = _wanted(listing, lambda folder: (), config)
    searched: list[Path] = []
    for source in config.sources.values():
        for place in source.places(paths.data_roots()):
            searched.append(place)
            # A rule needs the files: only they say which images there are.
            ruled = isinstance(listing, FolderRule) and place.exists()
            looked = _wanted(listing, partial(source.names_in, place), config) if ruled else nothing
            has = source.find(place, looked.manifest.keys) if len(looked.manifest) else None
            if has is not None and has.count > best.count:
                best = replace(looked, found=has, source=source)
            if best.count == best.wanted:
                return replace(best, searched=tuple(searched))
    return replace(best, searched=tuple(searched))


def fingerprint(items: Items) -> dict[int, NDArray[Any]]:
    """Return evenly spaced images by position, first and last among them.

    Raises:
        DataError: one of them cannot be read.
    """
    return {position: items[position] for position in _positions(items)}


def readable_fingerprint(items: Items) -> dict[int, NDArray[Any]]:
    """Return those of the same images that can be read: for a check, which names the others itself."""
    found = {}
    for position in _positions(items):
        with suppress(DataError):
            found[position] = items[position]
    return found


def _positions(items: Items) -> list[int]:
    spaced = np.linspace(0, len(items) - 1, min(_SAMPLED, len(items)))
    return [int(position) for position in np.unique(spaced.round().astype(int))]


def split_of(
    config: SetConfig,
    located: Located,
    role: Role,
    classes: Sequence[str],
    where: str,
    *,
    sampled: Fingerprint = fingerprint,
) -> Split:
    """Return the split made of what was found.

    Args:
        config: the set.
        located: what was found of it.
        role: what the images are for.
        classes: ID class names in label order.
        where: its path in the config.
        sampled: picks the images whose pixels enter the digest.

    Raises:
        DataError: nothing was found, a class of an ID set is unknown, or an image of the fingerprint is unreadable.
    """
    if located.found is None:
        raise DataError(f"{where}: data set '{config.name}' has none of its {located.wanted:,} images")
    kept = np.flatnonzero(located.found.present)
    whole = config.limit is None and located.count == located.wanted
    keys = [located.manifest.keys[i] for i in kept]
    shown = [located.manifest.classes[i] for i in kept]
    items = located.found.items
    sample = sampled(items)
    contents = located.found.contents
    if contents is None and located.found.files:
        contents = contents_of(located.found.files)
    if isinstance(items, FileItems):
        # What is decoded later must match what enters the digest now.
        known = {position: array_sha256(image) for position, image in sample.items()}
        items = replace(items, contents=contents, pixels=known)
    seen = _content(config, keys, shown, sample.values())
    named_by_group = role in (Role.NEAR, Role.FAR, Role.CSID) and "." in where
    return Split(
        name=where.rpartition(".")[2] if named_by_group else config.name,
        role=role,
        items=items,
        labels=_labels(shown, role, classes, where),
        keys=keys,
        # An OOD set as it is defined shares no class with ID, whether or not all of it was found.
        classes=tuple(classes) if role.is_id else config.listing().class_names(),
        digest=digest(seen | _whole(items, contents) | _read_by(located.source)),
        expected=located.listed,
        as_stored=config.as_stored,
        deviations=tuple(_deviations(config, located, sample.values())),
        identity=config.identity() if whole and config.digest_of == "list" else "",
        source=located.source,
    )


def unread_split(config: SetConfig, role: Role, classes: Sequence[str]) -> Split:
    """Return the split of a set that nothing reads: its images are not looked for.

    Args:
        config: the set.
        role: an ID role.
        classes: ID class names in label order.
    """
    listing = config.listing()
    listed = len(listing) if isinstance(listing, Manifest) else listing.size
    return Split(
        name=config.name,
        role=role,
        items=(),
        labels=np.zeros(0, dtype=np.int64),
        keys=(),
        classes=tuple(classes),
        digest=config.identity(),
        expected=listed or 0,
        deviations=tuple(_derived(config)),
        identity=config.identity(),
        unread=True,
    )


def _wanted(listing: Manifest | FolderRule, names_in: Callable[[str], Iterable[str]], config: SetConfig) -> Located:
    """What is to be found of a manifest or rule; nothing has been found yet."""
    whole, listed = (listing, len(listing)) if isinstance(listing, Manifest) else listing.expand(names_in)
    return Located(_limited(whole, config), listed, min(listed, config.limit or listed))


def _limited(manifest: Manifest, config: SetConfig) -> Manifest:
    if config.limit is None or config.limit >= len(manifest):
        return manifest
    kept = np.sort(np.random.default_rng(config.seed).permutation(len(manifest))[: config.limit])
    return Manifest(manifest.name, tuple(manifest.keys[i] for i in kept), tuple(manifest.classes[i] for i in kept))


def _labels(shown: Sequence[str], role: Role, classes: Sequence[str], where: str) -> NDArray[np.int64]:
    if not role.is_id:
        return np.full(len(shown), -1, dtype=np.int64)
    index = {name: i for i, name in enumerate(classes)}
    unknown = sorted(set(shown) - set(index))
    if unknown:
        raise DataError(f"{where}: classes {unknown[:5]} of the manifest are not ID classes — allowed: {list(classes)}")
    return np.array([index[name] for name in shown], dtype=np.int64)


def _content(
    config: SetConfig, keys: Sequence[str], shown: Sequence[str], sample: Iterable[NDArray[np.uint8]]
) -> dict[str, Any]:
    """Everything that decides what a network is shown; `as_stored` only where it is true, so that digests stay."""
    content = {"keys": keys, "classes": shown, "pixels": [array_sha256(image) for image in sample]}
    return {**content, "as_stored": True} if config.as_stored else content


def _whole(items: Items, contents: Contents | None) -> dict[str, str]:
    """All that is read, where that is at hand: bytes of files that their owner may change, and rows in memory.

    A sample could miss a change. Published sets of images have neither.
    """
    rows = {"rows": array_sha256(items.values[items.rows])} if isinstance(items, VectorItems) else {}
    return rows if contents is None else {**rows, "bytes": digest_of(contents)}


def _read_by(source: Source | None) -> dict[str, Any]:
    """The code that makes the images, unless openbench ships it in version 1: a sample could miss a change."""
    made = {} if source is None else {"versions": raised_versions(source), "sources": foreign_sources(source)}
    return {key: of for key, of in made.items() if of}


def _derived(config: SetConfig) -> list[str]:
    """Why a set's rule does not give what was published, if it does not."""
    listing = load_listing(config.manifest)
    return [f"derived: {listing.derived}"] if isinstance(listing, FolderRule) and listing.derived else []


def _deviations(config: SetConfig, located: Located, sample: Iterable[NDArray[np.uint8]]) -> list[str]:
    found = []
    if located.source is not None and located.source.deviation:
        found.append(located.source.deviation)
    found += _derived(config)
    if located.wanted < located.listed:
        found.append(f"limited to {located.wanted} of {located.listed} images (seed {config.seed})")
    if located.count < located.wanted:
        found.append(f"{located.count} of {located.wanted} images found")
    if config.size is None and config.min_side is None:
        return found
    # If no image can be read, a check reports that alone.
    sizes = sorted({(image.shape[0], image.shape[1]) for image in sample})
    if sizes and config.size is not None and any(size != tuple(config.size) for size in sizes):
        seen = ", ".join(f"{h}×{w}" for h, w in sizes[:3])
        found.append(f"images are {seen}; {config.size[0]}×{config.size[1]} expected")
    elif sizes and config.min_side is not None and min(min(size) for size in sizes) < config.min_side:
        least = min(min(size) for size in sizes)
        found.append(f"shorter side of {least} pixels; at least {config.min_side} expected")
    return found
