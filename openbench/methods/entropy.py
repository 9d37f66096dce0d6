"""Entropy of the class probabilities."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.core import FeatureSet, Method, Request
from openbench.methods._stats import log_softmax


@dataclass
class Entropy(Method):
    """Entropy of the softmax probabilities, in nats.

    score(x) = −Σ_c p_c log p_c, p = softmax(z).

    Reference: Chan et al., Entropy Maximization and Meta Classification for Out-of-Distribution Detection in Semantic
    Segmentation, ICCV 2021, arXiv 2012.06575; `Entropy` of pytorch-ood. A probability that underflows counts as
    0 log 0 = 0 (pytorch-ood: NaN), and sums are made in float64, in which entropies near 0 keep their order.
    """

    needs: ClassVar[Request] = Request()
    reference: ClassVar[str] = "Chan et al., ICCV 2021, arXiv 2012.06575"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        log_p = log_softmax(x.logits.double())
        return -(log_p.exp() * log_p).sum(dim=1).float()
