"""Simplified Hopfield energy."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.methods._stats import BLOCK, row_normalise, training

_FEW = 64  # classes up to which products with all patterns take less time than copying the predicted ones
Metric = Literal["inner_product", "euclidean", "cosine"]


@dataclass
class SHE(Method):
    """Negative similarity to the stored pattern of the predicted class.

    score(x) = −f·m_ŷ, m_c the mean feature of correctly classified training samples of class c.

    Args:
        metric: `inner_product` as above; `euclidean` is ‖f − m_ŷ‖, `cosine` is −cos(f, m_ŷ).

    Raises:
        MethodError: an unknown metric, or no training split.

    Reference: Zhang et al., Out-of-Distribution Detection based on In-Distribution Data Patterns Memorization with
    Modern Hopfield Energy, ICLR 2023. A class without a correctly classified sample takes the mean of all its samples,
    a class without samples that of all training samples (OpenOOD: NaN).
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS, Field.LABELS}), fit_on=Role.ID_TRAIN
    )
    reference: ClassVar[str] = "Zhang et al., ICLR 2023"

    metric: Metric = "inner_product"

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Average the features (n, d) of correctly classified samples per class, from logits (n, c) and labels."""
        train = training(train, "SHE")
        classes, d = train.logits.shape[1], train.features.shape[1]
        # Two bins per class, wrong and correct, so that each feature is added once.
        sums = torch.zeros(2 * classes, d, dtype=torch.float64, device=train.device)
        counts = torch.zeros(2 * classes, dtype=torch.float64, device=train.device)
        for rows in train.batches():
            bins = rows.labels + classes * (rows.logits.argmax(dim=1) == rows.labels)
            for features, where in zip(torch.split(rows.features, BLOCK), torch.split(bins, BLOCK), strict=True):
                sums.index_add_(0, where, features.double())
            counts += torch.bincount(bins, minlength=2 * classes)
        correct, of_class = sums[classes:], sums[:classes] + sums[classes:]
        n_correct, n_class = counts[classes:, None], (counts[:classes] + counts[classes:])[:, None]
        means = torch.where(n_class > 0, of_class / n_class, of_class.sum(dim=0) / len(train))
        self.patterns_ = torch.where(n_correct > 0, correct / n_correct, means).float()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        patterns = self.learnt("patterns_").to(x.features.device)
        predicted = x.logits.argmax(dim=1)
        if self.metric == "inner_product" and len(patterns) <= _FEW:
            return -by_rows(x.features, patterns).gather(1, predicted[:, None])[:, 0]
        # Patterns of all rows at once would be a copy as large as the features.
        parts = zip(torch.split(x.features, BLOCK), torch.split(predicted, BLOCK), strict=True)
        return torch.cat([self._unlike(features, patterns.index_select(0, y)) for features, y in parts])

    def _unlike(self, features: Tensor, pattern: Tensor) -> Tensor:
        """How unlike features (n, d) are to their patterns (n, d), row by row."""
        if self.metric == "euclidean":
            return torch.linalg.vector_norm(features - pattern, dim=1)
        if self.metric == "cosine":
            features, pattern = row_normalise(features), row_normalise(pattern)
        return -(features * pattern).sum(dim=1)
