"""Neural-collapse-inspired detection."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import NonNegative
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.methods._stats import BLOCK, classifier, mean_feature, training


@dataclass
class NCI(Method):
    """Negative projection of the predicted class' weight on the centred feature, less the feature's scaled L1 norm.

    score(x) = −w_ŷ·(f − f̄)/‖f − f̄‖ − α‖f‖₁, f̄ the mean training feature.

    Args:
        alpha: α ≥ 0, weight of the norm; 1e-4 by default.

    Raises:
        MethodError: a negative α, no training split or no head.

    Reference: Liu & Qin, Detecting Out-of-Distribution through the Lens of Neural Collapse, CVPR 2025,
    arXiv 2311.01479.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS}), fit_on=Role.ID_TRAIN, head=True
    )
    reference: ClassVar[str] = "Liu & Qin, CVPR 2025, arXiv 2311.01479"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"alpha"})

    alpha: NonNegative = 1e-4

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn the mean of training features (n, d) and keep the head's weight."""
        train, head = training(train, "NCI"), classifier(head, "NCI")
        self.mean_ = mean_feature(train).float()
        self.weight_ = head.weight.clone()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        mean, weight = (self.learnt(name).to(x.features.device) for name in ("mean_", "weight_"))
        parts = zip(torch.split(x.features, BLOCK), torch.split(x.logits, BLOCK), strict=True)
        return torch.cat([self._scored(features, logits, mean, weight) for features, logits in parts])

    def _scored(self, features: Tensor, logits: Tensor, mean: Tensor, weight: Tensor) -> Tensor:
        moved = features - mean
        # All products at once are cheaper than gathering a row of W per sample.
        projection = by_rows(moved, weight).gather(1, logits.argmax(dim=1, keepdim=True))[:, 0]
        distance = torch.linalg.vector_norm(moved, dim=1).clamp(min=torch.finfo(moved.dtype).tiny)
        return -projection / distance - self.alpha * features.abs().sum(dim=1)
