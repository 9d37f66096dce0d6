"""Splits whose images are changed when they are read: corrupted, mixed with others, or made into synthetic OOD."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from PIL import Image as Pillow

from openbench.core.benchmark import Image, Items, RowItems, Split
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.core.request import Corruption, Field, Mixing, Request, Role
from openbench.data.loading import cropped
from openbench.data.sources.base import MadeItems
from openbench.data.sources.imagenet_c import KINDS, corrupt
from openbench.digest import digest, generator_of
from openbench.errors import ConfigError, check_choice

Recipe = Literal["mixture", "patches", "noise"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
_PATCHES = 4  # in a row, and in a column
MIXED_READ = Request(fields=frozenset({Field.FEATURES}))  # of mixed images


class _Changed(MadeItems):
    """Items that this module makes; a type of its own tells the feature cache which code they depend on."""


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
    crop = _crop_of(split, preprocess)

    def make(index: int) -> Image:
        image = _cropped(split.items[index], crop)
        return corrupt(image, corruption.kind, corruption.severity, generator_of(corruption, split.keys[index]))

    raised = {} if Corruption.version == 1 else {"version": Corruption.version}
    return _changed(split, make, {"corruption": corruption, "crop": crop, **raised})


def _changed(split: Split, make: Callable[[int], Image], how: Mapping[str, object]) -> Split:
    """A split with other images; its digest says how they are made."""
    content = digest({"of": split.digest, **how})
    return replace(split, items=_Changed(len(split), make), digest=content, as_stored=True)


def _crop_of(split: Split, preprocess: Preprocess) -> Preprocess | None:
    """The crop in which images are changed; None for a transform of the user's own, which may crop by itself."""
    if isinstance(preprocess, OwnPreprocess):
        return None
    return replace(preprocess, resize=preprocess.crop) if split.as_stored else preprocess


def _cropped(image: Image, crop: Preprocess | None) -> Image:
    return image if crop is None else cropped(image, crop)


def mixed(split: Split, others: Split, mixing: Mixing, preprocess: Preprocess) -> Split:
    """Return a split whose images are mixed when they are read; the draws depend on the image's key only.

    Args:
        split: as it is.
        others: the images to mix with.
        mixing: the shares of an image that are left.
        preprocess: of the network; its crops are mixed, and rounded to 8 bits. A transform of the user's own may crop
            by itself: it gets the whole image, mixed with another in its size.
    """
    first, second = _crop_of(split, preprocess), _crop_of(others, preprocess)

    def make(index: int) -> Image:
        rng = generator_of(mixing.seed, split.keys[index])
        other = _cropped(others.items[int(rng.integers(len(others)))], second)
        share = mixing.shares[int(rng.integers(len(mixing.shares)))]
        return _mixture(_cropped(split.items[index], first), other, share)

    crops = first and (first, second)
    return _changed(split, make, {"with": others.digest, "mixing": mixing, "crops": crops})


def _mixture(image: Image, other: Image, share: float) -> Image:
    """Return share · image + (1 − share) · other in the image's size, rounded; grey counts as three equal channels."""
    height, width = image.shape[:2]
    if other.shape[:2] != (height, width):
        picture = Pillow.fromarray(np.ascontiguousarray(other))
        other = np.asarray(picture.resize((width, height), Pillow.Resampling.BILINEAR))
    if image.ndim != other.ndim:
        image, other = np.atleast_3d(image), np.atleast_3d(other)
    return np.rint(share * image + (1 - share) * other).astype(np.uint8)


def check_recipes(split: Split, recipes: Sequence[Recipe]) -> None:
    """Check that OOD images can be made of a split by these recipes.

    Raises:
        ConfigError: there are no images; or rows of a table, of which only mixtures can be made.
    """
    if split.unread:
        raise ConfigError("tune=synthetic: there are no ID validation images — use tune=none")
    if split.items[0].ndim == 1 and set(recipes) != {"mixture"}:
        raise ConfigError(f"tune.recipes is {', '.join(recipes)} for rows of numbers — allowed: tune.recipes=[mixture]")


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
    crop, is_row = _crop_of(split, preprocess), split.items[0].ndim == 1

    def make(index: int) -> Image:
        recipe, at = recipes[index // len(split)], index % len(split)
        rng, image = generator_of(seed, recipe, split.keys[at]), _cropped(split.items[at], None if is_row else crop)
        if recipe == "patches":
            return _permuted(image, rng)
        if recipe == "noise":
            return rng.integers(0, 256, image.shape, dtype=np.uint8)
        others = np.flatnonzero(split.labels != split.labels[at])  # none: images have no classes
        other = split.items[int(rng.choice(others if len(others) else len(split)))]
        return (image + other) / 2 if is_row else _mixture(image, _cropped(other, crop), 0.5)

    count = len(recipes) * len(split)
    images: Items = _Changed(count, make)
    if is_row:  # rows are read in batches
        images = RowItems((np.stack([make(index) for index in range(count)]),))
    return replace(
        split,
        name="synthetic",
        role=Role.OOD_VAL,
        items=images,
        labels=np.full(count, -1),
        keys=[f"{recipe} {key}" for recipe in recipes for key in split.keys],
        classes=(),
        digest=digest({"of": split.digest, "synthetic": list(recipes), "seed": seed, "crop": crop and (crop, crop)}),
        expected=count,
        as_stored=True,
    )


def _permuted(image: Image, rng: np.random.Generator) -> Image:
    """Return an image with its patches of a quarter of each side permuted; rows and columns left over stay."""
    height, width = (side // _PATCHES for side in image.shape[:2])
    corners = [(y * height, x * width) for y in range(_PATCHES) for x in range(_PATCHES)]
    permuted = image.copy()
    for (y, x), at in zip(corners, rng.permutation(len(corners)), strict=True):
        from_y, from_x = corners[at]
        permuted[y : y + height, x : x + width] = image[from_y : from_y + height, from_x : from_x + width]
    return permuted
