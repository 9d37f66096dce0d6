"""Features against class means, weights and decision boundaries."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from openbench.config.constraints import NonNegative
from openbench.core import FeatureSet, Field, Head, Request, by_rows
from openbench.errors import MethodError
from openbench.methods._stats import BLOCK, Learning, class_means, mean_feature, on_training, predictions, row_normalise

_FEW = 64  # classes up to which products with all patterns take less time than copying the predicted ones
Metric = Literal["inner_product", "euclidean", "cosine"]
_SMALLEST_NORM = 1e-12
_SMALLEST_ENERGY = 1e-6
_SMALLEST = 1e-12


@dataclass
class SHE(Learning):
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

    needs: ClassVar[Request] = on_training(Field.FEATURES, Field.LOGITS, Field.LABELS)
    reference: ClassVar[str] = "Zhang et al., ICLR 2023"

    metric: Metric = "inner_product"

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Average the features (n, d) of correctly classified samples per class, from logits (n, c) and labels."""
        classes = train.logits.shape[1]
        # Two bins per class, wrong and correct, so that each feature is added once.
        means = class_means(train, 2 * classes, lambda rows: rows.labels + classes * _right(rows))
        correct = torch.cat([rows.labels[_right(rows)] for rows in train.batches()])
        known = torch.bincount(correct, minlength=classes)[:, None] > 0
        self.patterns_ = torch.where(known, means[classes:], means[:classes]).float()

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


def _right(rows: FeatureSet) -> Tensor:
    """Return which samples of a batch are classified correctly, (n,) bool."""
    return rows.logits.argmax(dim=1) == rows.labels


@dataclass
class CORE(Learning):
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

    needs: ClassVar[Request] = on_training(Field.FEATURES, Field.LOGITS, Field.LABELS, head=True)
    reference: ClassVar[str] = "Yang et al., 2026, arXiv 2603.18290"

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn class residuals, and the mean and deviation of both parts, from features (n, d), logits and labels."""
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


@dataclass
class CADRef(Learning):
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

    needs: ClassVar[Request] = on_training(Field.FEATURES, Field.LOGITS, head=True)
    reference: ClassVar[str] = "Ling et al., CVPR 2025, arXiv 2503.00325"

    decoupled: bool = True

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn the means of features (n, d) per predicted class and the mean energy of logits (n, c)."""
        self.means_ = class_means(train, head.num_classes, predictions).float()
        self.signs_ = head.weight.sign()
        energy = sum(float(torch.logsumexp(rows.logits.double(), dim=1).sum()) for rows in train.batches())
        self.energy_ = torch.tensor(energy / len(train))
        if self.decoupled and not energy > 0:
            mean = f"{float(self.energy_):.3g}, not positive"
            raise MethodError(f"CADRef.fit: the mean energy of training logits is {mean} — use decoupled=false")

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


@dataclass
class NCI(Learning):
    """Negative projection of the predicted class' weight on the centred feature, less the feature's scaled L1 norm.

    score(x) = −w_ŷ·(f − f̄)/‖f − f̄‖ − α‖f‖₁, f̄ the mean training feature.

    Args:
        alpha: α ≥ 0, weight of the norm; 1e-4 by default.

    Raises:
        MethodError: a negative α, no training split or no head.

    Reference: Liu & Qin, Detecting Out-of-Distribution through the Lens of Neural Collapse, CVPR 2025,
    arXiv 2311.01479.
    """

    needs: ClassVar[Request] = on_training(Field.FEATURES, Field.LOGITS, head=True)
    reference: ClassVar[str] = "Liu & Qin, CVPR 2025, arXiv 2311.01479"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"alpha"})

    alpha: NonNegative = 1e-4

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn the mean of training features (n, d) and keep the head's weight."""
        self.mean_ = mean_feature(train).float()
        self.weight_ = head.weight.clone()

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


@dataclass
class FDBD(Learning):
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

    needs: ClassVar[Request] = on_training(Field.FEATURES, Field.LOGITS, head=True)
    reference: ClassVar[str] = "Liu & Qin, ICML 2024, arXiv 2312.11536"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"distance"})

    distance: bool = True

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn the mean feature, from training features (n, d), and the inverse distances of the head's rows."""
        weight = head.weight.double()
        distances = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")
        self.inverse_ = torch.where(distances > 0, 1 / distances, 0.0)
        self.mean_ = mean_feature(train).float()

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        top, predicted = x.logits.max(dim=1, keepdim=True)
        inverse = self.learnt("inverse_").to(x.logits.device)[predicted[:, 0]]
        boundaries = ((top - x.logits).double() * inverse).sum(dim=1)
        moved = x.features - self.learnt("mean_").to(x.features.device) if self.distance else x.features
        length: Tensor = torch.linalg.vector_norm(moved, dim=1).double().clamp(min=_SMALLEST)
        return -(boundaries / length).float()


@dataclass
class ORA(Learning):
    """Negative largest angle, seen from the mean feature, between the feature and its projections on the boundaries.

    score(x) = −max_c ∠(f − μ, f_c − μ)/π, f_c = f − (z_ŷ − z_c)(w_ŷ − w_c)/‖w_ŷ − w_c‖² the nearest point of the
    boundary between ŷ and c, μ the mean of the class means of training features.

    Args:
        aggregation: over classes other than the predicted one: `max` as above, as in the paper; `mean` or `min`, which
            the authors' postprocessor for OpenOOD offers besides. With few classes the farthest boundary tells little:
            on the CIFAR-10 records' ResNet-20 the mean reaches a near AUROC of 90.5, the maximum 85.4.

    Raises:
        MethodError: no training split, no head, or a label that is not among the head's classes.

    Reference: Demirel et al., Out-of-Distribution Detection with Relative Angles, NeurIPS 2025, arXiv 2410.04525. The
    angle is taken from sine and cosine, since arccos in float32 loses the small angles. A class with the weights of the
    predicted one has no boundary and no angle (the official code counts 0); a feature at μ has angle 0 everywhere.
    Classes without training samples have no mean and do not enter μ.
    """

    needs: ClassVar[Request] = on_training(Field.FEATURES, Field.LOGITS, Field.LABELS, head=True)
    reference: ClassVar[str] = "Demirel et al., NeurIPS 2025, arXiv 2410.04525"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"aggregation"})

    aggregation: Literal["max", "mean", "min"] = "max"

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn μ from training features (n, d) and labels (n,), and the distances between rows of the head."""
        weight = head.weight.double()
        means = class_means(train, head.num_classes)
        present = torch.bincount(train.labels.cpu(), minlength=head.num_classes) > 0
        self.weight_ = weight
        self.mean_ = means[present.to(means.device)].mean(dim=0)
        self.apart_ = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("apart_")
        # In float64 the matrices of all rows at once would be twice as large as the logits.
        parts = zip(torch.split(x.features, BLOCK), torch.split(x.logits, BLOCK), strict=True)
        return torch.cat([-self._over_classes(*self._angles(f, z)).float() / math.pi for f, z in parts])

    def _over_classes(self, angles: Tensor, bounded: Tensor) -> Tensor:
        """One angle (n,) of those to the boundaries that there are, 0 without any."""
        if self.aggregation == "min":
            least = angles.masked_fill(~bounded, torch.inf).amin(dim=1)
            return torch.where(bounded.any(dim=1), least, 0.0)
        if self.aggregation == "mean":
            return angles.sum(dim=1) / bounded.sum(dim=1).clamp(min=1)
        return angles.amax(dim=1)

    def _angles(self, features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Angles (n, c) float64 in radians between f − μ and f_c − μ, without making any f_c; and where c has one.

        With a = f − μ, v = w_ŷ − w_c and g = z_ŷ − z_c: f_c − μ = a − g v/‖v‖², so that both the product of a with it
        and the length of their cross product follow from ‖a‖², a·v, ‖v‖ and g.
        """
        device = features.device
        a = features.double() - self.mean_.to(device)
        top, predicted = logits.double().max(dim=1, keepdim=True)
        along = by_rows(a, self.weight_.to(device))
        distances = self.apart_.to(device)[predicted[:, 0]]
        inverse = torch.where(distances > 0, 1 / distances, 0.0)
        gap = (top - logits.double()) * inverse  # ‖f − f_c‖
        along = (along.gather(1, predicted) - along) * inverse  # a·v/‖v‖
        square = a.square().sum(dim=1, keepdim=True)
        across = (square - along.square()).clamp(min=0).sqrt()
        return torch.atan2(gap * across, square - gap * along), distances > 0
