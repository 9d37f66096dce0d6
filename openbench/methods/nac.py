"""Neuron activation coverage."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from annotated_types import Ge, MultipleOf
from torch import Tensor

from openbench.config.constraints import Count, Positive, Seed
from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.methods._stats import balanced_draw, classifier, training

_BASE = 1000.0  # of the logarithm that spaces the intervals
_ROWS = 4096


@dataclass
class NAC(Method):
    """Negative coverage of the feature's activation states by those of training samples.

    score(x) = −(1/d) Σ_j min(N_j/O, 1), N_j the number of training samples whose state s_j falls in the same of M − 1
    intervals of [0, 1.2) as that of x, s = sigmoid(α f ⊙ Wᵀ(p − 1/C)), p = softmax(z).

    Wᵀ(p − 1/C) is the gradient of KL(1/C ‖ p) with respect to f, so no backward pass is needed.

    Args:
        bins: M, even and at least 4: number of interval bounds, the closer the nearer to 1/2; 50 by default.
        full: O ≥ 1: number of training samples that cover an interval fully; 50 by default.
        steepness: α > 0 of the sigmoid; 100 by default.
        samples: number of training samples drawn, equally many per class; 1000 by default, for ViT 50000.
        seed: of the draw.

    Raises:
        MethodError: a hyper-parameter out of range, no training split or no head.

    Reference: Liu et al., Neuron Activation Coverage: Rethinking Out-of-distribution Detection and Generalization, ICLR
    2024, arXiv 2306.02879. Penultimate layer only, as in the authors' default configuration; the paper's best numbers
    add three earlier layers. Defaults are theirs for CIFAR-10; for CIFAR-100 they take `steepness` 50, for ImageNet
    `full` 10 and `steepness` 3000, all in the grid of `nac.yaml`. Intervals are those of the authors' code, where
    bounds are log_1000 of numbers spaced evenly from 1 to √1000, and their mirror image.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS, Field.LABELS}), fit_on=Role.ID_TRAIN, head=True
    )
    reference: ClassVar[str] = "Liu et al., ICLR 2024, arXiv 2306.02879"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"full"})

    bins: Annotated[int, Ge(4), MultipleOf(2)] = 50
    full: Count = 50
    steepness: Positive = 100.0
    samples: Count = 1000
    seed: Seed = 0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Count states of features (n, d), with logits (n, c), in each interval over a draw balanced by labels."""
        train, head = training(train, "NAC"), classifier(head, "NAC")
        self.weight_ = head.weight.double()
        self.bounds_ = _bounds(self.bins)
        chosen = train[balanced_draw(train.labels, self.samples, self.seed)]
        d = head.weight.shape[1]
        counts = torch.zeros(d * (self.bins - 1), dtype=torch.float64, device=chosen.device)
        for rows in chosen.batches(_ROWS):
            counts += torch.bincount(self._cells(rows).reshape(-1), minlength=len(counts))
        self.counts_ = counts
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        coverage = (self.learnt("counts_").to(x.features.device) / self.full).clamp(max=1)
        return -coverage[self._cells(x)].mean(dim=1).float()

    def _cells(self, x: FeatureSet) -> Tensor:
        """(n, d) where each state falls in the row of all intervals: M − 1 of the first neuron, then of the next."""
        away = torch.softmax(x.logits.double(), dim=1) - 1 / x.logits.shape[1]
        states = torch.sigmoid(self.steepness * x.features * (away @ self.weight_.to(away.device)))
        interval = torch.bucketize(states, self.bounds_.to(away.device), right=True) - 1
        return interval + (self.bins - 1) * torch.arange(states.shape[1], device=away.device)


def _bounds(bins: int) -> Tensor:
    """(M,) float64 ascending from 0 to 1.2; the last but one is 1.01, so that 1 itself lies inside."""
    half = bins // 2
    lower = torch.linspace(1, _BASE**0.5, half, dtype=torch.float64).log() / torch.tensor(_BASE).double().log()
    bounds = torch.cat([lower[:-1], (1 - lower).flip(0), torch.tensor([1.2], dtype=torch.float64)])
    bounds[-2] += 0.01
    return bounds
