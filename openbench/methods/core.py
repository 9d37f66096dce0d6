"""Confidence and orthogonal residual."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.methods._stats import BLOCK, class_means, classifier, row_normalise, training


@dataclass
class CORE(Method):
    """Energy plus how badly the part of the feature that the predicted class does not read fits that class.

    score(x) = −(E − μ_E)/σ_E − (s − μ_s)/σ_s, E = log Σ_c exp z_c, s = cos(r, m_ŷ), r = f − (f·ŵ)ŵ with ŵ = w_ŷ/‖w_ŷ‖,
    m_c the mean of the residuals against w_c of training samples of class c; means and deviations over training
    samples.

    Raises:
        MethodError: no training split, no head, or a label that is not among the head's classes.

    Reference: Yang et al., CORE: Robust Out-of-Distribution Detection via Confidence and Orthogonal Residual Scoring,
    2026, arXiv 2603.18290. Written from what could be read: the abstract (two orthogonal parts, combined "via
    normalized summation"), the description of its pull request to OpenOOD, no. 312 (energy along the weight
    directions, cosine to the class mean across them), and summaries of the paper (z-scores, O(d) beyond the logits).
    Neither the paper's formulas nor its code were at hand. The direction is that of the predicted class: the span of
    all weights, which one summary names, has no complement in ViT-B/16, where the paper reports a gain. Not verified,
    and chosen here: class means by training label, and means and deviations over all training samples. On CIFAR-10's
    ResNet-20 other readings move AUROC by up to half a point (`scripts/core_readings.py`).
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS, Field.LABELS}), fit_on=Role.ID_TRAIN, head=True
    )
    reference: ClassVar[str] = "Yang et al., 2026, arXiv 2603.18290"

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn class residuals, and the mean and deviation of both parts, from features (n, d), logits and labels."""
        train, head = training(train, "CORE"), classifier(head, "CORE")
        directions = row_normalise(head.weight.double())
        means = class_means(train, head.num_classes).to(directions.device)
        # The mean of residuals is the residual of the mean.
        residuals = means - (means * directions).sum(dim=1, keepdim=True) * directions
        self.directions_ = directions.float()
        self.residuals_ = row_normalise(residuals).float()
        total = torch.zeros(2, 2, dtype=torch.float64)
        # Deviations from the first batch's mean, so that a large mean does not cost digits.
        shift = self._parts(next(train.batches())).mean(dim=0)
        for rows in train.batches():
            parts = self._parts(rows) - shift
            total += torch.stack([parts.sum(dim=0), parts.square().sum(dim=0)]).cpu()
        first, second = total / len(train)
        deviation = (second - first.square()).clamp(min=0).sqrt()
        self.center_ = first + shift.cpu()
        # A part that does not vary is left out: with one feature there is no residual.
        self.scale_ = torch.where(deviation > 0, 1 / deviation, 0.0)
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("scale_")
        parts = self._parts(x)
        standard: Tensor = (parts - self.center_.to(parts.device)) * self.scale_.to(parts.device)
        return -standard.sum(dim=1).float()

    def _parts(self, x: FeatureSet) -> Tensor:
        """Energy and cosine (n, 2) float64."""
        predicted, device = x.logits.argmax(dim=1), x.features.device
        directions, residuals = self.directions_.to(device), self.residuals_.to(device)
        cosines = []
        # Directions of all rows at once would be copies as large as the features.
        for f, y in zip(torch.split(x.features, BLOCK), torch.split(predicted, BLOCK), strict=True):
            w = directions.index_select(0, y)
            residual = row_normalise(f - (f * w).sum(dim=1, keepdim=True) * w)
            cosines.append((residual * residuals.index_select(0, y)).sum(dim=1))
        return torch.stack([torch.logsumexp(x.logits.double(), dim=1), torch.cat(cosines).double()], dim=1)
