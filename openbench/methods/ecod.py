"""Empirical tail probabilities, feature by feature."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.methods._tails import TailMethod


@dataclass
class ECOD(TailMethod):
    """Sum over features of the surprise at lying so far out in the tail.

    score(x) = Σ_j max(l, r, s), with l = −log P(X_j ≤ f_j), r = −log P(X_j ≥ f_j) over training
    samples and x itself, and s the one on the side to which feature j is skewed, or l + r where it is symmetric.

    Raises:
        MethodError: no training split, or features that are not finite.

    Reference: Li et al., ECOD: Unsupervised Outlier Detection Using Empirical Cumulative Distribution Functions,
    TKDE 2022, arXiv 2201.00382.
    Skewness is that of training features alone. PyOD takes tails and skewness over all samples scored together, so that
    its scores depend on the batch; for a batch of one they equal these. Above 2³⁰ training values none are copied, and
    each batch that is scored takes a pass over all of them, minutes long.
    """

    reference: ClassVar[str] = "Li et al., TKDE 2022, arXiv 2201.00382"

    def _combined(self, left: Tensor, right: Tensor, skewed: Tensor) -> Tensor:
        return left.maximum(right).maximum(skewed)
