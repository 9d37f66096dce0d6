"""Tail probabilities of the empirical copula."""

from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.methods._stats import training
from openbench.methods._tails import Tails


@dataclass
class COPOD(Method):
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

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Li et al., ICDM 2020, arXiv 2009.09463"

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the training values of each feature in order, (d, n), or training features (n, d) where they are."""
        self.tails_ = Tails.of(training(train, "COPOD"))
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        tails: Tails = self.learnt("tails_")  # type: ignore[assignment]
        left, right, skewed = tails.surprise(x.features)
        return ((left + right) / 2).maximum(skewed).sum(dim=1)
