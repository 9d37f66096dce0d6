"""Maximum softmax probability."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from openbench.core import FeatureSet, Method
from openbench.methods._stats import log_odds_against_top, log_odds_by_class, max_softmax, of_log_odds


@dataclass
class MSP(Method):
    """Negative maximum softmax probability.

    score(x) = −max_c softmax(z)_c.

    Args:
        exact: False computes in float32 as published numbers were, where leads of more than about 16 logits all
            round to p = 1 and tie; True returns log((1 − p)/p) − log(C − 1) of p = max_c softmax(z)_c in float64, which
            never saturates and ranks as exact probabilities do. Metrics along a threshold axis (AUTC) depend on the
            scale: compare them with published ones only under False.

    Raises:
        MethodError: `exact` with one class only.

    Reference: Hendrycks & Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural
    Networks, ICLR 2017, arXiv 1610.02136.
    """

    reference: ClassVar[str] = "Hendrycks & Gimpel, ICLR 2017, arXiv 1610.02136"

    version: ClassVar[int] = 2  # exact: log odds

    exact: bool = False

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        if self.exact:
            return log_odds_against_top(x.logits)
        return max_softmax(x.logits).neg()

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1 − softmax(z), or the odds against each class where `exact`, (n, c) float32."""
        if self.exact:
            return log_odds_by_class(x.logits)
        fit: Tensor = torch.softmax(x.logits, dim=1)
        return 1 - fit

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return softmax(z), (n, c)."""
        return of_log_odds(scores) if self.exact else 1 - scores
