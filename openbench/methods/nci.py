"""Neural-collapse-inspired detection."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.request import Field, Request, Role
from openbench.methods._inputs import classifier, training
from openbench.methods._stats import mean_feature, row_normalise


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

    alpha: float = 1e-4

    def __post_init__(self) -> None:
        """Check the weight."""
        self.require(self.alpha >= 0, "alpha", "≥ 0")

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn the mean of training features (n, d) and keep the head's weight."""
        train, head = training(train, "NCI"), classifier(head, "NCI")
        self.mean_ = mean_feature(train).float()
        self.weight_ = head.weight.clone()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        direction = row_normalise(x.features - self.learnt("mean_").to(x.features.device))
        weight = self.learnt("weight_").to(x.features.device)
        # All products at once are cheaper than gathering a row of W per sample.
        projection = (direction @ weight.T).gather(1, x.logits.argmax(dim=1, keepdim=True))[:, 0]
        length: Tensor = torch.linalg.vector_norm(x.features, ord=1, dim=1)
        return -projection - self.alpha * length
