"""Free energy of the logits."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from openbench.config.constraints import Positive
from openbench.core import FeatureSet, Method, Request


@dataclass
class Energy(Method):
    """Free energy: the negative scaled log-sum-exp of the logits.

    score(x) = −T log Σ_c exp(z_c / T).

    Args:
        temperature: T > 0; the paper's default is 1.

    Raises:
        MethodError: a temperature that is not positive.

    Reference: Liu et al., Energy-based Out-of-distribution Detection, NeurIPS 2020, arXiv 2010.03759.
    """

    needs: ClassVar[Request] = Request()
    reference: ClassVar[str] = "Liu et al., NeurIPS 2020, arXiv 2010.03759"

    temperature: Positive = 1.0

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        if self.temperature == 1:
            return torch.logsumexp(x.logits, dim=1).neg()
        return -self.temperature * torch.logsumexp(x.logits / self.temperature, dim=1)
