"""Variational rectified activations."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from openbench.config.constraints import Percentage
from openbench.core import FeatureSet, Field, Head, HeadMethod, Request, Role
from openbench.methods._stats import percentiles_of_all, training


@dataclass
class VRA(HeadMethod):
    """Energy after clipping features from above and from below at percentiles of ID validation activations.

    score(x) = −log Σ_c exp(W min(max(f, t_low), t_high) + b)_c, both thresholds over all samples and dimensions.

    Args:
        high: percentile of the upper threshold, in [0, 100]; 90 by default.
        low: percentile of the lower threshold, in [0, 100], at most `high`; 10 by default.
        below: `lift` raises smaller values to the lower threshold, which made the published numbers; `zero` sets them
            to 0 as in the paper.

    Raises:
        MethodError: percentiles out of range or in the wrong order, or an unknown treatment.

    Reference: Xu et al., VRA: Variational Rectified Activation for Out-of-distribution Detection, NeurIPS 2023,
    arXiv 2302.11716.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_VAL, head=True)
    reference: ClassVar[str] = "Xu et al., NeurIPS 2023, arXiv 2302.11716"

    high: Percentage = 90.0
    low: Percentage = 10.0
    below: Literal["lift", "zero"] = "lift"

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        self.require(self.low <= self.high, "low", f"0 to {self.high}, the upper percentile")

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Find both thresholds on ID validation features (n, d)."""
        values = training(train, "VRA").features
        self.low_, self.high_ = torch.tensor(percentiles_of_all(values, (self.low, self.high)))
        return super().fit(None, head)

    def reshape(self, features: Tensor) -> Tensor:
        """Return the clipped features (n, d)."""
        high, low = (float(self.learnt(name)) for name in ("high_", "low_"))
        if self.below == "zero":
            return torch.where(features < low, 0.0, features.clamp(max=high))
        return features.clamp(min=low, max=high)
