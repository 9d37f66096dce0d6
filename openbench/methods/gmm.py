"""Density of a Gaussian mixture with one component per class."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import Positive
from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.methods._stats import FIT_BATCH, moments, training


@dataclass
class GMM(Method):
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

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Mukhoti et al., CVPR 2023, arXiv 2102.11582"

    ridge: Positive = 1e-6

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn means, covariances and shares of the classes from training features (n, d) and labels (n,)."""
        train = training(train, "GMM")
        m = moments(train, "GMM")
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
            self.require(
                not failed, "ridge", f"larger ones: the covariance of {end - start} samples of a class is singular"
            )
            whiten.copy_(torch.linalg.solve_triangular(lower, torch.eye(len(lower)).to(lower), upper=False))
            heights.append(-lower.diagonal().log().sum() - 0.5 * len(lower) * math.log(2 * math.pi))
        self.means_ = means.float()
        self.heights_ = torch.stack(heights) + (counts / m.n).log()
        self.present_ = m.present.cpu()
        return self

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
    for part in torch.split(rows, FIT_BATCH):
        x = train.features[part].double() - mean
        total.addmm_(x.T, x)
    return total
