"""Cross-entropy with dropout before the classifier, for scores that sample it again at test time."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from openbench.config.constraints import Decay
from openbench.training.base import Batch, TrainingMethod, features_and_logits, head_of


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
