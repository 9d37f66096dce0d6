"""A classifier split into class similarities and a learnt temperature: generalised ODIN."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.training.base import Batch, Compat, EvalModel, TrainingMethod, features_and_logits


class UnitFeatures(nn.Module):
    """A network whose features are scaled to unit length before a linear head."""

    def __init__(self, network: nn.Module, weight: Tensor) -> None:
        super().__init__()
        self.network = network
        self.head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.head.weight = nn.Parameter(weight)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        features, _ = features_and_logits(self.network, images)
        return self.head(functional.normalize(features, dim=1))


class Decomposed(nn.Module):
    """The network, cosine similarities h to class weights, and the temperature g = σ(BN(w·f + b))."""

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.network = network
        self.weight = nn.Parameter(nn.init.kaiming_normal_(torch.empty(num_classes, feature_dim), nonlinearity="relu"))
        self.g = nn.Sequential(nn.Linear(feature_dim, 1), nn.BatchNorm1d(1), nn.Sigmoid())

    def parts(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return h (n, c) and g (n, 1)."""
        features, _ = features_and_logits(self.network, images)
        similarity = functional.normalize(features, dim=1) @ functional.normalize(self.weight, dim=1).T
        return similarity, self.g(features)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to h (n, c), which stands for the logits."""
        return self.parts(images)[0]


@dataclass(frozen=True)
class GODIN(TrainingMethod):
    """CE(h/g, y) with h_k the cosine of features and class weights, g in (0, 1) a temperature from the features.

    The evaluated network has unit features and, exactly, h as their linear head without bias; the score does not use g.
    The class weights get no weight decay.

    Args:
        compat: `openood` keeps the learning rate of the class weights at its highest throughout, since the scheduler
            there drives only the other optimiser; `paper` decays it with all others.

    Reference:
        Hsu et al.: Generalized ODIN: detecting out-of-distribution image without learning from out-of-distribution
        data, CVPR 2020, arXiv:2002.11297; DeConf-C.
    """

    compat: Compat = "paper"

    reference: ClassVar[str] = "Hsu et al., CVPR 2020, arXiv:2002.11297"
    scorer: ClassVar[str] = "godin"
    mixes: ClassVar[bool] = True
    separable: ClassVar[bool] = True
    own_head: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Decomposed:
        """Return the network with h and g in place of its own classifier."""
        return Decomposed(model, feature_dim, num_classes)

    def parameter_groups(self, model: Decomposed) -> list[dict[str, Any]]:
        """Return all parameters but those of the unused classifier; class weights without weight decay."""
        rest = [p for p in super().parameter_groups(model)[0]["params"] if p is not model.weight]
        constant = self.compat == "openood"
        return [{"params": rest}, {"params": [model.weight], "weight_decay": 0.0, "lr_constant": constant}]

    def loss(self, model: Decomposed, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of h/g."""
        similarity, temperature = model.parts(batch.images)
        return batch.cross_entropy(similarity / temperature)

    def eval_model(self, model: Decomposed) -> EvalModel:
        """Return unit features with the unit class weights as their head."""
        module = UnitFeatures(model.network, functional.normalize(model.weight, dim=1)).eval()
        return EvalModel(module, module.head, model.network)
