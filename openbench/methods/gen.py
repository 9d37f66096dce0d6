"""Generalised entropy of the softmax."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from openbench.config.constraints import Count, Positive
from openbench.core import FeatureSet, Method, Request
from openbench.methods._stats import softmax, sorted_rows


@dataclass
class GEN(Method):
    """Generalised entropy of the largest softmax probabilities.

    score(x) = Σ_{c among the M largest} p_c^γ (1 − p_c)^γ, p = softmax(z).

    Args:
        gamma: γ > 0; .1 by default, as in the paper.
        top: M ≥ 1, cut to the number of classes; 100 by default, as in the paper.
        exact: False computes p and 1 − p in float32 as published numbers were: where p rounds to 1 its term drops out.
            True takes γ (log p + log(1 − p)) in float64, with 1 − p from the other classes.

    Raises:
        MethodError: γ or M out of range.

    Reference: Liu et al., GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection, CVPR 2023.
    """

    needs: ClassVar[Request] = Request()
    reference: ClassVar[str] = "Liu et al., CVPR 2023"

    gamma: Positive = 0.1
    top: Count = 100
    exact: bool = False

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        m = min(self.top, x.logits.shape[1])
        if self.exact:
            return self._exact(x.logits, m)
        p = softmax(x.logits)
        p = p if m == p.shape[1] else p.topk(m, dim=1, sorted=False).values
        # One power of the product: powers take longer than all else.
        return (p * (1 - p)).pow_(self.gamma).sum(dim=1)

    def _exact(self, logits: Tensor, m: int) -> Tensor:
        z = sorted_rows(logits).flip(1).double()
        log_p = torch.log_softmax(z, dim=1)
        # Only the largest p can round to 1; its complement is the sum of all others.
        log_rest = torch.log1p(-log_p.exp())
        log_rest[:, 0] = torch.logsumexp(log_p[:, 1:], dim=1)
        return torch.exp(self.gamma * (log_p + log_rest))[:, :m].sum(dim=1).float()
