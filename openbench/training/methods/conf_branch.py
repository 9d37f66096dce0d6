"""A branch that learns how far the network's answer should be trusted, by paying for hints."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Positive
from openbench.training.base import Batch, EvalModel, TrainingMethod, features_and_logits
from openbench.training.parts._shared import Branched

_STEP = 0.01


class Confident(Branched):
    """The network, a head with one output, and the present weight of the confidence loss."""

    def __init__(self, network: nn.Module, feature_dim: int, weight: float) -> None:
        super().__init__(network, {"confidence": nn.Linear(feature_dim, 1)})
        self.weight: Tensor
        self.register_buffer("weight", torch.tensor(weight))


@dataclass(frozen=True)
class ConfBranch(TrainingMethod):
    """NLL(p′, y) + λ·mean(−log c), p′ = c·p + (1 − c)·onehot(y) for a random half of the images, p for the others.

    c = σ(w·f + b). After each step λ is divided by 1.01 if the confidence loss is under the budget, else by 0.99.

    Args:
        weight: λ at the start; 0.1.
        budget: β, what the mean confidence loss is steered to; 0.3.
        epsilon: probabilities are kept this far from 0 and 1; 1e-12.

    Reference:
        DeVries, Taylor: Learning confidence for out-of-distribution detection in neural networks, 2018,
        arXiv:1802.04865.
    """

    weight: Positive = 0.1
    budget: Positive = 0.3
    epsilon: Positive = 1e-12

    reference: ClassVar[str] = "DeVries, Taylor, 2018, arXiv:1802.04865"
    scorer: ClassVar[str] = "conf_branch"

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Confident:
        """Return the network with a confidence branch."""
        return Confident(model, feature_dim, self.weight)

    def loss(self, model: Confident, batch: Batch) -> Tensor:
        """Return the loss of a batch, and move λ by one step."""
        features, logits = features_and_logits(model.network, batch.images)
        doubt = model.branches["confidence"](features)[:, 0].float()
        # −log σ(u) = softplus(−u): exact where σ(u) rounds to 0.
        price = functional.softplus(-doubt).mean()
        answer = logits.float().softmax(dim=1).gather(1, batch.labels[:, None])[:, 0]
        hinted = torch.rand(len(doubt), generator=batch.info.generator).to(doubt.device) < 0.5
        trust = torch.where(hinted, doubt.sigmoid(), 1.0)
        helped = trust * answer + (1 - trust)
        loss = -helped.clamp(self.epsilon, 1.0).log().mean() + model.weight.clone() * price
        model.weight.div_(torch.where(price.detach() < self.budget, 1 + _STEP, 1 - _STEP))
        return loss

    def eval_model(self, model: Confident) -> EvalModel:
        """Return the network with the output `confidence` (n, 1), before the sigmoid."""
        return model.eval_model()
