"""Norm of the gradient towards a uniform prediction, in closed form."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from openbench.config.constraints import Positive
from openbench.core import FeatureSet, Field, Method, Request
from openbench.methods._stats import BLOCK, softmax


@dataclass
class GradNorm(Method):
    """Negative L1 norm of the last weight's gradient of Σ_c −log softmax(z/T)_c.

    score(x) = −‖f‖₁ · Σ_c |C p_c − 1| / T: the gradient is the outer product of (C p − 1)/T and f, so its L1 norm is
    the product of theirs and no backward pass is needed.

    Args:
        temperature: T > 0; the paper's default is 1.
        mean: divide by the number of classes, so that scores of models with different C compare, as in the re-benchmark
            (OpenReview VkPuKTKH2Gx). Within one model nothing changes; `thresholds` shows both from either run.

    Raises:
        MethodError: a temperature that is not positive.

    Reference: Huang et al., On the Importance of Gradients for Detecting Distributional Shifts in the Wild,
    NeurIPS 2021, arXiv 2110.00218.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.FEATURES}))
    reference: ClassVar[str] = "Huang et al., NeurIPS 2021, arXiv 2110.00218"

    temperature: Positive = 1.0
    mean: bool = False

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        classes = x.logits.shape[1]
        p = softmax(x.logits / self.temperature)
        residual = p.mul_(classes).sub_(1).abs_().sum(dim=1) / self.temperature
        # |f| summed: torch's vector norm of order 1 takes three times as long on a CPU, |f| of all rows twice.
        length = torch.cat([rows.abs().sum(dim=1) for rows in torch.split(x.features, BLOCK)])
        norm = length * residual
        return -(norm / classes if self.mean else norm)
