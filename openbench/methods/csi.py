"""Maximum softmax probability over four turns of the image."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from openbench.core import FeatureSet, Field, Request
from openbench.methods._bases import SoftmaxMethod
from openbench.methods._stats import max_softmax


@dataclass
class CSI(SoftmaxMethod):
    """Negative maximum softmax probability of logits averaged over four turns of the image.

    score(x) = −max_c softmax(¼ Σ_r j_{c,r}(x turned by r))_c, j_{c,r} the logit for "class c, turned by r".

    Reference: Tack et al., CSI: Novelty Detection via Contrastive Learning on Distributionally Shifted Instances,
    NeurIPS 2020, arXiv 2007.08176; CSI-ens. Needs a backbone trained with `training=csi`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("turned",), pool="mean")
    reference: ClassVar[str] = "Tack et al., NeurIPS 2020, arXiv 2007.08176"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -max_softmax(self._class_logits(x))

    def _class_logits(self, x: FeatureSet) -> Tensor:
        return x.map("turned")
