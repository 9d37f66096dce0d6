"""Cross-entropy, as it is and of logits or features that are scaled, and fine-tuning from its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Checked, Count, Decay, NonNegative, Percentile, Positive
from openbench.errors import ConfigError
from openbench.methods._stats import gain, largest_kept
from openbench.training.base import Batch, Compat, EvalModel, TrainingMethod, features_and_logits, head_of, with_head
from openbench.training.recipe import Recipe


@dataclass(frozen=True)
class CrossEntropy(TrainingMethod):
    """Mean cross-entropy of the logits against the labels: −log softmax(z)_y.

    Reference:
        Hendrycks, Gimpel: A baseline for detecting misclassified and out-of-distribution examples in neural networks,
        ICLR 2017, arXiv:1610.02136; recipe of Zhang et al.: OpenOOD v1.5, arXiv:2306.09301.
    """

    reference: ClassVar[str] = "Hendrycks, Gimpel, ICLR 2017, arXiv:1610.02136"
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the batch."""
        return batch.cross_entropy(model(batch.images))


@dataclass(frozen=True)
class FineTuning(Checked):
    """The settings in which a fine-tuning differs from the first training.

    Args:
        epochs: 10.
        lr: highest learning rate, 0.001; the rest is as in the first training.
    """

    epochs: Count = 10
    lr: Positive = 1e-3

    def of(self, recipe: Recipe) -> Recipe:
        """Return a recipe with these epochs and this rate, without warm-up."""
        final = min(recipe.final_lr, self.lr)
        return replace(recipe, epochs=self.epochs, lr=self.lr, final_lr=final, warmup_epochs=0)


@dataclass(frozen=True)
class FineTuned(TrainingMethod):
    """A method that starts from the weights of cross-entropy.

    Attributes:
        recipe: of the cross-entropy training that comes first.
        tuning: epochs and rate of the fine-tuning.
    """

    tuning: FineTuning = field(default_factory=FineTuning)

    fine_tunes: ClassVar[bool] = True

    @property
    def initial(self) -> TrainingMethod:
        """Cross-entropy with the same recipe."""
        return CrossEntropy(self.recipe)

    @property
    def schedule(self) -> Recipe:
        """The recipe of the fine-tuning."""
        return self.tuning.of(self.recipe)


@dataclass(frozen=True)
class Dropout(TrainingMethod):
    """CE(W(m∘f)/(1 − p) + b, y), m_i = 0 with probability p, drawn per image and feature.

    The network is evaluated without dropout; the `dropout` score draws masks on its features.

    Args:
        probability: p in [0, 1); 0.5.

    Reference:
        Gal, Ghahramani: Dropout as a Bayesian approximation, ICML 2016, arXiv:1506.02142; in OpenOOD, as here, before
        the last layer alone.
    """

    probability: Decay = 0.5

    reference: ClassVar[str] = "Gal, Ghahramani, ICML 2016, arXiv:1506.02142"
    scorer: ClassVar[str] = "dropout"
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of logits of thinned features."""
        features, _ = features_and_logits(model, batch.images)
        drawn = torch.rand(features.shape, generator=batch.info.generator).to(features.device)
        mask = (drawn >= self.probability) / (1 - self.probability)
        return batch.cross_entropy(head_of(model)(features * mask))


@dataclass(frozen=True)
class LogitNorm(TrainingMethod):
    """Mean cross-entropy CE(z / (τ(‖z‖ + 1e-7)), y); the network is evaluated without the scaling.

    Args:
        temperature: τ > 0; 0.04 on CIFAR-10.

    Reference:
        Wei et al.: Mitigating neural network overconfidence with logit normalization, ICML 2022, arXiv:2205.09310.
    """

    temperature: Positive = 0.04

    reference: ClassVar[str] = "Wei et al., ICML 2022, arXiv:2205.09310"
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the scaled logits."""
        logits = model(batch.images)
        norms = torch.linalg.vector_norm(logits, dim=1, keepdim=True) + 1e-7
        return batch.cross_entropy(logits / (self.temperature * norms))


class Tempered(nn.Module):
    """The network with logits W(f/τ) + b."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.network, self.temperature = network, temperature

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        features, _ = features_and_logits(self.network, images)
        return head_of(self.network)(features / self.temperature)


@dataclass(frozen=True)
class T2FNorm(TrainingMethod):
    """Mean cross-entropy CE(W f/(τ‖f‖) + b, y); evaluated with W(f/τ) + b.

    The factor 1/τ is folded into the evaluated head, so every score sees logits = (W/τ)f + b, exactly, and the paper's
    score is plain MSP. OpenOOD leaves τ out at test time where there are 1000 classes; that is not done here.

    Args:
        temperature: τ > 0; 0.1, on ImageNet-1K 0.05.

    Reference:
        Regmi et al.: T2FNorm: train-time feature normalization for OOD detection in image classification, CVPR
        workshops 2024, arXiv:2305.17797.
    """

    temperature: Positive = 0.1

    reference: ClassVar[str] = "Regmi et al., CVPR workshops 2024, arXiv:2305.17797"
    # Logits are 1/τ times as large as usual, so many float32 probabilities would round to 1 and tie.
    scorer_params: ClassVar[Mapping[str, Any]] = MappingProxyType({"exact": True})
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Tempered:
        """Return the network with tempered logits."""
        return Tempered(model, self.temperature)

    def loss(self, model: Tempered, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the logits of unit features."""
        features, _ = features_and_logits(model.network, batch.images)
        return batch.cross_entropy(head_of(model.network)(functional.normalize(features, dim=1) / self.temperature))

    def eval_model(self, model: Tempered) -> EvalModel:
        """Return the network with W/τ for W."""
        return with_head(model.network, head_of(model.network).weight / self.temperature, None)


def shaped_linear(features: Tensor, shaped: Tensor, head: nn.Linear) -> Tensor:
    """Return the logits (n, c) of features (n, d); the head's weight learns from `shaped` (n, d) instead."""
    logits = functional.linear(features, head.weight.detach(), head.bias)
    with torch.autocast(features.device.type, enabled=False):  # in 16 bits it could overflow
        learning = functional.linear(shaped.detach().to(head.weight.dtype), head.weight)
    return logits + (learning - learning.detach())


@dataclass(frozen=True)
class ISH(FineTuned):
    """CE(Wf + b, y), the gradient of W taken at f·exp(r), r = Σf / Σ of the k largest f; all else learns as usual.

    Forward passes and the gradient of the network are those of cross-entropy. Images whose mass lies in many
    activations weigh more in the classifier, and SCALE recognises them by that at test time. k as in SCALE.

    Args:
        recipe: of the cross-entropy training that comes first.
        tuning: epochs and rate of the fine-tuning.
        percentile: share of activations outside the k largest, in [0, 100); 85.
        head_weight_decay: of the classifier alone; 5e-5.
        compat: `openood` also sets the activations outside the k largest to zero in that gradient, as the released
            configuration does; `paper` scales only.

    Reference:
        Xu et al.: Scaling for training time and post-hoc out-of-distribution detection enhancement, ICLR 2024,
        arXiv:2310.00227.
    """

    tuning: FineTuning = field(default_factory=lambda: FineTuning(epochs=10, lr=3e-3))
    percentile: Percentile = 85.0
    head_weight_decay: NonNegative = 5e-5
    compat: Compat = "paper"

    reference: ClassVar[str] = "Xu et al., ICLR 2024, arXiv:2310.00227"
    scorer: ClassVar[str] = "scale"
    mixes: ClassVar[bool] = True

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return the network, and its classifier with a separate weight decay."""
        head = list(head_of(model).parameters())
        rest = [p for p in model.parameters() if p not in set(head)]
        return [{"params": rest}, {"params": head, "weight_decay": self.head_weight_decay}]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the batch."""
        features, _ = features_and_logits(model, batch.images)
        return batch.cross_entropy(shaped_linear(features, self.shaped(features), head_of(model)))

    def shaped(self, features: Tensor) -> Tensor:
        """Return what the classifier learns from, (n, d) float32, for features (n, d).

        Raises:
            ConfigError: the percentile leaves no activation.
        """
        f = features.detach().float()
        k = largest_kept(f.shape[1], self.percentile)
        if k < 1:
            raise ConfigError(f"training.percentile={self.percentile} leaves none of {f.shape[1]} — lower it")
        largest, places = f.topk(k, dim=1, sorted=False)
        total = largest.sum(dim=1, keepdim=True)
        factor = gain(f.sum(dim=1, keepdim=True), total)
        if self.compat == "openood":
            f = torch.zeros_like(f).scatter(1, places, largest)
        return f * factor
