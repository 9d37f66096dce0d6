"""A bound on how much each layer of a network may stretch distances."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

_WARM_UP = 30
# One step of power iteration, as others take, lags behind weights that move fast.
_POWER = 3


def overlap(layer: nn.Module) -> float:
    """Return √m, m how many windows of a convolution see one pixel at most; 1 for a linear layer.

    A convolution is its weight, as a matrix, times the map to windows, whose norm is at most √m: the operator norm is
    at most √m times that of the matrix.
    """
    if not isinstance(layer, nn.Conv2d):
        return 1.0
    windows = [math.ceil(k / s) for k, s in zip(layer.kernel_size, layer.stride, strict=True)]
    return math.sqrt(windows[0] * windows[1])


class SpectralBound(nn.Module):
    """Holds W ← W·min(1, c/(√m·σ₁(W))) for every convolution and linear layer; σ₁ by power iteration.

    It keeps no reference to the network, whose weights are saved elsewhere; singular vectors are its buffers, so that a
    resumed training goes on with the same estimates.

    Args:
        network: at whose weights the iteration starts.
        bound: c > 0.
        skip: a layer that is left alone, such as an unused classifier.
    """

    def __init__(self, network: nn.Module, bound: float, skip: nn.Module | None = None) -> None:
        super().__init__()
        self.bound = bound
        self.names = [
            name
            for name, part in network.named_modules()
            if isinstance(part, nn.Conv2d | nn.Linear) and part is not skip
        ]
        for i, matrix in enumerate(self._matrices(network)):
            self.register_buffer(f"left{i}", _iterated(matrix, torch.randn(len(matrix)).to(matrix), _WARM_UP))

    @torch.no_grad()
    def hold(self, network: nn.Module) -> None:
        """Scale down, in place, the weights that exceed the bound."""
        for i, matrix in enumerate(self._matrices(network)):
            left = _iterated(matrix, self.get_buffer(f"left{i}"), _POWER)
            self.get_buffer(f"left{i}").copy_(left)
            layer = network.get_submodule(self.names[i])
            norm = torch.linalg.vector_norm(matrix.T @ left)
            layer.get_parameter("weight").mul_((self.bound / (overlap(layer) * norm)).clamp(max=1.0))

    def _matrices(self, network: nn.Module) -> list[Tensor]:
        weights = [network.get_submodule(name).get_parameter("weight") for name in self.names]
        return [weight.detach().flatten(1) for weight in weights]


def _iterated(matrix: Tensor, left: Tensor, steps: int) -> Tensor:
    """Return a left singular vector (rows,) of a matrix after some steps of power iteration."""
    for _ in range(steps):
        left = functional.normalize(matrix @ (matrix.T @ left), dim=0)
    return left
