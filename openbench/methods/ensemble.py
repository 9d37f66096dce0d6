"""Uncertainty of the averaged probabilities of several networks, and their disagreement."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Method, Request
from openbench.errors import MethodError

Uncertainty = Literal["msp", "entropy", "disagreement"]


@dataclass
class Ensemble(Method):
    """Uncertainty of p̄ = (1/M) Σ_m softmax(z_m), the mean prediction of M networks.

    score(x) = log((1 − max_c p̄_c)/max_c p̄_c), which ranks as −max_c p̄_c does; or −Σ_c p̄_c log p̄_c (`entropy`);
    or (1/M) Σ_m KL(p_m ‖ p̄), how far the members are from p̄ (`disagreement`). In float64: nothing ties at p̄ = 1.

    For `backbone=ensemble`. That network puts out averaged logits, as in OpenOOD: for these use `method=msp`.

    Args:
        uncertainty: `msp`, `entropy` or `disagreement`.

    Raises:
        MethodError: an unknown uncertainty, or one class only.

    Reference: Lakshminarayanan, Pritzel, Blundell, Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles, NeurIPS 2017, arXiv 1612.01474. Its disagreement is the sum over members, here the mean.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("members",))
    reference: ClassVar[str] = "Lakshminarayanan et al., NeurIPS 2017, arXiv 1612.01474"

    uncertainty: Uncertainty = "msp"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        log_p, log_mean = self._log_probabilities(x)
        if self.uncertainty == "msp":
            top, index = log_mean.max(dim=1, keepdim=True)
            others = log_mean.scatter(1, index, -torch.inf)
            return (torch.logsumexp(others, dim=1) - top[:, 0]).float()
        if self.uncertainty == "entropy":
            return -(log_mean.exp() * log_mean).sum(dim=1).float()
        return (log_p.exp() * (log_p - log_mean[:, None])).sum(dim=2).mean(dim=1).float()

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1 − p̄, (n, c) float32."""
        return (1 - self._log_probabilities(x)[1].exp()).float()

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return p̄, (n, c)."""
        return 1 - scores

    def _log_probabilities(self, x: FeatureSet) -> tuple[Tensor, Tensor]:
        """Return log softmax(z_m) (n, M, c) and log p̄ (n, c), float64."""
        log_p = torch.log_softmax(x.map("members")[..., 0].double(), dim=2)
        if log_p.shape[2] < 2:
            raise MethodError("Ensemble: found 1 class, whose probability is always 1 — two or more are needed")
        return log_p, torch.logsumexp(log_p, dim=1) - math.log(log_p.shape[1])
