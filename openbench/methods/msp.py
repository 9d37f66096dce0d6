"""Maximum softmax probability."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from openbench.core.features import FeatureSet
from openbench.core.method import Method
from openbench.core.request import Request
from openbench.methods._stats import max_softmax, max_softmax_deficit


@dataclass
class MSP(Method):
    """Negative maximum softmax probability.

    score(x) = −max_c softmax(z)_c.

    Args:
        exact: False computes in float32 as published numbers were, where leads of more than about 16 logits all
            round to p = 1 and tie; True returns 1 − max p (the same up to a constant) without that saturation.

    Reference: Hendrycks & Gimpel, A Baseline for Detecting Misclassified and Out-of-Distribution Examples, ICLR 2017,
    arXiv 1610.02136.
    """

    needs: ClassVar[Request] = Request()
    reference: ClassVar[str] = "Hendrycks & Gimpel, ICLR 2017, arXiv 1610.02136"

    exact: bool = False

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        if self.exact:
            return max_softmax_deficit(x.logits).float()
        return -max_softmax(x.logits)

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1 − softmax(z), (n, c) float32."""
        fit: Tensor = torch.softmax(x.logits, dim=1)
        return 1 - fit
