"""Densities of activations, counted in bins."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, MultipleOf
from torch import Tensor

from openbench.config.constraints import Count, NonNegative, Positive, Seed
from openbench.core import FeatureSet, Field, Head, Request
from openbench.methods._stats import Learning, balanced_draw, max_softmax, on_training

_BASE = 1000.0  # of the logarithm that spaces the intervals
_ROWS = 4096
_LOGITS = 2**23  # of perturbed logits handled at a time
_EPSILON, _EPSILON_PERTURBED = 0.01, 0.025  # added to densities, as in the authors' code


@dataclass
class NAC(Learning):
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

    needs: ClassVar[Request] = on_training(Field.FEATURES, Field.LOGITS, Field.LABELS, head=True)
    reference: ClassVar[str] = "Liu et al., ICLR 2024, arXiv 2306.02879"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"full"})

    bins: Annotated[int, Ge(4), MultipleOf(2)] = 50
    full: Count = 50
    steepness: Positive = 100.0
    samples: Count = 1000
    seed: Seed = 0

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Count states of features (n, d), with logits (n, c), in each interval over a draw balanced by labels."""
        self.weight_ = head.weight.double()
        self.bounds_ = _bounds(self.bins)
        chosen = train[balanced_draw(train.labels, self.samples, self.seed)]
        d = head.weight.shape[1]
        counts = torch.zeros(d * (self.bins - 1), dtype=torch.float64, device=chosen.device)
        for rows in chosen.batches(_ROWS):
            counts += torch.bincount(self._cells(rows).reshape(-1), minlength=len(counts))
        self.counts_ = counts

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


@dataclass
class WeiPer(Learning):
    """Divergences of the sample's activations and of its perturbed logits from their densities on training samples.

    score(x) = D(h(f), h̄_f) + λ₁ D(h(z̃), h̄_z̃) − λ₂ (1/r) Σ_i max softmax(z̃_i), z̃_i = (W + δ‖W‖N_i) f + b, rows of N_i
    random and of length 1, ‖W‖ the rows' lengths.

    h is the histogram of one sample's d or r·C values over the range of training values, h̄ its mean over training
    samples, and D(q, p) = KL(q ‖ p) + KL(p ‖ q) after q was smoothed by a moving average and both got a floor.

    Args:
        form: `kld` as above; `msp` is the last term alone, −(1/r) Σ_i max softmax(z̃_i).
        repeats: r ≥ 1; 100 by default.
        distance: δ ≥ 0; 1.8 by default.
        lambda_1: λ₁ ≥ 0; 2.5 by default.
        lambda_2: λ₂ ≥ 0; .1 by default.
        bins: of the histograms; 100 by default. The feature has one value per dimension: short features need fewer
            bins.
        smoothing: bins averaged in the histogram of the feature, 1 to bins; 4 by default.
        smoothing_perturbed: bins averaged in that of the perturbed logits; 15 by default.
        max_train: training samples drawn for densities, at most; null takes all.
        seed: of perturbations and draw.

    Raises:
        MethodError: a hyper-parameter out of range, no training split or no head.

    Reference: Granz et al., WeiPer: OOD Detection using Weight Perturbations of Class Projections, NeurIPS 2024,
    arXiv 2405.17164. Defaults are the authors' for CIFAR-10. Floors of .01 and .025, and a training density that is not
    smoothed, as in their code. Values outside the range of training fall into no bin.
    """

    needs: ClassVar[Request] = on_training(Field.FEATURES, head=True)
    reference: ClassVar[str] = "Granz et al., NeurIPS 2024, arXiv 2405.17164"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"lambda_1", "lambda_2", "smoothing", "smoothing_perturbed"})

    form: Literal["kld", "msp"] = "kld"
    repeats: Count = 100
    distance: NonNegative = 1.8
    lambda_1: NonNegative = 2.5
    lambda_2: NonNegative = 0.1
    bins: Annotated[int, Ge(2)] = 100
    smoothing: Count = 4
    smoothing_perturbed: Count = 15
    max_train: Count | None = 10000
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check the hyper-parameters."""
        for name in ("smoothing", "smoothing_perturbed"):
            self.require(getattr(self, name) <= self.bins, name, f"1 to {self.bins}, the number of bins")

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Draw the perturbations; learn ranges and densities on training features (n, d), in two passes."""
        generator = torch.Generator().manual_seed(self.seed)
        weight = head.weight.cpu().double()
        perturbed = torch.randn(self.repeats, *weight.shape, generator=generator, dtype=torch.float64)
        length = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
        # In place: a hundred weights of ImageNet's classifier are 1.6 GB.
        perturbed /= torch.linalg.vector_norm(perturbed, dim=2, keepdim=True)
        perturbed *= self.distance * length
        perturbed += weight
        self.weights_ = perturbed.reshape(-1, weight.shape[1])
        self.biases_ = head.bias.cpu().double().repeat(self.repeats)
        if self.form == "kld":
            size = min(len(train), self.max_train or len(train))
            drawn = train[torch.randperm(len(train), generator=generator)[:size].sort().values]
            self._learn_densities(drawn)

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("weights_")
        scores = [self._scored(features, logits) for features, logits in self._values(x)]
        return torch.cat(scores).float()

    def _scored(self, features: Tensor, perturbed: Tensor) -> Tensor:
        classes = perturbed.shape[1] // self.repeats
        confidence = max_softmax(perturbed.reshape(-1, classes)).reshape(-1, self.repeats).mean(dim=1)
        if self.form == "msp":
            return -confidence
        plain = _divergence(self._histogram(features, 0), self.density_, self.smoothing, _EPSILON)
        shifted = _divergence(
            self._histogram(perturbed, 1), self.density_perturbed_, self.smoothing_perturbed, _EPSILON_PERTURBED
        )
        return plain + self.lambda_1 * shifted - self.lambda_2 * confidence

    def _values(self, x: FeatureSet) -> Iterator[tuple[Tensor, Tensor]]:
        """Features (m, d) and perturbed logits (m, r·C) float64 of blocks of rows.

        In single precision the size of the block would decide which bin a value near a bound falls into.
        """
        weights, biases = self.weights_.to(x.features.device), self.biases_.to(x.features.device)
        for rows in x.batches(max(1, _LOGITS // len(weights))):
            features = rows.features.double()
            yield features, features @ weights.T + biases

    def _learn_densities(self, train: FeatureSet) -> None:
        ranges = [[torch.stack([v.min(), v.max()]) for v in values] for values in self._values(train)]
        low_high = torch.stack([torch.stack(block) for block in ranges]).cpu()  # blocks, kind, (least, largest)
        least, largest = low_high[:, :, 0].amin(dim=0), low_high[:, :, 1].amax(dim=0)
        self.bounds_ = torch.stack([torch.linspace(0, 1, self.bins + 1, dtype=torch.float64)] * 2)
        self.bounds_ = least[:, None] + self.bounds_ * (largest + 1e-8 - least)[:, None]
        totals = torch.zeros(2, self.bins, dtype=torch.float64)
        for values in self._values(train):
            totals += torch.stack([self._histogram(v, kind).sum(dim=0).cpu() for kind, v in enumerate(values)])
        self.density_, self.density_perturbed_ = (total / len(train) for total in totals)

    def _histogram(self, values: Tensor, kind: int) -> Tensor:
        """Share of each row's values in each bin, (n, bins); values outside all bins count in the whole."""
        place = torch.bucketize(values, self.bounds_[kind].to(values.device), right=True)  # 0 and bins + 1: outside
        rows = torch.arange(len(values), device=values.device)[:, None] * (self.bins + 2)
        counts = torch.bincount((place + rows).reshape(-1), minlength=len(values) * (self.bins + 2))
        return counts.reshape(len(values), -1)[:, 1:-1].double() / values.shape[1]


def _divergence(sample: Tensor, train: Tensor, width: int, floor: float) -> Tensor:
    """Symmetric KL divergence (n,) between smoothed histograms (n, bins) and one density (bins,)."""
    padded = torch.nn.functional.pad(sample, ((width - 1) // 2, width // 2), mode="replicate")
    q = torch.nn.functional.avg_pool1d(padded, width, stride=1) + floor
    p = train.to(sample) + floor
    q, p = q / q.sum(dim=1, keepdim=True), p / p.sum()
    return ((p - q) * (p.log() - q.log())).sum(dim=1)
