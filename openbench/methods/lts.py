"""Logit scaling."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from openbench.config.constraints import Percentile
from openbench.core import FeatureSet, Field, Request
from openbench.methods._bases import SoftmaxMethod
from openbench.methods._stats import largest_kept


@dataclass
class LTS(SoftmaxMethod):
    """Energy of logits scaled by how much of the feature's mass lies in its largest activations.

    score(x) = −log Σ_c exp(S z_c), S = (Σ_j a_j divided by the sum of the k largest a_j)², a = max(f, 0),
    k = d − round(d·percentile/100).

    Args:
        percentile: share of activations outside the k largest, in [0, 100); 95 by default.

    Raises:
        MethodError: a percentile that keeps nothing.

    Reference: Djurisic et al., Logit Scaling for Out-of-Distribution Detection, Machine Vision and Applications 2025,
    arXiv 2409.01175. The rectification is in the authors' code, not in the paper; it matters for features of either
    sign. A sample without activations keeps its logits (authors' code: NaN).
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LOGITS}))
    reference: ClassVar[str] = "Djurisic et al., MVA 2025, arXiv 2409.01175"

    percentile: Percentile = 95.0

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -torch.logsumexp(self._class_logits(x), dim=1)

    def _class_logits(self, x: FeatureSet) -> Tensor:
        d = x.features.shape[1]
        k = largest_kept(d, self.percentile)
        self.require(k >= 1, "percentile", f"a percentile that keeps at least one of {d} activations")
        active = x.features.clamp(min=0)
        largest = active.topk(k, dim=1, sorted=False).values.sum(dim=1)
        ratio = torch.where(largest > 0, active.sum(dim=1) / torch.where(largest > 0, largest, 1.0), 1.0)
        return x.logits * ratio.square()[:, None]
