"""Opening a data set: locate its container, match it with the manifest, digest the pixels."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openbench import paths
from openbench.config.build import build, from_node
from openbench.config.constraints import Checked, Count, Seed, check_value
from openbench.core.benchmark import Items, RowItems, Split
from openbench.core.request import Role
from openbench.data.manifests import FolderRule, Manifest, load_classes, load_manifest, load_rule
from openbench.data.own.images import Contents, contents_of, digest_of
from openbench.data.sources.base import FileItems, FoundImages, Source, raised_versions, spaced
from openbench.data.tabular import is_table_part, table_part
from openbench.digest import array_sha256, digest
from openbench.errors import ConfigError, DataError
from openbench.source import foreign_sources

Incomplete = Literal["error", "allow"]
Fingerprint = Callable[[Items], dict[int, NDArray[Any]]]
_SAMPLED = 32  # images of a set whose pixels enter its digest: reading all of them would take as long as a run
DigestOf = Literal["images", "list"]
_NOTHING = Manifest("", (), ())


@dataclass(frozen=True)
class SetConfig(Checked):
    """A data set's config node.

    Args:
        name: the data set, for messages and as the name of ID splits.
        manifest: name of its list, e.g. `cifar10/test`, or of its rule, or path of the user's own images or list.
        sources: containers that it may come in, tried in this order; the first complete one is used, else the one with
            the most images. They are never mixed, as they may have different versions of the same image.
        size: (height, width) of every image as published, or None if it varies.
        min_side: least length of the shorter side as published, or None.
        limit: keep a random subset of that many images, or None for all.
        seed: of that subset.
        keep: only the images of these classes: their names, or the name of a class list; None for all.
        as_stored: whether the images come at the size that networks take, so that they are not cropped; see `Split`.
        digest_of: what enters the benchmark's digest: `images` (those found), or `list`, so that the
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
        for key in ("name", "manifest", "sources"):
            if not node.get(key):
                raise ConfigError(
                    f"{where}: `{key}` is missing — add `/dataset@{where}: NAME` to the defaults and `manifest:` "
                    f"below, or remove the set: `~{where}`"
                )
        check_value(node["sources"], Mapping[str, Mapping[str, Any]], f"{where}.sources")
        sources = {name: build(source, f"{where}.sources.{name}", Source) for name, source in node["sources"].items()}
        return from_node(cls, {**node, "sources": sources}, where)

    def listing(self) -> Manifest | FolderRule:
        """Return the manifest or rule of the set, limited to the classes in `keep`.

        Raises:
            DataError: there is none, it cannot be read, or it lacks a class in `keep`.
        """
        whole = load_listing(self.manifest)
        if self.keep is None:
            return whole
        classes = load_classes(self.keep) if isinstance(self.keep, str) else self.keep
        lacking = sorted(set(classes) - set(whole.class_names()))
        if lacking:
            raise DataError(f"manifest '{self.manifest}' has no images of the classes {lacking} — change `keep`")
        return whole.only(classes)

    def identity(self) -> str:
        """Return a digest of the set's list or rule, which does not need its images."""
        listing = self.listing()
        # The count of the other classes is not part of the set.
        listed = listing.digest if isinstance(listing, Manifest) else replace(listing, part_of=None)
        return digest({"list": listed, "limit": self.limit})


@dataclass(frozen=True, eq=False)
class BenchmarkSet:
    """A data set in its role.

    Args:
        where: its path in the config, e.g. `benchmark.far.svhn`.
        role: its role.
        config: its node, with its sources built.
        member: its name among joined ID sets; empty where a part is one set.
    """

    where: str
    role: Role
    config: SetConfig
    member: str = ""

    @property
    def path(self) -> str:
        """Its path below `benchmark`, e.g. `far.svhn`."""
        return self.where.removeprefix("benchmark.")

    @property
    def name(self) -> str:
        """Its name in its group in results, else the data set's."""
        in_group = self.role in (Role.NEAR, Role.FAR, Role.CSID) and "." in self.where
        return self.where.rpartition(".")[2] if in_group else self.config.name


@dataclass(frozen=True, eq=False)
class Located(BenchmarkSet):
    """How much of a data set is on the disk, and where.

    Args:
        manifest: the images that were searched, after `limit`.
        listed: number of images in the manifest.
        expected: number of images expected, after `limit`.
        images: the images of the best place; None if no place has any.
        source: the source of `images`.
        searched: every path that was searched.
        error: why it could not be searched; empty if it was.
    """

    manifest: Manifest = _NOTHING
    listed: int = 0
    expected: int = 0
    images: FoundImages | None = None
    source: Source | None = None
    searched: tuple[Path, ...] = ()
    error: str = ""

    @property
    def found(self) -> int:
        """Number of images found."""
        return 0 if self.images is None else self.images.count

    @property
    def missing(self) -> bool:
        """Whether images of it are missing."""
        return bool(self.error) or not 0 < self.expected <= self.found

    def __str__(self) -> str:
        reason = f" — {self.error}" if self.error else ""
        return f"{self.path}: {self.config.name}, {self.found:,} of {self.expected:,} images{reason}"


def load_listing(name: str) -> Manifest | FolderRule:
    """Return the manifest or the rule of that name.

    Raises:
        DataError: no such thing, or one that cannot be read.
    """
    return table_part(name) if is_table_part(name) else load_rule(name) or load_manifest(name)


def locate(entry: BenchmarkSet) -> Located:
    """Return the place of a set, searched in every path that its sources name below `paths.data_roots()`.

    Raises:
        DataError: no such manifest, or a damaged container.
    """
    listing = entry.config.listing()
    best = nothing = _expected(entry, listing, lambda folder: ())
    searched: list[Path] = []
    for source in entry.config.sources.values():
        for place in source.places(paths.data_roots()):
            searched.append(place)
            # The images of a rule are known from the files only.
            ruled = isinstance(listing, FolderRule) and place.exists()
            here = _expected(entry, listing, partial(source.names_in, place)) if ruled else nothing
            images = source.find(place, here.manifest.keys) if len(here.manifest) else None
            if images is not None and images.count > best.found:
                best = replace(here, images=images, source=source)
            if best.found == best.expected:
                return replace(best, searched=tuple(searched))
    return replace(best, searched=tuple(searched))


def fingerprint(items: Items) -> dict[int, NDArray[Any]]:
    """Return evenly spaced images by position, first and last among them.

    Raises:
        DataError: one of them cannot be read.
    """
    return {position: items[position] for position in spaced(len(items), _SAMPLED).tolist()}


def readable_fingerprint(items: Items) -> dict[int, NDArray[Any]]:
    """Return those of the same images that can be read, for a check that reports the others itself."""
    images = {}
    for position in spaced(len(items), _SAMPLED).tolist():
        with suppress(DataError):
            images[position] = items[position]
    return images


def split_of(located: Located, classes: Sequence[str], sampled: Fingerprint = fingerprint) -> Split:
    """Return the split of a located set.

    Args:
        located: its place.
        classes: ID class names in label order.
        sampled: picks the images whose pixels enter the digest.

    Raises:
        DataError: there are no images, a class of an ID set is unknown, or a sampled image is unreadable.
    """
    where, role, config, images = located.where, located.role, located.config, located.images
    if images is None:
        raise DataError(f"{where}: data set '{config.name}' has none of its {located.expected:,} images")
    rows = np.flatnonzero(images.present)
    keys = [located.manifest.keys[i] for i in rows]
    names = [located.manifest.classes[i] for i in rows]
    items = images.items
    sample = sampled(items)
    contents = contents_of(images.files) if images.files else None
    if isinstance(items, FileItems):
        # Images that are decoded later must equal those in the digest.
        pixels = {position: array_sha256(image) for position, image in sample.items()}
        items = replace(items, contents=contents if items.contents is None else items.contents, pixels=pixels)
    content: dict[str, Any] = {
        "keys": keys,
        "classes": names,
        "pixels": [array_sha256(image) for image in sample.values()],
    }
    if config.as_stored:  # only where it is true, so that older digests stay valid
        content |= {"as_stored": True}
    complete = config.limit is None and located.found == located.expected
    return Split(
        name=located.name,
        role=role,
        items=items,
        labels=_labels(names, role, classes, where),
        keys=keys,
        # Classes of the whole OOD set, whether or not all of it was found: none of them may be an ID class.
        classes=tuple(classes) if role.is_id else config.listing().class_names(),
        digest=digest(content | _all_bytes(items, contents) | _code(located.source)),
        expected=located.listed,
        as_stored=config.as_stored,
        deviations=tuple(_deviations(located, sample.values())),
        identity=config.identity() if complete and config.digest_of == "list" else "",
        source=located.source,
    )


def unread_split(entry: BenchmarkSet, classes: Sequence[str]) -> Split:
    """Return the split of an ID set that nothing reads, without its images.

    Args:
        entry: the set.
        classes: ID class names in label order.
    """
    config = entry.config
    return Split(
        name=config.name,
        role=entry.role,
        items=(),
        labels=np.zeros(0, dtype=np.int64),
        keys=(),
        classes=tuple(classes),
        digest=config.identity(),
        expected=config.listing().size or 0,
        deviations=tuple(_derived(config)),
        identity=config.identity(),
        unread=True,
    )


def _expected(entry: BenchmarkSet, listing: Manifest | FolderRule, names_in: Callable[[str], Iterable[str]]) -> Located:
    """The images to search of a manifest or rule."""
    whole, listed = (listing, len(listing)) if isinstance(listing, Manifest) else listing.expand(names_in)
    expected = min(listed, entry.config.limit or listed)
    return Located(**vars(entry), manifest=_limited(whole, entry.config), listed=listed, expected=expected)


def _limited(manifest: Manifest, config: SetConfig) -> Manifest:
    if config.limit is None or config.limit >= len(manifest):
        return manifest
    return manifest.at(sorted(np.random.default_rng(config.seed).permutation(len(manifest))[: config.limit].tolist()))


def _labels(names: Sequence[str], role: Role, classes: Sequence[str], where: str) -> NDArray[np.int64]:
    if not role.is_id:
        return np.full(len(names), -1, dtype=np.int64)
    index = {name: i for i, name in enumerate(classes)}
    unknown = sorted(set(names) - set(index))
    if unknown:
        raise DataError(f"{where}: classes {unknown[:5]} of the manifest are not ID classes — allowed: {list(classes)}")
    return np.array([index[name] for name in names], dtype=np.int64)


def _all_bytes(items: Items, contents: Contents | None) -> dict[str, str]:
    """A digest of all images where it is at hand, for files of the user's own and rows in memory.

    A sample could miss a change.
    """
    if contents is not None:
        return {"bytes": digest_of(contents)}
    return {"rows": array_sha256(items.gather(0, len(items)))} if isinstance(items, RowItems) else {}


def _code(source: Source | None) -> dict[str, Any]:
    """The code of a source, unless openbench ships it in version 1: a sample could miss a change."""
    code = {} if source is None else {"versions": raised_versions(source), "sources": foreign_sources(source)}
    return {key: value for key, value in code.items() if value}


def _derived(config: SetConfig) -> list[str]:
    """Why the images of a set's rule are not the published ones, if they are not."""
    listing = load_listing(config.manifest)
    return [f"derived: {listing.derived}"] if isinstance(listing, FolderRule) and listing.derived else []


def _deviations(located: Located, sample: Iterable[NDArray[np.uint8]]) -> list[str]:
    source, config = located.source, located.config
    texts = [source.deviation] if source is not None and source.deviation else []
    texts += _derived(config)
    if located.expected < located.listed:
        texts.append(f"limited to {located.expected} of {located.listed} images (seed {config.seed})")
    if located.found < located.expected:
        texts.append(f"{located.found} of {located.expected} images found")
    if config.size is None and config.min_side is None:
        return texts
    # Empty if no image can be read, which a check reports alone.
    sizes = sorted({(image.shape[0], image.shape[1]) for image in sample})
    if sizes and config.size is not None and any(size != tuple(config.size) for size in sizes):
        sides = ", ".join(f"{h}×{w}" for h, w in sizes[:3])
        texts.append(f"images are {sides}; {config.size[0]}×{config.size[1]} expected")
    elif sizes and config.min_side is not None and (least := min(map(min, sizes))) < config.min_side:
        texts.append(f"shorter side of {least} pixels; at least {config.min_side} expected")
    return texts
