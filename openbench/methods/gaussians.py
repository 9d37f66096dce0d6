"""Gaussians of classes or clusters."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from openbench.config.constraints import Count, NonNegative, Positive, Seed
from openbench.core import FeatureSet, Field, Head, Request, by_rows
from openbench.errors import MethodError, NotApplicableError
from openbench.methods import _stats as stats

_STEPS = 100  # of k-means, at most
_PER_CENTRE = 256  # samples that k-means sees per cluster, as faiss does


@dataclass
class MDS(stats.NearestMean):
    """Squared Mahalanobis distance to the nearest class mean, one covariance shared by all classes.

    score(x) = min_c (f − μ_c)ᵀ Σ⁺ (f − μ_c), Σ the biased covariance of training features around their class means.

    Args:
        normalise: whether features are scaled to unit length first, in training and in testing; False is MDS, True is
            MDS++ of Müller & Hein.

    Raises:
        MethodError: no training split; NaN, negative labels, or features that do not vary within classes.

    Reference: Lee et al., A Simple Unified Framework for Detecting Out-of-Distribution Samples and Adversarial Attacks,
    NeurIPS 2018, arXiv 1807.03888. Penultimate features only and no input step, as in OpenOOD's `mds`; Σ⁺ is a
    pseudo-inverse, so that constant or duplicated features do no harm.
    `normalise`: Müller & Hein, Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML 2025,
    arXiv 2505.18032.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LABELS)
    reference: ClassVar[str] = (
        "Lee et al., NeurIPS 2018, arXiv 1807.03888; ++: Müller & Hein, ICML 2025, arXiv 2505.18032"
    )

    normalise: bool = False

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn class means and the shared covariance from training features (n, d) and labels (n,)."""
        vectors = stats.unit_features if self.normalise else stats.plain_features
        self._learn_means(stats.moments(train, "MDS", vectors))

    def _vectors(self, x: FeatureSet) -> Tensor:
        return stats.row_normalise(x.features) if self.normalise else x.features


@dataclass
class RMDS(stats.Learning):
    """Squared Mahalanobis distance to the nearest class mean, less the one to the mean of all training features.

    score(x) = min_c (f − μ_c)ᵀ Σ⁺ (f − μ_c) − (f − μ)ᵀ Σ₀⁺ (f − μ), Σ the biased covariance around class means, Σ₀ the
    one around the overall mean μ.

    Args:
        normalise: whether features are scaled to unit length first, in training and in testing; False is RMDS, True is
            RMDS++ of Müller & Hein.

    Raises:
        MethodError: no training split; NaN, negative labels, or features that do not vary within classes.
        NotApplicableError: a single class has samples.

    Reference: Ren et al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, ICML workshop 2021,
    arXiv 2106.09022. Pseudo-inverses, so that constant or duplicated features do no harm. `normalise`: Müller & Hein,
    Mahalanobis++: Improving OOD Detection via Feature Normalization, ICML 2025, arXiv 2505.18032.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LABELS)
    reference: ClassVar[str] = (
        "Ren et al., ICML workshop 2021, arXiv 2106.09022; ++: Müller & Hein, ICML 2025, arXiv 2505.18032"
    )

    normalise: bool = False

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn class means and both covariances from training features (n, d) and labels (n,), in one pass."""
        vectors = stats.unit_features if self.normalise else stats.plain_features
        m = stats.moments(train, "RMDS", vectors)
        if int(m.present.sum()) < 2:
            raise NotApplicableError("RMDS.fit: with a single class all scores would be 0 — choose method=mds")
        within, total, center = stats.whitening(m.within_covariance()), stats.whitening(m.total_covariance()), m.mean()
        self.center_ = center.float()
        self.within_ = within.float()
        self.total_ = total.float()
        self.means_ = ((m.class_means() - center) @ within).float()

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        features = stats.row_normalise(x.features) if self.normalise else x.features
        centred = features - self.learnt("center_").to(features.device)
        white = by_rows(centred, self.within_.to(centred.device).T)
        nearest = stats.to_means(white, self.means_.to(centred.device)).amin(dim=1)
        background = by_rows(centred, self.total_.to(centred.device).T).square().sum(dim=1)
        return white.square().sum(dim=1) + nearest - background


@dataclass
class ScaledMDS(stats.NearestMean):
    """Squared Mahalanobis distance to the nearest class mean, of features divided by a power of their length.

    score(x) = min_c (φ − μ_c)ᵀ Σ⁺ (φ − μ_c), φ = f/‖f‖^β, Σ the biased covariance of training φ around class means.

    Args:
        beta: β ≥ 0; 0 is `mds`, 1 is `mds_pp`. Lengths of φ are those of f to the power 1 − β.

    Raises:
        MethodError: no training split; NaN, negative labels, or features that do not vary within classes.

    Reference: Janiak et al., A Geometry-Based View of Mahalanobis OOD Detection, 2025, arXiv 2510.15202. The paper
    chooses β per network, from the spectrum and the local dimension of ID features; here it is searched on validation.
    Σ⁺ is a pseudo-inverse; a feature of zeros stays zero.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LABELS)
    reference: ClassVar[str] = "Janiak et al., 2025, arXiv 2510.15202"

    beta: NonNegative = 1.0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn class means and the shared covariance from training features (n, d) and labels (n,)."""
        self._learn_means(stats.moments(train, "ScaledMDS", lambda rows: self._scaled(rows.features.double())))

    def _vectors(self, x: FeatureSet) -> Tensor:
        return self._scaled(x.features)

    def _scaled(self, features: Tensor) -> Tensor:
        """φ (n, d), in the dtype of the features; powers of lengths are taken in float64, whose range they keep."""
        lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True, dtype=torch.float64)
        factor = torch.where(lengths > 0, lengths.clamp(min=torch.finfo(lengths.dtype).tiny) ** -self.beta, 0.0)
        return (features * factor).to(features.dtype)


@dataclass
class GMM(stats.Learning):
    """Negative log-density of a mixture of Gaussians, one for each class with a covariance of its own.

    score(x) = −log Σ_c π_c N(f; μ_c, Σ_c + εs̄ I), π_c the share of training samples in class c, μ_c and Σ_c their mean
    and biased covariance, s̄ the mean variance of a feature around its class mean.

    It keeps a d × d matrix for each class: 1,000 classes of 512 features take 1 GiB, of 1,024 features 4 GiB.

    Args:
        ridge: ε > 0, so that a class of few samples has a density, too.

    Raises:
        MethodError: no training split, features that do not vary within classes, or a ridge that rounding swallows.

    Reference: Mukhoti et al., Deep Deterministic Uncertainty: A New Simple Baseline, CVPR 2023, arXiv 2102.11582: the
    density of their Gaussian discriminant analysis, here for any network. Their code raises ε from 0 until the
    covariances can be decomposed, pytorch-ood's `GMM` adds 1e-6 itself; here ε is relative to the features' variance,
    so that their scale does not matter. OpenOOD's `gmm` is another: clusters without labels, one covariance for all.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LABELS)
    reference: ClassVar[str] = "Mukhoti et al., CVPR 2023, arXiv 2102.11582"

    ridge: Positive = 1e-6

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn means, covariances and shares of the classes from training features (n, d) and labels (n,)."""
        m = stats.moments(train, "GMM")
        ridge = self.ridge * float(m.within_covariance().diagonal().mean())
        counts, means = m.counts[m.present], m.class_means()
        # In one piece: pieces among the larger ones of the loop leave holes, of nearly the same size in all.
        self.whiten_ = torch.empty(len(means), *means.shape[1:] * 2, device=means.device)
        heights = []
        order, ends = train.labels.argsort(stable=True), counts.long().cumsum(dim=0).tolist()
        for start, end, mean, whiten in zip([0, *ends], ends, means, self.whiten_, strict=False):
            covariance = _scatter(train, order[start:end], mean) / (end - start)
            covariance.diagonal().add_(ridge)
            lower, failed = torch.linalg.cholesky_ex(covariance)
            self.require(not failed, "ridge", f"larger ones: the covariance of {end - start} samples is singular")
            whiten.copy_(torch.linalg.solve_triangular(lower, torch.eye(len(lower)).to(lower), upper=False))
            heights.append(-lower.diagonal().log().sum() - 0.5 * len(lower) * math.log(2 * math.pi))
        self.means_ = means.float()
        self.heights_ = torch.stack(heights) + (counts / m.n).log()
        self.present_ = m.present.cpu()

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        return -torch.logsumexp(self._densities(x), dim=1).float()

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return −log π_c N(f; μ_c, Σ_c + εs̄ I), (n, c) float32; +inf for classes absent from training."""
        densities = self._densities(x)
        by_class = densities.new_full((len(x), len(self.present_)), float("inf"), dtype=torch.float32)
        by_class[:, self.present_.to(by_class.device)] = -densities.float()
        return by_class

    def _densities(self, x: FeatureSet) -> Tensor:
        """Logarithm (n, k) float64 of the weighted density under each of the k classes present."""
        device = x.features.device
        distances = [
            by_rows(x.features - mean, whiten.to(device)).double().square().sum(dim=1)
            for mean, whiten in zip(self.learnt("means_").to(device), self.whiten_, strict=True)
        ]
        heights: Tensor = self.heights_.to(device)
        return heights - 0.5 * torch.stack(distances, dim=1)


def _scatter(train: FeatureSet, rows: Tensor, mean: Tensor) -> Tensor:
    """Σ (x − μ)(x − μ)ᵀ (d, d) float64 over some rows, read in parts."""
    total = mean.new_zeros(len(mean), len(mean))
    for part in torch.split(rows, stats.FIT_BATCH):
        x = train.features[part].double() - mean
        total.addmm_(x.T, x)
    return total


@dataclass
class SSD(stats.Learning):
    """Squared Mahalanobis distance to the nearest cluster of unit features, each cluster with a covariance of its own.

    score(x) = min_m (u − μ_m)ᵀ Σ_m⁺ (u − μ_m), u = (f̂ − f̄)/s with f̂ = f/‖f‖ and f̄, s the mean and the deviation of
    each dimension of training f̂; μ_m, Σ_m mean and biased covariance of the training u in cluster m.

    Args:
        clusters: how many, found by k-means; 1 (the paper's best) takes all training samples for one. `labels` takes
            each class for a cluster, as the paper does with networks trained by cross-entropy.
        seed: of the samples that k-means sees and starts from.

    Raises:
        MethodError: no training split, more clusters than samples, or features that do not vary within clusters.

    Reference: Sehwag et al., SSD: A Unified Framework for Self-Supervised Outlier Detection, ICLR 2021,
    arXiv 2103.12051. SSD's features are those before the projection of a SimCLR network, SSD+'s of a supervised
    contrastive one (`training=supcon`). k-means: 100 steps of Lloyd's from random samples, on 256 samples per cluster,
    as the official code has faiss do. A cluster whose samples are all alike has no covariance and counts for nothing. A
    matrix of d² values per cluster is kept: 100 clusters of 2,048 features take 1.7 GB. SSDk, which knows OOD samples,
    is not here.
    """

    needs: ClassVar[Request] = stats.on_training(Field.FEATURES, Field.LABELS)
    reference: ClassVar[str] = "Sehwag et al., ICLR 2021, arXiv 2103.12051"

    clusters: Count | Literal["labels"] = 1
    seed: Seed = 0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Learn scaling and clusters from training features (n, d), and labels (n,) where they are the clusters."""
        whole = stats.moments(train, "SSD", stats.unit_features, by_class=False)
        deviation = whole.total_covariance().diagonal().clamp(min=0).sqrt()
        self.center_ = whole.mean().float()
        self.inverse_ = torch.where(deviation > 0, 1 / deviation, 0.0).float()
        members = self._members(train)
        gaussians = [_gaussian(self._batches(train), members, m) for m in sorted(set(members.tolist()))]
        varying = [(mean, whiten) for mean, whiten in gaussians if whiten.shape[1]]
        if not varying:
            found = f"{len(train)} samples in {len(gaussians)} clusters"
            raise MethodError(f"SSD.fit: training features do not vary within clusters ({found}) — use fewer")
        self.means_ = torch.stack([mean for mean, _ in varying]).float()
        self.whiten_ = [whiten.float() for _, whiten in varying]

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("means_")
        u = self._placed(x.features)
        nearest = u.new_full((len(u),), float("inf"))
        for mean, whiten in zip(self.means_.to(u.device), self.whiten_, strict=True):
            white = by_rows(u - mean, whiten.to(u.device).T)
            nearest = torch.minimum(nearest, white.square().sum(dim=1))
        return nearest

    def _placed(self, features: Tensor) -> Tensor:
        """Features u (n, d)."""
        return (stats.row_normalise(features) - self.center_.to(features.device)) * self.inverse_.to(features.device)

    def _batches(self, train: FeatureSet) -> Iterator[Tensor]:
        """Training u, a batch at a time."""
        return (self._placed(rows.features) for rows in train.batches(stats.FIT_BATCH))

    def _members(self, train: FeatureSet) -> Tensor:
        """The cluster (n,) of each training sample."""
        if self.clusters == "labels":
            return torch.cat([rows.labels for rows in train.batches()])
        if self.clusters == 1:
            return torch.zeros(len(train), dtype=torch.int64, device=train.device)
        self.require(self.clusters <= len(train), "clusters", f"1 to {len(train)}, the number of training samples")
        seen = stats.drawn(train, _PER_CENTRE * self.clusters, self.seed)
        centres = _k_means(torch.cat(list(self._batches(seen))).double(), self.clusters, self.seed)
        return torch.cat([_nearest(u.double(), centres) for u in self._batches(train)])


def _gaussian(batches: Iterator[Tensor], members: Tensor, cluster: int) -> tuple[Tensor, Tensor]:
    """Mean (d,) of a cluster, and A (d, r) with A Aᵀ the pseudo-inverse of its biased covariance; r = 0 without one."""
    total, count, start = None, 0, 0
    for u in batches:
        x = u[members[start : start + len(u)] == cluster].double()
        start, count = start + len(u), count + len(x)
        if not len(x):
            continue
        if total is None:
            # Seen from a member: squares of a mean far away would leave noise where a small cluster has no variance.
            origin = x[0].clone()
            total, scatter = x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1], x.shape[1])
        x -= origin
        total += x.sum(dim=0)
        scatter.addmm_(x.T, x)
    if total is None:
        raise MethodError(f"SSD.fit: cluster {cluster} is empty")
    offset = total / count
    mean, covariance = origin + offset, scatter / count - torch.outer(offset, offset)
    # Float32 features alike to the last digit leave 1e-14 of their square.
    if float(covariance.trace()) <= 1e-12 * float(mean.square().sum() + covariance.trace()):
        return mean, mean.new_zeros(len(mean), 0)
    return mean, stats.whitening(covariance)


def _k_means(points: Tensor, k: int, seed: int) -> Tensor:
    """Centres (k, d) by Lloyd's steps from k of the points (m, d); a centre that loses all its points stays."""
    start = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))[:k]
    centres, before = points[start.to(points.device)], None
    for _ in range(_STEPS):
        near = _nearest(points, centres)
        if before is not None and not bool((near != before).any()):
            break
        before = near
        counts = torch.bincount(near, minlength=k)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, near, points)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return centres


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre (n,) of points (n, d)."""
    return (centres.square().sum(dim=1) - 2 * points @ centres.T).argmin(dim=1)
