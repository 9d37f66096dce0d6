"""How far out in the tail of each feature a sample lies, by training samples."""

from dataclasses import dataclass

import torch
from torch import Tensor

from openbench.errors import MethodError


@dataclass(frozen=True)
class Tails:
    """Empirical tails of d features.

    Args:
        ordered: (d, n) training values of each feature in ascending order.
        skew: (d,) sign of each feature's skewness; 0 where it is symmetric or constant.
    """

    ordered: Tensor
    skew: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "Tails":
        """The tails of training features (n, d).

        Raises:
            MethodError: a feature is NaN or infinite.
        """
        if not bool(features.isfinite().all()):
            raise MethodError("tails: training features hold NaN or inf — finite ones needed")
        centred = features.double() - features.double().mean(dim=0)
        spread = centred.square().mean(dim=0).sqrt()
        third = centred.pow(3).mean(dim=0)
        # Sums of n cubes round; below this a symmetric feature would get the sign of its rounding.
        skew = torch.where(third.abs() > 1e-9 * spread**3, third.sign(), 0.0)
        return cls(features.T.contiguous().sort(dim=1).values, skew.float())

    def surprise(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return −log of P(X ≤ x), of P(X ≥ x), and of the tail on the long side, (n, d) float32 each.

        Probabilities count the sample itself as one of n + 1. A feature that is not skewed counts both tails.
        """
        ordered, skew = self.ordered.to(features.device), self.skew.to(features.device)
        n, x = ordered.shape[1], features.T.contiguous()
        at_most = torch.searchsorted(ordered, x, right=True)
        at_least = n - torch.searchsorted(ordered, x)
        left, right = (-((count.T + 1) / (n + 1)).log() for count in (at_most, at_least))
        return left, right, left * (skew <= 0) + right * (skew >= 0)
