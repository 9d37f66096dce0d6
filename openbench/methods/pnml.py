"""Regret of the last layer's predictive normalised maximum likelihood learner."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.methods._stats import BLOCK, classifier, moments, row_normalise, training, unit_features, whitening


@dataclass
class PNML(Method):
    """How much better a last layer could do that knew the label, summed over all labels: the log of a normaliser.

    score(x) = log Σ_c p_c / (p_c + (1 − p_c) p_c^κ) / log C, p = softmax(W f̂ + b), f̂ = f/‖f‖, κ = g/(1 + g),
    g = f̂ᵀ (Σ f̂ f̂ᵀ)⁺ f̂ with the sum over training samples.

    Raises:
        MethodError: no training split or no head.

    Reference: Bibas et al., Single Layer Predictive Normalized Maximum Likelihood for Out-of-Distribution Detection,
    NeurIPS 2021, arXiv 2110.09246; `PNML` of pytorch-ood. Probabilities are not clamped: in float64, with 1 − p_c
    summed from the other classes, sure predictions keep their order.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN, head=True)
    reference: ClassVar[str] = "Bibas et al., NeurIPS 2021, arXiv 2110.09246"

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn the second moments of unit training features (n, d), and keep the head."""
        train, self.head_ = training(train, "PNML"), classifier(head, "PNML")
        m = moments(train, "PNML", unit_features, by_class=False)
        second = m.n * m.covariance_around(torch.zeros_like(m.shift))
        self.root_ = whitening(second)
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        root = self.learnt("root_").to(x.features.device)
        return torch.cat([self._regret(f, root) for f in torch.split(x.features, BLOCK)])

    def _regret(self, features: Tensor, root: Tensor) -> Tensor:
        unit = row_normalise(features)
        g = by_rows(unit.double(), root.T).square().sum(dim=1, keepdim=True)
        log_p = torch.log_softmax(self.head_(unit).double(), dim=1)
        top = log_p.argmax(dim=1, keepdim=True)
        others = torch.logsumexp(log_p.scatter(1, top, -torch.inf), dim=1, keepdim=True)
        log_rest = torch.log1p(-log_p.exp()).scatter(1, top, others)
        odds = log_p / (1 + g) - log_rest  # of each term, p / (p + (1 − p) p^κ): 1 − κ = 1/(1 + g)
        # The top term is near 1: its complement and the other terms keep their digits.
        missing = torch.sigmoid(-odds.gather(1, top))[:, 0]
        rest = torch.sigmoid(odds).scatter(1, top, 0.0).sum(dim=1)
        regret: Tensor = torch.log1p(rest - missing) / math.log(max(2, log_p.shape[1]))
        return regret.float()
