"""Rectified activations."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import Percentage
from openbench.core import FeatureSet, Field, Head, HeadMethod, Request, Role
from openbench.methods._stats import percentiles_of_all, training


@dataclass
class ReAct(HeadMethod):
    """Energy after clipping features from above at a percentile of ID validation activations.

    score(x) = −log Σ_c exp(W min(f, t) + b)_c, t the percentile over all samples and dimensions.

    Args:
        percentile: in [0, 100]; the paper's default is 90.

    Raises:
        MethodError: a percentile outside [0, 100].

    Reference: Sun et al., ReAct: Out-of-distribution Detection With Rectified Activations, NeurIPS 2021,
    arXiv 2111.12797.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_VAL, head=True)
    reference: ClassVar[str] = "Sun et al., NeurIPS 2021, arXiv 2111.12797"

    percentile: Percentage = 90.0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Find the threshold on ID validation features (n, d)."""
        values = training(train, "ReAct").features
        self.threshold_ = torch.tensor(percentiles_of_all(values, (self.percentile,))[0])
        return super().fit(None, head)

    def reshape(self, features: Tensor) -> Tensor:
        """Return min(f, t), (n, d)."""
        return torch.minimum(features, self.learnt("threshold_"))
