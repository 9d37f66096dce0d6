"""What a step minimises, as one module: everything that takes part in the backward pass runs inside its forward."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from openbench.errors import MethodError
from openbench.training.augment.mixing import Mixing
from openbench.training.base import Batch, TrainingMethod


@dataclass(frozen=True)
class Part:
    """A batch whose loss is one summand of the step's.

    Args:
        batch: what the loss is taken of.
        weight: its factor.
        versions: further versions (n, channels, h, w) of the batch's images, which a consistency compares.
    """

    batch: Batch
    weight: float = 1.0
    versions: tuple[Tensor, ...] = ()

    def share(self, own: slice, processes: int) -> "Part":
        """Return the part for one of several processes.

        The weight turns the mean over processes of means over shares into the mean over the batch, though shares may
        differ by one image.
        """
        batch = self.batch
        rows = batch.rows[own]
        partners = None if batch.partners is None else batch.partners[own]
        shared = replace(batch, images=batch.images[own], labels=batch.labels[own], rows=rows, partners=partners)
        versions = tuple(version[own] for version in self.versions)
        return Part(shared, self.weight * len(rows) * processes / len(batch.rows), versions)


def parts_of(batch: Batch, mixing: Mixing | None, versions: tuple[Tensor, ...] = ()) -> list[Part]:
    """Return the parts whose losses are summed: the batch, or its mixed images and perhaps its clean images too."""
    if mixing is None:
        return [Part(batch, versions=versions)]
    mixed = mixing(batch.images, batch.moment.generator)
    partners = batch.labels[mixed.partners.to(batch.labels.device)]
    parts = [Part(replace(batch, images=mixed.images, partners=partners, share=mixed.share))]
    return parts if mixing.clean_weight == 0 else [*parts, Part(batch, mixing.clean_weight)]


class Objective(nn.Module):
    """The loss of a method.

    Args:
        method: gives the loss of a batch.
        prepared: what the method made of the network.
    """

    def __init__(self, method: TrainingMethod, prepared: nn.Module) -> None:
        super().__init__()
        self.method, self.prepared = method, prepared
        self.consistency = method.schedule.consistency

    def forward(self, parts: Sequence[Part]) -> Tensor:
        """Return Σ weight·loss, a scalar.

        Raises:
            MethodError: the method's loss is not a scalar.
        """
        losses = [part.weight * self._loss(part) for part in parts]
        return losses[0] if len(losses) == 1 else sum(losses[1:], losses[0])

    def _loss(self, part: Part) -> Tensor:
        loss = self.method.loss(self.prepared, part.batch)
        if loss.ndim != 0:
            raise MethodError(
                f"{type(self.method).__name__}.loss returned a tensor of shape {tuple(loss.shape)} — "
                "a scalar is expected, the mean over the batch"
            )
        if self.consistency is None or not part.versions:
            return loss
        images = (part.batch.images, *part.versions)
        logits: Tensor = self.prepared(torch.cat(images))
        return loss + self.consistency.loss(logits.chunk(len(images)))
