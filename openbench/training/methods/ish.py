"""Fine-tuning whose classifier learns from scaled features: intermediate tensor shaping."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import NonNegative, Percentile
from openbench.errors import ConfigError
from openbench.methods._stats import gain, largest_kept
from openbench.training.base import Batch, Compat, features_and_logits, head_of
from openbench.training.methods.fine_tuning import FineTuned, FineTuning


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
            raise ConfigError(
                f"training.percentile={self.percentile} leaves none of {f.shape[1]} activations — lower it"
            )
        largest, places = f.topk(k, dim=1, sorted=False)
        total = largest.sum(dim=1, keepdim=True)
        factor = gain(f.sum(dim=1, keepdim=True), total)
        if self.compat == "openood":
            f = torch.zeros_like(f).scatter(1, places, largest)
        return f * factor
