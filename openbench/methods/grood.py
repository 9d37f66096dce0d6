"""Gradients with respect to an OOD prototype."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.errors import MethodError
from openbench.methods._bank import Bank
from openbench.methods._stats import class_means, training


@dataclass
class GROOD(Method):
    """Squared distance between the sample's gradient and the nearest one of a training sample.

    score(x) = min_i ‖g(x) − g(x_i)‖², g(x) = π_o (f − o)/‖f − o‖, π = softmax over k of −‖f − p_k‖, p_k the class means
    and o their mean, i over correctly classified training samples.

    g is the gradient of the cross-entropy of π and the predicted class with respect to the OOD prototype o.

    Raises:
        MethodError: no training split, no sample that is classified correctly, or NaN.

    Reference: ElAraby et al., GROOD: GRadient-Aware Out-of-Distribution Detection, TMLR 2025, arXiv 2312.14427. The
    OOD prototype is the authors' option `use_proto_mean`, the one that needs no images: they prefer the mean feature of
    OOD validation images, which `fit` never sees here, or of mixed ID images. Neighbours are exact (authors: four of
    a hundred lists).
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS, Field.LABELS}), fit_on=Role.ID_TRAIN
    )
    reference: ClassVar[str] = "ElAraby et al., TMLR 2025, arXiv 2312.14427"

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn prototypes from features (n, d) and labels, then gradients of samples that logits (n, c) get right."""
        train = training(train, "GROOD")
        means = class_means(train, train.logits.shape[1])
        present = torch.bincount(train.labels.cpu(), minlength=len(means)).to(means.device) > 0
        prototypes = means[present]
        self.prototypes_ = torch.cat([prototypes, prototypes.mean(dim=0, keepdim=True)])
        parts = [
            (self._pull(rows.features)[:, 0].cpu(), (rows.logits.argmax(dim=1) == rows.labels).cpu())
            for rows in train.batches()
        ]
        pulls, right = (torch.cat(part) for part in zip(*parts, strict=True))
        correct = right.nonzero()[:, 0]
        self.bank_ = _Gradients(train.features, correct, pulls[correct], self.prototypes_[-1].cpu())
        if not len(self.bank_):
            raise MethodError(f"GROOD.fit: none of {len(train)} training samples is classified correctly")
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("bank_")
        origin = self.prototypes_[-1].to(x.features.device)
        gradients = self._pull(x.features) * (x.features.double() - origin)
        return Bank(self.bank_).kth_squared_distance(gradients, 1).float()

    def _pull(self, features: Tensor) -> Tensor:
        """π_o/‖f − o‖ (n, 1) float64, the factor of f − o in g; 0 where a feature is the OOD prototype itself."""
        prototypes = self.prototypes_.to(features.device)
        distances = torch.cdist(features.double(), prototypes)
        share, length = torch.softmax(-distances, dim=1)[:, -1:], distances[:, -1:]
        return torch.where(length > 0, share / length, 0.0)


@dataclass(frozen=True)
class _Gradients:
    """Gradients of training samples, made when they are read: stored, they would be as large as the features.

    Args:
        features: (n, d), memory-mapped or not.
        kept: (m,) rows that count.
        pulls: (m,) π_o/‖f − o‖ of these.
        origin: o (d,).
    """

    features: Tensor
    kept: Tensor
    pulls: Tensor
    origin: Tensor

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        """Gradients `index`, (k, d) float64."""
        return self.pulls[index, None] * (self.features[self.kept[index]].double() - self.origin)
