"""Activation shaping."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from openbench.config.constraints import Percentile
from openbench.core import HeadMethod
from openbench.methods._stats import gain, largest_kept


@dataclass
class ASH(HeadMethod):
    """Energy after keeping only the largest activations of each sample.

    score(x) = −log Σ_c exp(W r(f) + b)_c with k = d − round(d·percentile/100) entries kept; the rest becomes 0.
    B: each kept entry becomes Σf / k. P: kept entries stay. S: kept entries times exp(Σf / Σ kept).

    Args:
        percentile: share of activations removed, in [0, 100); 90 in the published tables, the paper sweeps 65 to 90.
        variant: `b`, `p` or `s`.

    Raises:
        MethodError: a percentile that keeps nothing, or an unknown variant.

    Reference: Djurisic et al., Extremely Simple Activation Shaping for Out-of-Distribution Detection, ICLR 2023,
    arXiv 2209.09858. The authors shape the spatial map before pooling; like OpenOOD's tables, this shapes the pooled
    vector.
    """

    reference: ClassVar[str] = "Djurisic et al., ICLR 2023, arXiv 2209.09858"

    percentile: Percentile = 90.0
    variant: Literal["b", "p", "s"] = "b"

    def reshape(self, features: Tensor) -> Tensor:
        """Return the shaped features (n, d)."""
        d = features.shape[1]
        k = largest_kept(d, self.percentile)
        self.require(k >= 1, "percentile", f"a percentile that keeps at least one of {d} activations")
        top, index = features.topk(k, dim=1, sorted=False)
        total = features.sum(dim=1, keepdim=True)
        if self.variant == "b":
            top = (total / k).expand_as(top)
        elif self.variant == "s":
            largest = top.sum(dim=1, keepdim=True)
            top = top * gain(total, largest)
        return torch.zeros_like(features).scatter(1, index, top)
