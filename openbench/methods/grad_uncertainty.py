"""Norm of the gradient of a label that holds for every class."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.core import FeatureSet, Field, Method, Request
from openbench.methods._stats import softmax


@dataclass
class GradUncertainty(Method):
    """Negative squared norm of the last layer's gradient of −Σ_c log softmax(z)_c, the cost of a label of all ones.

    score(x) = −‖C p − 1‖² (‖f‖² + 1): the gradient of the weight is the outer product of C p − 1 and f, that of the
    bias is C p − 1, so that no backward pass is needed. A uniform prediction has none.

    Reference: Lee & AlRegib, Gradients as a Measure of Uncertainty in Neural Networks, ICIP 2020, arXiv 2008.08030. The
    paper trains a classifier of ID and OOD images on the squared norms of all layers; here, as in pytorch-ood's
    `GradUncertainty` with the last layer's parameters, the norm itself is the score, and its sign is turned.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.FEATURES}))
    reference: ClassVar[str] = "Lee & AlRegib, ICIP 2020, arXiv 2008.08030"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        residual = softmax(x.logits).mul_(x.logits.shape[1]).sub_(1).square().sum(dim=1)
        return -residual * (x.features.square().sum(dim=1) + 1)
