"""Directed sparsification."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import Percentage
from openbench.core import FeatureSet, Field, Head, HeadMethod, Request, Role
from openbench.methods._stats import classifier, mean_feature, percentiles_of_all, training


@dataclass
class DICE(HeadMethod):
    """Energy of a head that keeps only the weights which contribute most on training features.

    score(x) = −log Σ_c exp((W ⊙ M) f + b)_c, M = [W ⊙ f̄ > its percentile over all classes and dimensions], f̄ the mean
    training feature.

    Args:
        percentile: share of weights removed, in [0, 100]; 90 by default, as in the paper.

    Raises:
        MethodError: a percentile out of range, no training split or no head.

    Reference: Sun & Li, DICE: Leveraging Sparsification for Out-of-Distribution Detection, ECCV 2022, arXiv 2111.09805.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN, head=True)
    reference: ClassVar[str] = "Sun & Li, ECCV 2022, arXiv 2111.09805"

    percentile: Percentage = 90.0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Find the weights that stay, from training features (n, d) and the head."""
        train, head = training(train, "DICE"), classifier(head, "DICE")
        contribution = head.weight * mean_feature(train).to(head.weight)
        keep = contribution > percentiles_of_all(contribution, (self.percentile,))[0]
        self.head_ = Head(torch.where(keep, head.weight, 0.0), head.bias)
        return self

    def reshape(self, features: Tensor) -> Tensor:
        """Return the features (n, d) as they are: it is the head that changes."""
        return features
