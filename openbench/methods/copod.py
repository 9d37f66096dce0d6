"""Tail probabilities of the empirical copula."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.methods._tails import TailMethod


@dataclass
class COPOD(TailMethod):
    """Sum over features of the surprise at the skewed tail, or at both tails on average if that is more.

    score(x) = Σ_j max((l + r)/2, s), with l = −log P(X_j ≤ f_j), r = −log P(X_j ≥ f_j) over training
    samples and x itself, and s the one on the side to which feature j is skewed, or l + r where it is symmetric.

    Raises:
        MethodError: no training split, or features that are not finite.

    Reference: Li et al., COPOD: Copula-Based Outlier Detection, ICDM 2020, arXiv 2009.09463.
    Skewness is that of training features alone. PyOD takes tails and skewness over all samples scored together, so that
    its scores depend on the batch; for a batch of one they equal these. Above 2³⁰ training values none are copied, and
    each batch that is scored takes a pass over all of them, minutes long.
    """

    reference: ClassVar[str] = "Li et al., ICDM 2020, arXiv 2009.09463"

    def _combined(self, left: Tensor, right: Tensor, skewed: Tensor) -> Tensor:
        return ((left + right) / 2).maximum(skewed)
