"""Mahalanobis distance to clusters of self-supervised features."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count, Seed
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.errors import MethodError
from openbench.methods._stats import FIT_BATCH, drawn, moments, row_normalise, training, unit_features, whitening

_STEPS = 100  # of k-means, at most
_PER_CENTRE = 256  # samples that k-means sees per cluster, as faiss does


@dataclass
class SSD(Method):
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

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Sehwag et al., ICLR 2021, arXiv 2103.12051"

    clusters: Count | Literal["labels"] = 1
    seed: Seed = 0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn scaling and clusters from training features (n, d), and labels (n,) where they are the clusters."""
        train = training(train, "SSD")
        whole = moments(train, "SSD", unit_features, by_class=False)
        deviation = whole.total_covariance().diagonal().clamp(min=0).sqrt()
        self.center_ = whole.mean().float()
        self.inverse_ = torch.where(deviation > 0, 1 / deviation, 0.0).float()
        members = self._members(train)
        gaussians = [_gaussian(self._batches(train), members, m) for m in sorted(set(members.tolist()))]
        varying = [(mean, whiten) for mean, whiten in gaussians if whiten.shape[1]]
        if not varying:
            raise MethodError(
                f"SSD.fit: training features do not vary within clusters ({len(train)} samples in {len(gaussians)} "
                "clusters) — use fewer clusters"
            )
        self.means_ = torch.stack([mean for mean, _ in varying]).float()
        self.whiten_ = [whiten.float() for _, whiten in varying]
        return self

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
        return (row_normalise(features) - self.center_.to(features.device)) * self.inverse_.to(features.device)

    def _batches(self, train: FeatureSet) -> Iterator[Tensor]:
        """Training u, a batch at a time."""
        return (self._placed(rows.features) for rows in train.batches(FIT_BATCH))

    def _members(self, train: FeatureSet) -> Tensor:
        """The cluster (n,) of each training sample."""
        if self.clusters == "labels":
            return torch.cat([rows.labels for rows in train.batches()])
        if self.clusters == 1:
            return torch.zeros(len(train), dtype=torch.int64, device=train.device)
        self.require(self.clusters <= len(train), "clusters", f"1 to {len(train)}, the number of training samples")
        seen = drawn(train, _PER_CENTRE * self.clusters, self.seed)
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
    return mean, whitening(covariance)


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
