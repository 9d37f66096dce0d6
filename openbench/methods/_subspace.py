"""The directions in which features hardly vary, seen from where all logits vanish."""

import torch
from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.methods._stats import moments


def logit_origin(head: Head) -> Tensor:
    """Return u = −W⁺b (d,) float64.

    Singular values below 1e-5 of the largest count as zero: rows of W that sum to zero lower its rank, and the inverse
    of what rounding leaves there would be noise.
    """
    inverse: Tensor = torch.linalg.pinv(head.weight.double(), rtol=1e-5)
    return -inverse @ head.bias.double()


def minor_directions(train: FeatureSet, where: str, origin: Tensor, dim: int) -> Tensor:
    """Return the eigenvectors (d, d − dim) float64 of Σ (f − u)(f − u)ᵀ that belong to the smallest eigenvalues."""
    covariance = moments(train, where, by_class=False).covariance_around(origin)
    _, vectors = torch.linalg.eigh(covariance)  # ascending
    minor: Tensor = vectors[:, : len(origin) - dim]
    return minor
