"""Fine-tuning that pushes the energies of ID images below one bound and those of outliers above another."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, NonNegative
from openbench.training.base import Batch
from openbench.training.methods.fine_tuning import FineTuned
from openbench.training.parts._shared import outliers_of


@dataclass(frozen=True)
class EnergyBounded(FineTuned):
    """CE(z, y) + λ·{mean_ID max(0, E − m_in)² + mean_out max(0, m_out − E)²}, E(x) = −log Σ exp z.

    Args:
        recipe: of the cross-entropy training that comes first.
        tuning: epochs and rate of the fine-tuning.
        weight: λ ≥ 0; 0.1.
        m_in: bound on ID energies; −23 for CIFAR-10, −27 for CIFAR-100.
        m_out: bound on outlier energies, larger; −5.
        outliers_per_step: 256, twice the ID images.

    Reference:
        Liu et al.: Energy-based out-of-distribution detection, NeurIPS 2020, arXiv:2010.03759, section 3.2.
    """

    weight: NonNegative = 0.1
    m_in: float = -23.0
    m_out: float = -5.0
    outliers_per_step: Count = 256

    reference: ClassVar[str] = "Liu et al., NeurIPS 2020, arXiv:2010.03759"
    scorer: ClassVar[str] = "energy"
    uses_outliers: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check that the two energies are in order."""
        self.require(self.m_in < self.m_out, "m_in", f"a number < m_out ({self.m_out})")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of ID images and outliers in one pass."""
        n = len(batch.images)
        logits = model(torch.cat([batch.images, outliers_of(batch)]))
        energies = -logits.logsumexp(dim=1)
        above = functional.relu(energies[:n] - self.m_in).square().mean()
        below = functional.relu(self.m_out - energies[n:]).square().mean()
        return batch.cross_entropy(logits[:n]) + self.weight * (above + below)
