"""Disagreement of two classifiers."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.core import FeatureSet, Field, Method, Request


@dataclass
class MCD(Method):
    """L1 distance of the probabilities of two classifiers on the same features.

    score(x) = Σ_c |softmax(z)_c − softmax(z₂)_c|.

    Reference: Yu & Aizawa, Unsupervised Out-of-Distribution Detection by Maximum Classifier Discrepancy, ICCV 2019,
    arXiv 1908.04951. Needs a backbone trained with `training=mcd`.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.LOGITS, Field.MAPS}), layers=("second_head",), pool="mean"
    )
    reference: ClassVar[str] = "Yu & Aizawa, ICCV 2019, arXiv 1908.04951"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return (x.logits.softmax(dim=1) - x.map("second_head").softmax(dim=1)).abs().sum(dim=1)
