"""Views of one class pulled together on the sphere, and away from all others: supervised contrastive learning."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from openbench.config.constraints import Positive
from openbench.training.base import Batch
from openbench.training.methods.rotpred import ROTATIONS, rotated
from openbench.training.parts._contrastive import Contrastive, Projected


@dataclass(frozen=True)
class SupCon(Contrastive):
    """Mean over i of −1/|P(i)| Σ_{p∈P(i)} log[exp(h_i·h_p/τ) / Σ_{a≠i} exp(h_i·h_a/τ)], P(i) the others of i's class.

    Two views of every image, h their unit projections. With four rotations every view is turned by 0, 90, 180 and 270
    degrees and a turned class is a separate class: what CSI learns first. No classifier is trained: the epoch of lowest
    loss is kept, and class mean directions predict; KNN on the features does not use them.

    Args:
        temperature: τ > 0; 0.1.
        rotations: 1, or 4 (square images).
        width: dimensions of the projection; 128.

    Reference:
        Khosla et al.: Supervised contrastive learning, NeurIPS 2020, arXiv:2004.11362, equation 2 without its constant
        factor; scored by KNN as in Sun et al., ICML 2022, arXiv:2204.06507. Rotations: Tack et al., NeurIPS 2020,
        arXiv:2007.08176; the released code counts i among its own class, which adds a constant to each term and
        divides by |P| + 1 instead of |P|.
    """

    temperature: Positive = 0.1
    rotations: Literal[1, 4] = 1

    reference: ClassVar[str] = "Khosla et al., NeurIPS 2020, arXiv:2004.11362"

    def loss(self, model: Projected, batch: Batch) -> Tensor:
        """Return the loss of a batch, and move the directions by its images as they are."""
        images, labels = batch.images, batch.labels
        if self.rotations > 1:
            classes = len(model.directions)
            images = rotated(images)
            labels = torch.cat([labels + classes * turns for turns in range(ROTATIONS)])
        features, embedded = model.embed(images)
        model.update_directions(features[: len(batch.labels)], batch.labels, self.keep_direction)
        return contrast(embedded.float(), labels, self.temperature)


def contrast(embedded: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive loss of unit vectors; those without another of their class count 0.

    Args:
        embedded: h (n, width) of unit length.
        labels: (n,).
        temperature: τ > 0.
    """
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    products = embedded @ embedded.T / temperature
    log_p = products - products.masked_fill(itself, float("-inf")).logsumexp(dim=1, keepdim=True)
    same = (labels[:, None] == labels[None, :]) & ~itself
    counts = same.sum(dim=1)
    return -(torch.where(same, log_p, 0.0).sum(dim=1) / counts.clamp(min=1)).mean()
