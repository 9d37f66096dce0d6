"""Distance to the decision boundaries."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.methods._stats import classifier, mean_feature, training

_SMALLEST = 1e-12


@dataclass
class FDBD(Method):
    """Negative sum of the feature's distances to the decision boundaries, relative to its deviation from the mean.

    score(x) = −Σ_{c≠ŷ} |z_c − z_ŷ| / ‖w_c − w_ŷ‖ / ‖f − f̄‖, f̄ the mean training feature.

    Args:
        distance: True divides by ‖f − f̄‖ as above, as in the paper; False by ‖f‖ (OpenOOD chooses on validation).

    Raises:
        MethodError: no training split or no head.

    Reference: Liu & Qin, Fast Decision Boundary based Out-of-Distribution Detector, ICML 2024, arXiv 2312.11536. The
    paper averages over C − 1 classes; the sum, as in OpenOOD, ranks alike. Classes with equal weights have no boundary
    and count as zero.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS}), fit_on=Role.ID_TRAIN, head=True
    )
    reference: ClassVar[str] = "Liu & Qin, ICML 2024, arXiv 2312.11536"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"distance"})

    distance: bool = True

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn the mean feature, from training features (n, d), and the inverse distances of the head's rows."""
        train, head = training(train, "FDBD"), classifier(head, "FDBD")
        weight = head.weight.double()
        distances = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        self.inverse_ = torch.where(distances > 0, 1 / distances, 0.0)
        self.mean_ = mean_feature(train).float()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        top, predicted = x.logits.max(dim=1, keepdim=True)
        inverse = self.learnt("inverse_").to(x.logits.device)[predicted[:, 0]]
        boundaries = ((top - x.logits).double() * inverse).sum(dim=1)
        moved = x.features - self.learnt("mean_").to(x.features.device) if self.distance else x.features
        length: Tensor = torch.linalg.vector_norm(moved, dim=1).double().clamp(min=_SMALLEST)
        return -(boundaries / length).float()
