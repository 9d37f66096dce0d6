"""A source of corrupted images: the 15 common corruptions applied to whatever another source has, drawn per image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from openbench import paths
from openbench.config.constraints import Count, OneOf, Seed
from openbench.core.benchmark import Image, Items
from openbench.core.preprocess import Preprocess
from openbench.core.request import Corruption
from openbench.data.sources.base import Found, Source
from openbench.data.sources.imagenet_c import FAMILIES, KINDS, SEVERITIES, corrupt
from openbench.data.sources.transforms import cropped
from openbench.digest import digest
from openbench.errors import ConfigError


@dataclass(frozen=True)
class CommonCorruptions(Source):
    """Another set's images, corrupted as in ImageNet-C. An image's corruption depends on its key and the seed only.

    Args:
        of: the clean images' sources by name, e.g. those of `benchmark.id.test`.
        kind: a corruption, a family (`noise`, `blur`, `weather`, `digital`), or `all`: drawn per image.
        severity: 1 to 5, or `all`: drawn per image.
        seed: of all that is drawn.
        resize: shorter side before the corruption, whose strength is in pixels; None = as stored.
        crop: side of the centre crop before the corruption; None = as stored.
        deviation: how these images differ from the set as published.

    Raises:
        ConfigError: no such corruption or severity.
    """

    version: ClassVar[int] = Corruption.version

    of: Mapping[str, Source]
    kind: Annotated[str, OneOf((*KINDS, *FAMILIES, "all"))] = "all"
    severity: Literal[1, 2, 3, 4, 5, "all"] = "all"
    seed: Seed = 0
    resize: Count | None = None
    crop: Count | None = None
    deviation: str = ""

    def __post_init__(self) -> None:
        """Check the geometry before anything is read."""
        if (self.resize is None) != (self.crop is None):
            raise ConfigError(f"corruption — found resize {self.resize} and crop {self.crop} — give both or neither")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The corruptions that may be drawn."""
        return KINDS if self.kind == "all" else FAMILIES.get(self.kind, (self.kind,))

    def places(self, roots: Sequence[Path]) -> list[Path]:
        """Where the clean images are looked for."""
        return list(dict.fromkeys(place for source in self.of.values() for place in source.places(roots)))

    def find(self, place: Path, keys: Sequence[str]) -> Found | None:
        """Corrupted versions of what the clean sources have there."""
        roots = paths.data_roots()
        for source in self.of.values():
            clean = source.find(place, keys) if place in source.places(roots) else None
            if clean is not None:
                present = [key for key, there in zip(keys, clean.present, strict=True) if there]
                return Found(CorruptedItems(clean.items, present, self), clean.present)
        return None

    def apply(self, image: Image, key: str) -> Image:
        """Return the corrupted version of one image."""
        if self.resize is not None and self.crop is not None:
            image = cropped(image, Preprocess(resize=self.resize, crop=self.crop))
        rng = np.random.default_rng(int(digest((self.seed, key)), 16))
        # Both are always drawn, so that fixing one does not change the other.
        kind, severity = self.kinds[int(rng.integers(len(self.kinds)))], int(rng.integers(1, len(SEVERITIES) + 1))
        return corrupt(image, kind, severity if self.severity == "all" else int(self.severity), rng)


@dataclass(frozen=True, eq=False)
class CorruptedItems:
    """Images corrupted when read.

    Args:
        clean: the images.
        keys: of these images; each seeds the draw of its image.
        source: what is done to them.
    """

    clean: Items
    keys: Sequence[str]
    source: CommonCorruptions

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, index: int) -> Image:
        return self.source.apply(self.clean[index], self.keys[index])
