"""The least probability that a group of classes gives to all others."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.core import FeatureSet, Field, Method, Request


@dataclass
class MOS(Method):
    """Minimum others score: an ID image is not an "other" to at least one group.

    score(x) = min_g log p_g(others): the ranking of min_g p_g(others), without its ties near 0 and 1.

    Reference: Huang & Li, MOS: Towards Scaling Out-of-Distribution Detection for Large Semantic Space, CVPR 2021,
    arXiv 2105.01879. Needs a backbone trained with `training=mos`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("others",), pool="mean")
    reference: ClassVar[str] = "Huang & Li, CVPR 2021, arXiv 2105.01879"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return x.map("others").amin(dim=1)
