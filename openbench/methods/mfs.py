"""Distances in the features that images mixed with other images move most: MFS, marginal feature selection."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from openbench.config.constraints import Count, Seed, Share
from openbench.core import FeatureSet, Field, Head, Mixing, Request
from openbench.core.features import DEFAULT_BATCH
from openbench.methods._bank import Bank
from openbench.methods._stats import Learning, NearestMean, moments, on_training, row_normalise, sorted_rows

_AT_ONCE = 1 << 28  # values sorted at a time, 1 GiB
SHARES = (0.25, 0.5, 0.75)


@dataclass
class MFS(Learning):
    """A distance in the features whose values change most when images are mixed with others.

    Training images are mixed with images of OOD validation, x̃ = λ·x + (1 − λ)·o, and the features are ordered by
    W₁(f_j, f̃_j), the Wasserstein distance between their values on x and on x̃. The distance is
    measured in the first share of them.
    """

    needs: ClassVar[Request] = on_training(Field.FEATURES, Field.LABELS, Field.MIXED, mixing=Mixing(SHARES))
    reference: ClassVar[str] = "remic-othr/OpenMIBOOD, 2026 (authors' code); Gutbrod et al., CVPR 2025"
    version: ClassVar[int] = Mixing.version

    share: Share = 0.1
    seed: Seed = 0

    @property
    def request(self) -> Request:
        """What is read, with the seed of the mixed images."""
        return replace(self.needs, mixing=Mixing(SHARES, self.seed))

    @abstractmethod
    def _fit_distance(self, train: FeatureSet) -> None:
        """Fit the distance to the chosen features of training, and the labels (n,)."""

    @property
    def _unit(self) -> bool:
        """Whether features are brought to unit length before the choice; otherwise to the range of training."""
        return True

    def _learn(self, train: FeatureSet, head: Head) -> None:
        """Choose features from training features (n, d) and those of mixed images (n, d), and fit the distance."""
        distances = marginal_distances(train.features, train.mixed, unit=self._unit)
        if not self._unit:
            low, high = torch.aminmax(train.features, dim=0)
            spread = (high - low).double()
            distances = torch.where(spread > 0, distances / spread.clamp(min=torch.finfo(torch.float32).tiny), 0.0)
        keep = max(int(self.share * len(distances)), 1)
        self.chosen_ = torch.argsort(distances, descending=True, stable=True)[:keep].sort().values
        self._fit_distance(train)

    def _rows(self, x: FeatureSet) -> Tensor:
        """The chosen features (n, k) of samples of which there are not many."""
        return Chosen(x.features, self.learnt("chosen_"), self._unit)[slice(None)]


@dataclass(frozen=True)
class Chosen:
    """Some features, taken out when they are read.

    Args:
        features: (n, d), memory-mapped or not.
        places: (k,) of the features.
        unit: whether rows are brought to unit length before.
    """

    features: Tensor
    places: Tensor
    unit: bool

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        """Rows (m, k)."""
        rows = self.features[index]
        return (row_normalise(rows) if self.unit else rows)[:, self.places.to(rows.device)]


@dataclass
class MFSMDS(MFS, NearestMean):
    """Squared Mahalanobis distance to the nearest class mean, in the features that mixed images move most.

    score(x) = min_c (f_J − μ_c)ᵀ Σ⁺ (f_J − μ_c), J the share of features with the largest W₁(f_j, f̃_j) between training
    images and x̃ = λ·x + (1 − λ)·o, o an image of OOD validation and λ one of .25, .5, .75.

    Args:
        share: of the features, rounded down, at least one.
        seed: of the draws of o and λ.
        normalise: whether features are brought to unit length first (MDS++); without it W₁ is divided by the range of a
            feature in training.

    Raises:
        MethodError: no training split, or features that do not vary within classes.

    Reference: authors' code, remic-othr/OpenMIBOOD, `mds_mfs` and `mdspp_mfs`, of 2026; the distances: Lee et al.,
    NeurIPS 2018, arXiv 1807.03888, and Müller & Hein, ICML 2025, arXiv 2505.18032. Theirs mixes with images of another
    benchmark (PhaKIR for CIFAR-10 and ImageNet, TinyImageNet or LUNA16 for medical images), ours with those of OOD
    validation, on which the share is chosen too; theirs mixes normalised crops, ours 8-bit ones; theirs draws 100,000
    images of ImageNet for W₁, ours takes all; theirs stops at a feature that is constant in training, ours puts it
    last.
    """

    normalise: bool = False

    @property
    def _unit(self) -> bool:
        return self.normalise

    def _fit_distance(self, train: FeatureSet) -> None:
        self._learn_means(moments(train, type(self).__name__, self._rows))

    def _vectors(self, x: FeatureSet) -> Tensor:
        return self._rows(x)


@dataclass
class MFSKNN(MFS):
    """Squared distance to the k-th nearest training feature, in the features that mixed images move most.

    score(x) = ‖f̂_J − f̂_J₍k₎‖², f̂ = f/‖f‖, J the share of features with the largest W₁(f̂_j, f̂~_j) between training
    images and x̃ = λ·x + (1 − λ)·o, o an image of OOD validation and λ one of .25, .5, .75.

    Args:
        share: of the features, rounded down, at least one.
        seed: of the draws of o and λ.
        k: which neighbour.

    Raises:
        MethodError: no training split, or fewer than k training samples.

    Reference: authors' code, remic-othr/OpenMIBOOD, `knn_mfs`, of 2026; the distance: Sun et al., ICML 2022,
    arXiv 2204.06507. Theirs mixes with images of another benchmark (PhaKIR for CIFAR-10 and ImageNet, TinyImageNet or
    LUNA16 for medical images), ours with those of OOD validation, on which the share and k are chosen too; theirs mixes
    normalised crops, ours 8-bit ones; theirs draws 100,000 images of ImageNet for W₁, ours takes all.
    """

    k: Count = 3

    def _fit_distance(self, train: FeatureSet) -> None:
        self.require(self.k <= len(train), "k", f"1 to {len(train)}, the number of training samples")
        self.bank_ = train.features
        # Products lose digits to a common offset: the mean is taken off first.
        parts = [self._rows(part).sum(dim=0, dtype=torch.float64) for part in train.batches()]
        self.centre_ = (torch.stack(parts).sum(dim=0) / len(train)).float().cpu()

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        queries = self._rows(x) - self.learnt("centre_").to(x.features.device)
        bank = Bank(Chosen(self.bank_, self.chosen_, self._unit), origin=self.centre_)
        return bank.squared_distances(queries, bank.nearest(queries, self.k)).amax(dim=1)


def marginal_distances(first: Tensor, second: Tensor, *, unit: bool = False) -> Tensor:
    """Return the 1-Wasserstein distance between the values of each column, (d,) float64.

    For as many rows it is the mean difference between values of equal rank.

    Args:
        first: (n, d) float32.
        second: (n, d) float32.
        unit: whether rows are brought to unit length before.
    """
    step = max(_AT_ONCE // len(first), 1)
    lengths = [_lengths(rows).T if unit else None for rows in (first, second)]
    parts = []
    for start in range(0, first.shape[1], step):
        columns = (rows[:, start : start + step].T for rows in (first, second))
        # As rows, in a copy: a tenth of the time of sorting along columns, and no indices.
        a, b = (
            sorted_rows((values if length is None else values / length).contiguous())
            for values, length in zip(columns, lengths, strict=True)
        )
        parts.append(a.sub_(b).abs_().mean(dim=1, dtype=torch.float64))
    return torch.cat(parts)


def _lengths(features: Tensor) -> Tensor:
    """(n, 1); not zero."""
    parts = [torch.linalg.vector_norm(rows, dim=1, keepdim=True) for rows in torch.split(features, DEFAULT_BATCH)]
    return torch.cat(parts).clamp(min=torch.finfo(features.dtype).tiny)
