"""Bounded layers under a Gaussian process: a network that knows how far an image is from what it has seen."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from openbench.config.constraints import Count, Positive
from openbench.training.base import (
    Batch,
    Moment,
    Surface,
    TrainingData,
    TrainingMethod,
    but_classifier,
    features_and_logits,
    head_of,
    prepared,
)
from openbench.training.parts.gaussian_process import Posterior, RandomFeatures, Variance
from openbench.training.parts.spectral import SpectralBound
from openbench.training.recipe import Recipe

Likelihood = Literal["softmax", "gaussian"]


class DistanceAware(nn.Module):
    """The network with bounded layers, and a Gaussian process in place of its classifier."""

    def __init__(self, network: nn.Module, head: nn.Linear, method: "SNGP") -> None:
        super().__init__()
        self.network = network
        count, matrices = method.random_features, head.out_features if method.likelihood == "softmax" else 1
        self.random = RandomFeatures(head.in_features, count, method.length_scale, method.amplitude)
        self.head = nn.Linear(count, head.out_features, bias=False)
        self.posterior = Posterior(count, matrices, method.amplitude)
        self.limit = SpectralBound(network, method.bound, skip=head)

    def parts(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return random features (n, D) and logits (n, c)."""
        random = self.random(features_and_logits(self.network, images)[0])
        return random, self.head(random)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c), the posterior's mode."""
        return self.parts(images)[1]


class Predictive(nn.Module):
    """The network, the mode of the posterior as a linear head on random features, and the variance of its logits."""

    def __init__(self, trained: DistanceAware, variance: Variance) -> None:
        super().__init__()
        self.network, self.random, self.head = trained.network, trained.random, trained.head
        self.variance = variance

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        random = self.random(features_and_logits(self.network, images)[0])
        # Its output is read by a hook, as that of a stage is.
        self.variance(random)
        logits: Tensor = self.head(random)
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

    recipe: Recipe = field(default_factory=Recipe)
    bound: Positive = 6.0
    random_features: Count = 1024
    length_scale: Positive = 1.77
    ridge: Positive = 1.0
    amplitude: Positive = 8.0
    likelihood: Likelihood = "gaussian"

    reference: ClassVar[str] = "Liu et al., NeurIPS 2020, arXiv:2006.10108"
    version: ClassVar[int] = 1
    scorer: ClassVar[str] = "sngp"
    mixes: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> DistanceAware:
        """Return the network with bounded layers and a Gaussian process in place of its own classifier."""
        return DistanceAware(model, head_of(model), self)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return all parameters but those of the unused classifier."""
        return [{"params": but_classifier(model)}]

    def on_epoch_start(self, model: nn.Module, moment: Moment, data: TrainingData) -> None:
        """Forget the precision of the epoch before; before the first step, apply the bound."""
        model = _aware(model)
        model.posterior.forget()
        if moment.epoch == 0:
            model.limit.hold(model.network)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the batch, and add its images to the precision."""
        model = _aware(model)
        random, logits = model.parts(batch.images)
        p = logits.detach().float().softmax(dim=1)
        model.posterior.add(random, p * (1 - p) if self.likelihood == "softmax" else torch.ones_like(p[:, :1]))
        return batch.cross_entropy(logits)

    def on_step_end(self, model: nn.Module, moment: Moment) -> None:
        """Apply the bound."""
        model = _aware(model)
        model.limit.hold(model.network)

    def surface(self, model: nn.Module) -> Surface:
        """Return random features under a linear head, and the output `variance`, (n, c) or (n, 1)."""
        model = _aware(model)
        made = Predictive(model, model.posterior.variance(self.ridge)).eval()
        return Surface(made, made.head, made.network, {"variance": made.variance})


def _aware(model: nn.Module) -> DistanceAware:
    return prepared(model, DistanceAware, "SNGP")
