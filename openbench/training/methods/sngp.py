"""Bounded layers under a Gaussian process: a network that knows how far an image is from what it has seen."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, Positive
from openbench.training.base import Batch, EvalModel, StepInfo, TrainingData, TrainingMethod, head_of
from openbench.training.methods._parts import Extended

Likelihood = Literal["softmax", "gaussian"]
_WARM_UP = 30
# One step of power iteration, as others take, lags behind weights that move fast.
_POWER = 3


class DistanceAware(Extended):
    """The network with bounded layers, and a Gaussian process in place of its classifier."""

    random: "RandomFeatures"
    head: nn.Linear
    posterior: "Posterior"
    limit: "SpectralBound"

    def parts(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return random features (n, D) and logits (n, c)."""
        random = self.random(self.read(images)[0])
        return random, self.head(random)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c), the posterior's mode."""
        return self.parts(images)[1]


class Predictive(DistanceAware):
    """The network, the mode of the posterior as a linear head on random features, and the variance of its logits."""

    variance: "Variance"

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        random, logits = self.parts(images)
        self.variance(random)  # its output is read by a hook, as that of a stage is
        return logits


@dataclass(frozen=True)
class SNGP(TrainingMethod):
    """CE(aβφ(h), y), φ fixed random features of a Gaussian kernel, with every layer's operator norm held at or under c.

    After each step W ← W·min(1, c/(√m·σ₁(W))), √m·σ₁ an upper bound of the norm of a layer (m windows see a pixel);
    batch norm is free, as in the released code.

    The posterior's precision P_k = ridge·I + Σ_i w_ik·φ_iφ_iᵀ is summed over each epoch, from zero. The evaluated
    network has the logits aβφ and, as the output `variance`, σ²_k = φᵀP_k⁻¹φ, from which `method=sngp` makes its score.
    Images of an unknown kind lie where nothing was summed: σ² is near 1/ridge there.

    Args:
        bound: c > 0; 6, the released code's on CIFAR.
        random_features: D; 1024.
        length_scale: ℓ > 0 in units of √d, which is the norm of the normalised features; 1.77 is the released code's
            (20 for 128 dimensions).
        ridge: prior precision of the logits, in the posterior alone; 1. In training β decays as all weights do.
        amplitude: a > 0, how fast β learns compared with the network: a step of aβ is a² times as long. It changes
            neither which functions can be learnt nor their posterior. The paper has 1, the released code √(D/2), about
            23. The default is 8: with SGD at a rate of 0.1, the paper's learns slowly and the code's can diverge.
        likelihood: `gaussian`, w = 1, one precision for all classes, is what the authors' code and its published
            numbers use; `softmax`, w_ik = p_ik(1 − p_ik), is the paper's equation 9, with a precision of D² float64 per
            class (8 MB) in every checkpoint.

    Reference:
        Liu et al.: Simple and principled uncertainty estimation with deterministic deep learning via distance
        awareness, NeurIPS 2020, arXiv:2006.10108. Features are normalised as in the released code, which also projects
        them to 128 dimensions first, uses orthogonal random features, and bounds convolutions by power iteration on
        images instead of weights.
    """

    bound: Positive = 6.0
    random_features: Count = 1024
    length_scale: Positive = 1.77
    ridge: Positive = 1.0
    amplitude: Positive = 8.0
    likelihood: Likelihood = "gaussian"

    reference: ClassVar[str] = "Liu et al., NeurIPS 2020, arXiv:2006.10108"
    scorer: ClassVar[str] = "sngp"
    mixes: ClassVar[bool] = True
    own_head: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> DistanceAware:
        """Return the network with bounded layers and a Gaussian process in place of its own classifier."""
        head, count = head_of(model), self.random_features
        return DistanceAware(
            model,
            random=RandomFeatures(feature_dim, count, self.length_scale, self.amplitude),
            head=nn.Linear(count, num_classes, bias=False),
            posterior=Posterior(count, num_classes if self.likelihood == "softmax" else 1, self.amplitude),
            limit=SpectralBound(model, self.bound, skip=head),
        )

    def on_epoch_start(self, model: DistanceAware, info: StepInfo, data: TrainingData) -> None:
        """Forget the precision of the epoch before; before the first step, apply the bound."""
        model.posterior.forget()
        if info.epoch == 0:
            model.limit.hold(model.network)

    def loss(self, model: DistanceAware, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the batch, and add its images to the precision."""
        random, logits = model.parts(batch.images)
        p = logits.detach().float().softmax(dim=1)
        model.posterior.add(random, p * (1 - p) if self.likelihood == "softmax" else torch.ones_like(p[:, :1]))
        return batch.cross_entropy(logits)

    def on_step_end(self, model: DistanceAware, info: StepInfo) -> None:
        """Apply the bound."""
        model.limit.hold(model.network)

    def eval_model(self, model: DistanceAware) -> EvalModel:
        """Return random features under a linear head, and the output `variance`, (n, c) or (n, 1)."""
        variance = model.posterior.variance(self.ridge)
        module = Predictive(model.network, random=model.random, head=model.head, variance=variance)
        return module.evaluated("variance", head=model.head)


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
        self.bound, kinds = bound, nn.Conv2d | nn.Linear
        self.names = [name for name, part in network.named_modules() if isinstance(part, kinds) and part is not skip]
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
