"""Pairs of images pulled together or apart, most of all those farthest from where they should be: ReweightOOD."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from openbench.config.constraints import Positive
from openbench.training.base import Batch
from openbench.training.parts._contrastive import Contrastive, Projected


@dataclass(frozen=True)
class ReweightOOD(Contrastive):
    """ELU(log Σ_same exp(−w⁺s/τ) + log Σ_other exp(w⁻s/τ)), s the cosines of all pairs of a batch on the sphere.

    w⁺ = σ(−(m_w s − c_w)) is large for pairs of one class that are far apart, w⁻ = σ(m_b s − c_b) for pairs of two
    classes that are close; no gradient flows through either. Two views of every image; each pair counts once.
    No classifier is trained: the epoch of lowest loss is kept, and class mean directions predict. The paper's score,
    Mahalanobis distance on unit features of the network, does not use them.

    Args:
        temperature: τ > 0; 0.1.
        m_b: slope of w⁻; 5.
        c_b: offset of w⁻; 4.
        m_w: slope of w⁺; 2.
        c_w: offset of w⁺; 1.
        width: dimensions of the projection; 128.

    Reference:
        Regmi et al.: ReweightOOD: loss reweighting for distance-based OOD detection, CVPR workshops 2024, 131–141.
        The warm-up is this loop's, not the released code's.
    """

    temperature: Positive = 0.1
    m_b: float = 5.0
    c_b: float = 4.0
    m_w: float = 2.0
    c_w: float = 1.0

    reference: ClassVar[str] = "Regmi et al., CVPR workshops 2024"
    scorer: ClassVar[str] = "mds_pp"

    def loss(self, model: Projected, batch: Batch) -> Tensor:
        """Return the loss of all pairs of a batch, and move the directions by it."""
        features, embedded = model.embed(batch.images)
        model.update_directions(features, batch.labels, self.keep_direction)
        first, second = torch.triu_indices(len(embedded), len(embedded), offset=1, device=embedded.device)
        cosines = (embedded.float() @ embedded.float().T)[first, second]
        same = batch.labels[first] == batch.labels[second]
        return functional.elu(self.of_one_class(cosines[same]) + self.of_two_classes(cosines[~same]))

    def of_one_class(self, cosines: Tensor) -> Tensor:
        """Return log Σ exp(−w⁺s/τ) of cosines s (pairs,)."""
        weights = torch.sigmoid(self.c_w - self.m_w * cosines.detach())
        return torch.logsumexp(-weights * cosines / self.temperature, dim=0)

    def of_two_classes(self, cosines: Tensor) -> Tensor:
        """Return log Σ exp(w⁻s/τ) of cosines s (pairs,)."""
        weights = torch.sigmoid(self.m_b * cosines.detach() - self.c_b)
        return torch.logsumexp(weights * cosines / self.temperature, dim=0)
