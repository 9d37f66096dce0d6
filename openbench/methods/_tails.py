"""Empirical tail probabilities of features, from training samples."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.methods._stats import FIT_BATCH, mean_feature, sorted_rows, training

_SORTED_IN_MEMORY = 2**30  # training values in a sorted copy, at most: 4 GiB
_SORTED = 2**25  # values sorted at a time


@dataclass(frozen=True)
class Tails:
    """Empirical tails of d features.

    Args:
        values: (d, n) training values of each feature in ascending order; or, where these would fill the memory, the
            training features (n, d) as they are, memory-mapped or not.
        skew: (d,) sign of each feature's skewness; 0 where it is symmetric or constant.
        ordered: whether `values` is the sorted copy.
    """

    values: Tensor
    skew: Tensor
    ordered: bool

    @classmethod
    def of(cls, train: FeatureSet) -> "Tails":
        """The tails of training features (n, d), finite, read in batches."""
        skew, features = _skewness(train), train.features
        if features.numel() > _SORTED_IN_MEMORY:
            return cls(features, skew, ordered=False)
        n, d = features.shape
        ordered = torch.empty(d, n, dtype=features.dtype, device=train.device)
        wide = max(1, _SORTED // n)
        for start in range(0, d, wide):
            strip = slice(start, start + wide)
            ordered[strip] = sorted_rows(features[:, strip].to(train.device).T.contiguous())
        return cls(ordered, skew, ordered=True)

    def surprise(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return −log of P(X ≤ x), of P(X ≥ x), and of the tail on the long side, (n, d) float32 each.

        Probabilities count the sample itself as one of n + 1. A feature that is not skewed counts both tails.
        """
        skew, x = self.skew.to(features.device), features.T.contiguous()
        n = below = at_most = torch.zeros((), dtype=torch.int64, device=x.device)
        for ordered in self._blocks(x.device):
            n = n + ordered.shape[1]
            below = below + torch.searchsorted(ordered, x)
            at_most = at_most + torch.searchsorted(ordered, x, right=True)
        left, right = (-((count.T + 1) / (n + 1)).log() for count in (at_most, n - below))
        return left, right, left * (skew <= 0) + right * (skew >= 0)

    def _blocks(self, device: torch.device) -> Iterator[Tensor]:
        """Training values (d, k) in ascending order, of all samples at once or of one group after another."""
        if self.ordered:
            yield self.values.to(device)
            return
        for rows in torch.split(self.values, max(1, _SORTED // self.values.shape[1])):
            yield sorted_rows(rows.to(device).T.contiguous())


class TailMethod(Method):
    """A score made of the tail probabilities of each feature."""

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN)

    @abstractmethod
    def _combined(self, left: Tensor, right: Tensor, skewed: Tensor) -> Tensor:
        """The summands (n, d) of −log of the left tail, of the right tail and of the tail on the long side."""

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the training values of each feature in order, (d, n), or training features (n, d) where they are."""
        self.tails_ = Tails.of(training(train, type(self).__name__))
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        self.learnt("tails_")
        return self._combined(*self.tails_.surprise(x.features)).sum(dim=1)


def _skewness(train: FeatureSet) -> Tensor:
    """The sign (d,) float32 of each feature's third central moment, in two passes."""
    mean = mean_feature(train)
    second, third = torch.zeros_like(mean), torch.zeros_like(mean)
    for rows in train.batches(FIT_BATCH):
        centred = rows.features.double() - mean
        squared = centred.square()
        second += squared.sum(dim=0)
        third += squared.mul_(centred).sum(dim=0)
    spread, third = (second / len(train)).sqrt(), third / len(train)
    # Sums of n cubes are rounded; below this, a symmetric feature would get the sign of the rounding.
    return torch.where(third.abs() > 1e-9 * spread**3, third.sign(), 0.0).float()
