"""The confidence that a branch of the network learnt."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.core import FeatureSet, Field, Method, Request


@dataclass
class ConfBranch(Method):
    """Negative confidence of a network trained with a confidence branch.

    score(x) = −u, u = w·f + b the branch's output before the sigmoid: the ranking of −σ(u), without its ties near 1.

    Reference: DeVries & Taylor, Learning Confidence for Out-of-Distribution Detection in Neural Networks, 2018,
    arXiv 1802.04865. Needs a backbone trained with `training=conf_branch`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("confidence",), pool="mean")
    reference: ClassVar[str] = "DeVries & Taylor, 2018, arXiv 1802.04865"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -x.map("confidence")[:, 0]
