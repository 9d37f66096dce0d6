"""Maximum logit score."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.core import FeatureSet, Method, Request


@dataclass
class MLS(Method):
    """Negative maximum logit.

    score(x) = −max_c z_c.

    Reference: Hendrycks et al., Scaling Out-of-Distribution Detection for Real-World Settings, ICML 2022,
    arXiv 1911.11132.
    """

    needs: ClassVar[Request] = Request()
    reference: ClassVar[str] = "Hendrycks et al., ICML 2022, arXiv 1911.11132"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -x.logits.amax(dim=1)
