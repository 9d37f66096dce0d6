"""What makes or changes images: augmentations, mixings, readings, consistencies, corruptions and drawn pictures.

Of images are kept a few pixels and, for every image, sums of all pixels with small whole weights.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from golden_cases import Case, Entry, Values, classes_of, file_of, named, version_with_parts
from golden_inputs import bell, single, whole
from numpy.typing import NDArray

import openbench.data
import openbench.training
from openbench.core import request
from openbench.core.benchmark import Split
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.sources.base import FoundImages, Source, rows_found
from openbench.data.sources.corruptions import CORRUPTIONS, CommonCorruptions, Corrupted
from openbench.data.sources.embedded import Embedded, Noise, PhotoPatches, SklearnDigits, Textures
from openbench.data.sources.imagenet_c import KINDS, SEVERITIES
from openbench.features.changed_images import mixed
from openbench.training.augment.augmentations import (
    Augmentation,
    AugMix,
    CutMix,
    Cutout,
    HorizontalFlip,
    JensenShannon,
    Mixing,
    Mixup,
    RandAugment,
    RandomCrop,
    RegMixup,
)
from openbench.training.augment.pixmix import PixMix, fractals
from openbench.training.augment.reading import PictureFolder, PreparedVersions, RandomResizedCrop, Reading

Pixels = NDArray[np.uint8]
# A pixel may be rounded to the next grey level; in a sum its weight is 3 at most.
LEVEL, WEIGHT, EXACT = 1.0, 3.0, 8

AUGMENTATIONS: dict[type, list[Any]] = {
    RandomCrop: [RandomCrop(), RandomCrop(1)],
    HorizontalFlip: [HorizontalFlip(), HorizontalFlip(0.2)],
    Cutout: [Cutout(side=6), Cutout(2, 3, 0.0)],
    RandAugment: [RandAugment(), RandAugment(2, 9)],
    AugMix: [AugMix(), AugMix(8, 2, 2, 0.5)],
    PixMix: [PixMix(drawn=4), PixMix(2, 1.0, 10, None, 3, 1)],
    Mixup: [Mixup(), Mixup(2.0)],
    RegMixup: [RegMixup(), RegMixup(1.0)],
    CutMix: [CutMix(), CutMix(0.5, 0.5)],
    RandomResizedCrop: [RandomResizedCrop(), RandomResizedCrop((0.5, 0.6), (0.2, 0.3))],
    PreparedVersions: [
        PreparedVersions((PictureFolder("one", "any"), PictureFolder("two", "any"))),
        PreparedVersions((PictureFolder("one", "any"),), then=RandomResizedCrop()),
    ],
    JensenShannon: [JensenShannon(), JensenShannon(AugMix(1), 2.0)],
}
DRAWN: dict[type, list[tuple[Embedded, tuple[str, ...]]]] = {
    SklearnDigits: [(SklearnDigits(), ("-",))],
    PhotoPatches: [(PhotoPatches(), ("china", "flower")), (PhotoPatches(3), ("china",))],
    Noise: [(Noise(), ("uniform", "normal")), (Noise(3), ("normal",))],
    Textures: [(Textures(), ("grating", "checks", "blobs")), (Textures(3), ("blobs",))],
}
AMOUNTS = {
    "gaussian_noise": (0.1, 0.3),
    "gaussian_blur": (0.5, 2.0),
    "contrast": (0.2, 0.7),
    "brightness": (-0.3, 0.2),
    "shift": (1, 2.5),
}


def classes() -> list[type]:
    """Everything that augments training images, and every source that makes images or draws them."""
    augmenting = classes_of(openbench.training, (Augmentation, Mixing, Reading, JensenShannon))
    sources = classes_of(openbench.data, (Source,))
    return augmenting + [s for s in sources if issubclass(s, Embedded) or "seed" in {f.name for f in fields(s)}]


def entries() -> Iterator[Entry]:
    """One entry per class."""
    for cls, values in AUGMENTATIONS.items():
        cases = {f"{i} {named(_told(value))}".strip(): _case(value) for i, value in enumerate(values)}
        if cls is PixMix:
            cases["fractals"] = _pixels(PixMix(), partial(fractals, 3, 24), 0)
        yield Entry(f"augmentations/{cls.__qualname__}", file_of(cls), cases)
    for drawn, sets in DRAWN.items():
        cases = {}
        for source, names in sets:
            images = partial(_embedded, source)
            cases |= {f"seed {getattr(source, 'seed', 0)} {name}": _pixels(source, images, name) for name in names}
        yield Entry(f"images/{drawn.__qualname__}", file_of(drawn), cases)
    simple = {}
    for kind in CORRUPTIONS:
        for amount in AMOUNTS[kind]:
            corrupted = Corrupted(_Given(), kind, amount)
            simple[f"{kind} {amount}"] = _pixels(corrupted, partial(_corrupted, corrupted), 4)
    yield Entry("images/Corrupted", file_of(Corrupted), simple)
    yield Entry("images/CommonCorruptions", file_of(CommonCorruptions), dict(_common()))
    mixing = request.Mixing
    yield Entry(
        "images/Mixed", file_of(mixed), {f"seed {s}": Case(mixing.version, partial(_mixed_split, s)) for s in (0, 1)}
    )


def _common() -> Iterator[tuple[str, Case]]:
    """Each corruption at each severity on a small and on a large image; and what is drawn per image."""
    for kind in KINDS:
        for severity in SEVERITIES:
            source = CommonCorruptions({}, kind, severity)
            yield f"{kind} {severity}", _pixels(source, partial(_common_images, source), (16, 88))
    for source in (CommonCorruptions({}), CommonCorruptions({}, "weather", seed=1, resize=12, crop=10)):
        yield f"{source.kind} drawn", _pixels(source, partial(_common_images, source), (16, 16, 16, 17))


def _mixed_split(seed: int) -> Values:
    """Small and large, grey and coloured images, in the network's crop."""
    shapes = ((12, 12, 3), (12, 12), (15, 18, 3), (12, 14, 3))
    splits = []
    for name, start in (("own", 600), ("others", 610)):
        items = [whole(start + i, shape, 256).astype(np.uint8) for i, shape in enumerate(shapes)]
        keys = [f"{name}/{i}" for i in range(len(items))]
        splits.append(Split(name, Role.ID_TRAIN, items, np.zeros(4, np.int64), keys, ("a",), name, 4))
    found = mixed(*splits, request.Mixing(seed=seed), Preprocess(10, 8)).items
    return _summed([found[i] for i in range(len(found))])


def _told(value: Any) -> dict[str, Any]:
    given = {f.name: getattr(value, f.name) for f in fields(value)}
    return {name: x for name, x in given.items() if isinstance(x, int | float | str | bool)}


def _pixels(value: Any, images: Callable[[Any], Sequence[Pixels]], given: Any) -> Case:
    """A case whose result are images."""
    return Case(version_with_parts(value), lambda: _summed(images(given)), _least)


def _summed(images: Sequence[Pixels]) -> Values:
    """Eight pixels of the first image, and three sums of every image."""
    first = images[0].reshape(-1).astype(np.float64)
    found = [*first[:: len(first) // EXACT][:EXACT]]
    for i, image in enumerate(images):
        flat = image.reshape(-1).astype(np.float64)
        found += list((whole(500 + i, (3, flat.size), 5) - 1) @ flat)
    return np.array(found)


def _least(values: Values) -> Values:
    return np.where(np.arange(len(values)) < EXACT, LEVEL, WEIGHT)


def _case(value: Any) -> Case:
    """What augments training images, on a batch."""
    if isinstance(value, Mixing):
        return Case(version_with_parts(value), lambda: _mixed(value))
    if isinstance(value, JensenShannon):
        return Case(version_with_parts(value), lambda: _consistent(value))
    if isinstance(value, Reading):
        return _pixels(value, partial(_read, value), 12)
    return _pixels(value, partial(_augmented, value), 24)


def _photo(seed: int, height: int, width: int, channels: int = 3) -> Pixels:
    """A picture with slopes and grain, so that a blur, a shift and a noise all show."""
    down, right = np.mgrid[:height, :width]
    slope = (7 * down + 5 * right)[..., None] + 40 * np.arange(channels)
    return ((slope + whole(seed, (height, width, channels), 60)) % 256).astype(np.uint8)


def _augmented(value: Augmentation, n: int) -> Sequence[Pixels]:
    images = torch.from_numpy(np.stack([_photo(600 + i, 12, 12) for i in range(n)]))
    return list(value(images, torch.Generator().manual_seed(0)).numpy())


def _mixed(value: Mixing) -> list[float]:
    images, generator = single(bell(700, (8, 3, 6, 6))), torch.Generator().manual_seed(0)
    found = []
    for _ in range(3):
        mixed = value(images, generator)
        sums = (whole(701, (3, 3 * 36), 5) - 1) @ mixed.images.double().reshape(8, -1).numpy().T
        found += [mixed.share, value.clean_weight, *mixed.partners.tolist(), *sums.reshape(-1)]
    return [float(x) for x in found]


def _consistent(value: JensenShannon) -> list[float]:
    images = torch.from_numpy(np.stack([_photo(600 + i, 12, 12) for i in range(6)]))
    pixels = [v.numpy() for v in value.versions(images, torch.Generator().manual_seed(0))]
    means = [float(p.mean(dtype=np.float64)) for p in pixels]
    logits = [single(bell(710 + i, (6, 4)) * 2**i) for i in range(len(pixels) + 1)]
    return [*means, float(value.loss(logits)), float(value.loss([logits[0]] * len(logits)))]


def _read(value: Reading, n: int) -> Sequence[Pixels]:
    """Images read one by one; where a folder stands in for an image, which one is seen in its first row."""
    with TemporaryDirectory() as root, patch.dict("os.environ", {"OPENBENCH_DATA": root}):
        for folder in ("one", "two"):
            (Path(root) / folder).mkdir()
            (Path(root) / folder / "a.png").touch()
        images = []
        for i in range(n):
            rng = np.random.default_rng(i)
            other = value.replaced("a.png", rng)
            image = np.array(value(_photo(600 + i, 15, 11 + i), 8, rng))
            image[0] = 0 if other is None else {"one": 100, "two": 200}[other.parent.name]
            images.append(image)
    return images


def _embedded(source: Embedded, name: str) -> Sequence[Pixels]:
    return [source.image(name, number) for number in (0, 1, 2, 50)]


class _Given(Source):
    """Stands for the clean images."""

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """One."""
        return [Path("given")]

    def find(self, place: Path, keys: Sequence[str]) -> FoundImages | None:
        """As many pictures as keys, in colour."""
        pixels = np.stack([_photo(600 + i, 9, 8) for i in range(len(keys))])
        return rows_found(pixels, {key: row for row, key in enumerate(keys)}, keys)


def _corrupted(source: Corrupted, n: int) -> Sequence[Pixels]:
    found = source.find(Path("given"), [f"golden/{i}" for i in range(n)])
    return [] if found is None else [found.items[i] for i in range(n)]


def _common_images(source: CommonCorruptions, sides: Sequence[int]) -> Sequence[Pixels]:
    """Colour images of these sides, not quite square, and a small one in grey."""
    images = [_photo(600 + side, side, side + 1) for side in sides]
    grey = _photo(650, 16, 16, 1)[..., 0]
    return [source.apply(image, f"golden/{i}") for i, image in enumerate([*images, grey])]
