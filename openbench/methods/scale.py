"""Activation scaling."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.config.constraints import Percentile
from openbench.core import HeadMethod
from openbench.methods._stats import gain, largest_kept


@dataclass
class SCALE(HeadMethod):
    """Energy after scaling each feature vector by how much of its mass lies in the largest activations.

    score(x) = −log Σ_c exp(W (f e^r) + b)_c, r = Σf divided by the sum of the k = d − round(d·percentile/100) largest
    entries of f.

    Args:
        percentile: share of activations outside the k largest, in [0, 100); 85 by default, as in the paper.

    Raises:
        MethodError: a percentile that keeps nothing.

    Reference: Xu et al., Scaling for Training Time and Post-hoc Out-of-distribution Detection Enhancement, ICLR 2024,
    arXiv 2310.00227. A vector of zeros stays one (OpenOOD: NaN).
    """

    reference: ClassVar[str] = "Xu et al., ICLR 2024, arXiv 2310.00227"

    percentile: Percentile = 85.0

    def reshape(self, features: Tensor) -> Tensor:
        """Return the scaled features (n, d)."""
        d = features.shape[1]
        k = largest_kept(d, self.percentile)
        self.require(k >= 1, "percentile", f"a percentile that keeps at least one of {d} activations")
        largest = features.topk(k, dim=1, sorted=False).values.sum(dim=1, keepdim=True)
        return features * gain(features.sum(dim=1, keepdim=True), largest)
