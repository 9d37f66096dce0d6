"""Learnt prompts: the classifier after a few epochs of CoOp and LoCoOp, on a text side of a few numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from golden_cases import Case, Entry, file_of
from golden_inputs import bell, single
from torch import Tensor
from torch.nn import functional

from openbench.backbones import heads
from openbench.core.features import FeatureSet
from openbench.core.request import Field

CLASSES, WIDTH, DIM, IMAGES, PATCHES = 4, 3, 6, 24, 5
HOW = heads.PromptLearning(context=2, epochs=3, batch_size=8, lr=0.1, top=1)


@dataclass
class Texts:
    """A text side whose embeddings move with the mean vector of a prompt."""

    classes: tuple[str, ...] = tuple("abcd")
    width: int = WIDTH
    scale: float = 8.0
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    def embed_context(self, context: Tensor) -> Tensor:
        """Unit embeddings (c, d)."""
        moved = single(bell(1, (CLASSES, DIM))) + context.mean(dim=0) @ single(bell(2, (WIDTH, DIM)))
        return functional.normalize(moved, dim=1)


def entries() -> Iterator[Entry]:
    """One entry, a case for each way to learn."""
    fields = {"coop": {Field.FEATURES}, "locoop": {Field.FEATURES, Field.PATCHES}}
    cases = {name: Case(heads.HEADS_VERSION, lambda read=read: _learnt(read)) for name, read in fields.items()}
    yield Entry("backbones/prompts", file_of(heads), cases)


def _learnt(read: set[Field]) -> list[float]:
    """The classifier's weights, and the loss of the last epoch."""
    found = heads.learnt_prompts(Texts(), _shots(read), _shots(read), HOW)
    return [*found.head.weight.flatten().tolist(), found.about["loss"]]


def _shots(read: set[Field]) -> FeatureSet:
    labels = torch.arange(IMAGES) % CLASSES
    features = single(2 * bell(1, (CLASSES, DIM))[labels] + bell(3, (IMAGES, DIM)))
    patches = functional.normalize(features[:, None] + single(bell(4, (IMAGES, PATCHES, DIM))), dim=2).half()
    columns = {Field.FEATURES: features, Field.PATCHES: patches}
    return FeatureSet({field: columns[field] for field in sorted(read)} | {Field.LABELS: labels})
