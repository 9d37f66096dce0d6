"""Maximum softmax probability over four turns of the image."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from openbench.core.features import FeatureSet
from openbench.core.method import Method
from openbench.core.request import Field, Request
from openbench.methods._stats import max_softmax


@dataclass
class CSI(Method):
    """Negative maximum softmax probability of logits averaged over four turns of the image.

    score(x) = −max_c softmax(¼ Σ_r j_{c,r}(x turned by r))_c, j_{c,r} the logit for "class c, turned by r".

    Reference: Tack et al., CSI: Novelty Detection via Contrastive Learning on Distributionally Shifted Instances,
    NeurIPS 2020, arXiv 2007.08176; CSI-ens. Needs a backbone trained with `training=csi`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.MAPS}), layers=("turned",), pool="mean")
    reference: ClassVar[str] = "Tack et al., NeurIPS 2020, arXiv 2007.08176"

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -max_softmax(x.map("turned"))

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return 1 − softmax of the averaged logits, (n, c) float32."""
        return 1 - torch.softmax(x.map("turned"), dim=1)

    def class_probabilities(self, scores: Tensor) -> Tensor | None:
        """Return the softmax of the averaged logits, (n, c)."""
        return 1 - scores
