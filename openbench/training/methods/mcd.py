"""Two classifiers on one network, pulled apart on outliers."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import NonNegative, Probability
from openbench.training.base import Batch, Compat, EvalModel, TrainingMethod, features_and_logits
from openbench.training.parts._shared import Branched, outliers_of


def entropy(logits: Tensor, dim: int = 1) -> Tensor:
    """Return the mean over the other axis of −Σ p log p along `dim`, p = softmax(z) over classes."""
    log_p = functional.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(dim=dim).mean()


@dataclass(frozen=True)
class MCD(TrainingMethod):
    """CE(z₁, y) + CE(z₂, y), and late in training + λ·max(0, m − (H(p₁) − H(p₂))), H the mean entropy on outliers.

    The network's own head is the first classifier: it predicts the class, and every score except `mcd` uses it alone.

    Args:
        margin: m; 1.2.
        weight: λ ≥ 0; 1.
        start: share of the epochs without outliers; 0.9 (OpenOOD: epoch 90 of 100).
        compat: `openood` sums −p log p over the batch instead of the classes, as the code behind the published
            numbers does.

    Reference:
        Yu, Aizawa: Unsupervised out-of-distribution detection by maximum classifier discrepancy, ICCV 2019,
        arXiv:1908.04951. There outliers come with the unlabelled test images; here, as in OpenOOD, from a separate
        split.
    """

    margin: float = 1.2
    weight: NonNegative = 1.0
    start: Probability = 0.9
    compat: Compat = "paper"

    reference: ClassVar[str] = "Yu, Aizawa, ICCV 2019, arXiv:1908.04951"
    scorer: ClassVar[str] = "mcd"
    uses_outliers: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Branched:
        """Return the network with a second classifier."""
        return Branched(model, {"second_head": nn.Linear(feature_dim, num_classes)})

    def loss(self, model: Branched, batch: Batch) -> Tensor:
        """Return the loss of a batch; outliers pass through the network only once they count."""
        n, late = len(batch.images), batch.info.epoch >= self.start * batch.info.epochs
        images = torch.cat([batch.images, outliers_of(batch)]) if late else batch.images
        features, first = features_and_logits(model.network, images)
        second = model.branches["second_head"](features)
        loss = batch.cross_entropy(first[:n]) + batch.cross_entropy(second[:n])
        if not late:
            return loss
        axis = 0 if self.compat == "openood" else 1
        discrepancy = entropy(first[n:], axis) - entropy(second[n:], axis)
        return loss + self.weight * functional.relu(self.margin - discrepancy)

    def eval_model(self, model: Branched) -> EvalModel:
        """Return the network with the output `second_head` (n, c), the other classifier's logits."""
        return model.eval_model()
