"""Splits whose images are changed when they are read: corrupted, mixed with others, or made into synthetic OOD."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from openbench.core.benchmark import Image, Items, RowItems, Split
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.core.request import Corruption, Field, Mixing, Request, Role
from openbench.data.sources.imagenet_c import KINDS, corrupt
from openbench.data.sources.transforms import cropped
from openbench.digest import digest
from openbench.errors import ConfigError, check_choice

Recipe = Literal["mixture", "patches", "noise"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
_PATCHES = 4  # in a row, and in a column
MIXED_READ = Request(fields=frozenset({Field.FEATURES}))  # of mixed images


def check_corruption(corruption: Corruption, where: str) -> None:
    """Check that a corruption is one of ImageNet-C's fifteen.

    Raises:
        ConfigError: it is not.
    """
    check_choice(f"{where}: corruption", corruption.kind, KINDS)


def corrupted(split: Split, corruption: Corruption, preprocess: Preprocess) -> Split:
    """Return a split whose images are corrupted when they are read; the draws depend on the image's key only.

    Args:
        split: as it is.
        corruption: kind and severity.
        preprocess: of the network: strengths are in pixels of its crop, which is taken first. A transform of the
            user's own may crop by itself: it gets the whole corrupted image, and strengths are in pixels of that.

    Raises:
        ConfigError: no such corruption.
    """
    check_corruption(corruption, f"split '{split.name}'")
    crop = replace(preprocess, resize=preprocess.crop) if split.as_stored else preprocess
    geometry = None if isinstance(preprocess, OwnPreprocess) else crop
    return replace(
        split,
        items=_Corrupted(split.items, split.keys, corruption, geometry),
        digest=digest({"of": split.digest, "corruption": corruption, "crop": geometry, **_raised()}),
        as_stored=True,
    )


def _raised() -> dict[str, int]:
    """Return the version of the corruptions, once it is above 1, for the digest of the copies."""
    return {} if Corruption.version == 1 else {"version": Corruption.version}


@dataclass(frozen=True, eq=False)
class _Corrupted:
    """Items that are corrupted when read."""

    clean: Items
    keys: Sequence[str]
    corruption: Corruption
    geometry: Preprocess | None

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, index: int) -> Image:
        rng = np.random.default_rng(int(digest((self.corruption, self.keys[index])), 16))
        whole = self.clean[index]
        image = whole if self.geometry is None else cropped(whole, self.geometry)
        return corrupt(image, self.corruption.kind, self.corruption.severity, rng)


def mixed(split: Split, others: Split, mixing: Mixing, preprocess: Preprocess) -> Split:
    """Return a split whose images are mixed when they are read; the draws depend on the image's key only.

    Args:
        split: as it is.
        others: the images to mix with.
        mixing: the shares of an image that are left.
        preprocess: of the network; its crops are mixed, and rounded to 8 bits. A transform of the user's own may crop
            by itself: it gets the whole image, mixed with another in its size.
    """
    first, second = (
        replace(preprocess, resize=preprocess.crop) if s.as_stored else preprocess for s in (split, others)
    )
    geometry = None if isinstance(preprocess, OwnPreprocess) else (first, second)
    return replace(
        split,
        items=_Mixed(split.items, split.keys, others.items, mixing, geometry),
        digest=digest({"of": split.digest, "with": others.digest, "mixing": mixing, "crops": geometry}),
        as_stored=True,
    )


@dataclass(frozen=True, eq=False)
class _Mixed:
    """Items that are mixed when read."""

    clean: Items
    keys: Sequence[str]
    others: Items
    mixing: Mixing
    geometry: tuple[Preprocess, Preprocess] | None

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, index: int) -> Image:
        rng = np.random.default_rng(int(digest((self.mixing.seed, self.keys[index])), 16))
        other = self.others[int(rng.integers(len(self.others)))]
        share = self.mixing.shares[int(rng.integers(len(self.mixing.shares)))]
        return _mixture(*_sized(self.clean[index], other, self.geometry), share)


def _sized(image: Image, other: Image, geometry: tuple[Preprocess, Preprocess] | None) -> tuple[Image, Image]:
    """Return an image, and another one in its size."""
    if geometry is not None:
        return cropped(image, geometry[0]), cropped(other, geometry[1])
    height, width = image.shape[:2]
    picture = Pillow.fromarray(np.ascontiguousarray(other))
    return image, np.asarray(picture.resize((width, height), Pillow.Resampling.BILINEAR))


def _mixture(image: Image, other: Image, share: float) -> NDArray[np.uint8]:
    """Return share · image + (1 − share) · other, rounded."""
    first, second = _same_channels(image, other)
    mixture: NDArray[np.uint8] = np.rint(share * first + (1 - share) * second).astype(np.uint8)
    return mixture


def _same_channels(first: Image, second: Image) -> tuple[Image, Image]:
    """Return two crops with as many channels: of a grey and a coloured one the grey one is repeated in three."""
    if first.ndim == second.ndim:
        return first, second
    grey = np.stack([first if first.ndim == 2 else second] * 3, axis=-1)
    return (grey, second) if first.ndim == 2 else (first, grey)


def check_recipes(split: Split, recipes: Sequence[Recipe]) -> None:
    """Check that OOD images can be made of a split by these recipes.

    Raises:
        ConfigError: there are no images; or rows of a table, of which only mixtures can be made.
    """
    if split.unread:
        raise ConfigError("tune=synthetic: there are no ID validation images — use tune=none")
    if split.items[0].ndim == 1 and set(recipes) != {"mixture"}:
        raise ConfigError(
            f"tune=synthetic: recipes {', '.join(recipes)} for rows of numbers — allowed: tune.recipes=[mixture]"
        )


def synthetic(split: Split, recipes: Sequence[Recipe], seed: int, preprocess: Preprocess) -> Split:
    """Return OOD images made of ID images: every recipe applied to every image of a split.

    `mixture` is the mean of an image and one of another class, `patches` its 4 × 4 patches permuted, `noise` uniform
    noise of its size.

    Args:
        split: ID images; of rows of a table only mixtures can be made.
        recipes: in this order.
        seed: of the draws, which depend on it, on the recipe and on the image's key only.
        preprocess: of the network; images are made of its crops. A transform of the user's own may crop by itself: it
            gets images made of whole ones.

    Reference: Hendrycks, Mazeika, Dietterich, "Deep anomaly detection with outlier exposure", ICLR 2019, arXiv
        1812.04606: validation sets "arithmetic mean", "jigsaw" and "uniform noise"; there pairs are of any classes.
    """
    crop = replace(preprocess, resize=preprocess.crop) if split.as_stored else preprocess
    geometry = None if isinstance(preprocess, OwnPreprocess) else (crop, crop)
    images: Items = _Synthetic(split, tuple(recipes), seed, geometry)
    if split.items[0].ndim == 1:  # rows are read in batches
        images = RowItems((np.stack([images[i] for i in range(len(images))]),))
    return replace(
        split,
        name="synthetic",
        role=Role.OOD_VAL,
        items=images,
        labels=np.full(len(images), -1),
        keys=[f"{recipe} {key}" for recipe in recipes for key in split.keys],
        classes=(),
        digest=digest({"of": split.digest, "synthetic": list(recipes), "seed": seed, "crop": geometry}),
        expected=len(images),
        as_stored=True,
    )


@dataclass(frozen=True, eq=False)
class _Synthetic:
    """OOD images that are made when read."""

    of: Split
    recipes: tuple[Recipe, ...]
    seed: int
    geometry: tuple[Preprocess, Preprocess] | None

    def __len__(self) -> int:
        return len(self.recipes) * len(self.of)

    def __getitem__(self, index: int) -> Image:
        recipe, at = self.recipes[index // len(self.of)], index % len(self.of)
        rng = np.random.default_rng(int(digest((self.seed, recipe, self.of.keys[at])), 16))
        image = self.of.items[at]
        if recipe == "mixture":
            others = np.flatnonzero(self.of.labels != self.of.labels[at])  # none: images have no classes
            other = self.of.items[int(rng.choice(others if len(others) else len(self.of)))]
            if image.ndim == 1:
                return (image + other) / 2
            return _mixture(*_sized(image, other, self.geometry), 0.5)
        crop = image if self.geometry is None else cropped(image, self.geometry[0])
        return _permuted(crop, rng) if recipe == "patches" else rng.integers(0, 256, crop.shape, dtype=np.uint8)


def _permuted(image: Image, rng: np.random.Generator) -> Image:
    """Return an image with its patches of a quarter of each side permuted; rows and columns left over stay."""
    height, width = (side // _PATCHES for side in image.shape[:2])
    corners = [(y * height, x * width) for y in range(_PATCHES) for x in range(_PATCHES)]
    permuted = image.copy()
    for (y, x), at in zip(corners, rng.permutation(len(corners)), strict=True):
        from_y, from_x = corners[at]
        permuted[y : y + height, x : x + width] = image[from_y : from_y + height, from_x : from_x + width]
    return permuted
