"""A Gaussian process on features, by random features and a Laplace approximation of their weights' posterior."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class RandomFeatures(nn.Module):
    """aφ(h), φ(h) = √(2/D) cos(Vh̃/(ℓ√d) + b), h̃ = (h − mean)/deviation over its entries, V ~ N(0, 1), b ~ U(0, 2π).

    φ(h)·φ(h′) is, up to 1/√D, the Gaussian kernel exp(−‖h̃ − h̃′‖²/(2ℓ²d)); ‖h̃‖ = √d.

    Args:
        feature_dim: d.
        count: D.
        length_scale: ℓ > 0.
        amplitude: a > 0.
    """

    def __init__(self, feature_dim: int, count: int, length_scale: float, amplitude: float = 1.0) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.factor = amplitude * math.sqrt(2 / count)
        self.directions: Tensor
        self.phases: Tensor
        self.register_buffer("directions", torch.randn(count, feature_dim) / (length_scale * math.sqrt(feature_dim)))
        self.register_buffer("phases", 2 * math.pi * torch.rand(count))

    def forward(self, features: Tensor) -> Tensor:
        """Features (n, d) to (n, D) float32."""
        # An angle with three digits, as under autocast, would be noise.
        with torch.autocast(features.device.type, enabled=False):
            normal = functional.layer_norm(features.float(), (self.feature_dim,))
            angles = functional.linear(normal, self.directions, self.phases)
            return self.factor * torch.cos(angles)


class Posterior(nn.Module):
    """The precision of the weights' posterior, summed over an epoch, in float64.

    Args:
        count: D.
        matrices: how many precisions are kept: one per class, or one for all.
        amplitude: a > 0, what the features are divided by.
    """

    def __init__(self, count: int, matrices: int, amplitude: float = 1.0) -> None:
        super().__init__()
        self.amplitude = amplitude
        self.information: Tensor
        self.register_buffer("information", torch.zeros(matrices, count, count, dtype=torch.float64))

    def forget(self) -> None:
        """Begin again from zero: weights and features of an earlier epoch are out of date."""
        self.information.zero_()

    @torch.no_grad()
    def add(self, features: Tensor, weights: Tensor) -> None:
        """Add Σ_i w_ik φ_i φ_iᵀ for random features aφ (n, D) and weights w (n, matrices)."""
        phi = features.detach().double() / self.amplitude
        for k, weight in enumerate(weights.detach().double().T):
            self.information[k].addmm_(phi.T * weight, phi)

    def variance(self, ridge: float) -> "Variance":
        """Return what maps random features aφ to the variance of their logits under a prior of variance 1/ridge."""
        precision = self.information.clone()
        precision.diagonal(dim1=1, dim2=2).add_(ridge)
        factor = torch.linalg.cholesky(precision)
        identity = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
        roots = torch.linalg.solve_triangular(factor, identity.expand_as(factor), upper=False)
        return Variance(roots / self.amplitude)


class Variance(nn.Module):
    """σ²_k(h) = φᵀP_k⁻¹φ, from the inverse Cholesky factors of the precisions P.

    Args:
        roots: (matrices, D, D) float64, lower triangular.
    """

    def __init__(self, roots: Tensor) -> None:
        super().__init__()
        self.roots: Tensor
        self.register_buffer("roots", roots)

    def forward(self, features: Tensor) -> Tensor:
        """Random features φ (n, D) to variances (n, matrices) float32."""
        phi = features.double()
        squares = [torch.linalg.vector_norm(phi @ root.T, dim=1).square() for root in self.roots]
        return torch.stack(squares, dim=1).float()
