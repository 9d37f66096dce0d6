"""Class-aware decoupled relative features."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.errors import MethodError
from openbench.methods._stats import class_means, classifier, predictions, training

_SMALLEST_NORM = 1e-12
_SMALLEST_ENERGY = 1e-6


@dataclass
class CADRef(Method):
    """Relative deviation from the predicted class' mean, split by whether it raises or lowers the largest logit.

    score(x) = E⁺/E(z) + E⁻/Ē with E± = Σ_j max(±sign(w_ŷj)(f_j − μ_ŷj), 0) / ‖f‖₁, E(z) = log Σ_c exp z_c, Ē its mean
    over training samples, μ_c the mean feature of training samples predicted as c.

    Args:
        decoupled: True is CADRef as above; False is CARef, ‖f − μ_ŷ‖₁ / ‖f‖₁.

    Raises:
        MethodError: no training split, no head, NaN, or training energies whose mean is not positive.

    Reference: Ling et al., CADRef: Robust Out-of-Distribution Detection via Class-Aware Decoupled Relative Feature
    Leveraging, CVPR 2025, arXiv 2503.00325. With the energy as logit score, as in the paper's experiments. A class
    that is never predicted takes the mean of all samples (authors' code: NaN), norms are at least 1e-12 and energies
    at least 1e-6, below which the quotient would change its sign.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS}), fit_on=Role.ID_TRAIN, head=True
    )
    reference: ClassVar[str] = "Ling et al., CVPR 2025, arXiv 2503.00325"

    decoupled: bool = True

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn the means of features (n, d) per predicted class and the mean energy of logits (n, c)."""
        train, head = training(train, "CADRef"), classifier(head, "CADRef")
        self.means_ = class_means(train, head.num_classes, predictions).float()
        self.signs_ = head.weight.sign()
        energy = sum(float(torch.logsumexp(rows.logits.double(), dim=1).sum()) for rows in train.batches())
        self.energy_ = torch.tensor(energy / len(train))
        if self.decoupled and not energy > 0:
            raise MethodError(
                f"CADRef.fit: the mean energy of training logits is {float(self.energy_):.3g}, which is not "
                "positive — use decoupled=false"
            )
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        predicted = x.logits.argmax(dim=1)
        deviation = x.features - self.learnt("means_").to(x.features.device)[predicted]
        norm = x.features.abs().sum(dim=1).clamp(min=_SMALLEST_NORM)
        if not self.decoupled:
            return deviation.abs().sum(dim=1) / norm
        towards = deviation * self.learnt("signs_").to(x.features.device)[predicted]
        energy = torch.logsumexp(x.logits, dim=1).clamp(min=_SMALLEST_ENERGY)
        average = self.learnt("energy_").to(x.features)
        return (towards.clamp(min=0).sum(dim=1) / energy - towards.clamp(max=0).sum(dim=1) / average) / norm
