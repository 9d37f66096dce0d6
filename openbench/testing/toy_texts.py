"""Embeddings of texts for planted problems: those of the classes point where the head does."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from openbench.core.request import CLASSES, Texts
from openbench.digest import digest

WORDS = 40


class PlantedTexts(Mapping[Texts, Tensor]):
    """Any corpus, made when it is read: (c, d) for the classes, (40, d) for a list of words.

    The classes lie along the rows of the head. Every second word lies close to a class, the others lie anywhere among
    directions without negative parts, as rectified features do. The `no` tower gives such words for the classes too.
    """

    def __init__(self, weight: Tensor) -> None:
        """Keep the rows (c, d) of the head."""
        self._rows = functional.normalize(weight, dim=1)

    def __getitem__(self, texts: Texts) -> Tensor:
        """Unit embeddings (m, d) float32; equal for equal corpora."""
        generator = torch.Generator().manual_seed(int(digest(texts), 16) % 2**31)
        classes, d = self._rows.shape
        if texts.words == CLASSES and texts.tower == "text":
            return functional.normalize(self._rows + 0.01 * torch.randn(classes, d, generator=generator), dim=1)
        count = classes if texts.words == CLASSES else WORDS
        anywhere = torch.randn(count, d, generator=generator).relu() + 0.01
        if texts.words != CLASSES:
            near = self._rows[torch.arange(count) % classes] + 0.02 * torch.randn(count, d, generator=generator)
            anywhere = torch.where(torch.arange(count)[:, None] % 2 == 0, near, anywhere)
        return functional.normalize(anywhere, dim=1)

    def __iter__(self) -> Iterator[Texts]:
        """No corpus is made before it is read."""
        return iter(())

    def __len__(self) -> int:
        """As many as `__iter__` yields."""
        return 0
