"""Mean probabilities under dropout of the features."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count, Decay, Seed
from openbench.core import FeatureSet, Field, Head, Method, Request
from openbench.methods._stats import classifier


@dataclass
class Dropout(Method):
    """Negative maximum of the softmax probabilities, averaged over classifiers with dropped features.

    score(x) = −max_c (1/K) Σ_k softmax(W(m_k∘f)/(1 − p) + b)_c, m_k ∈ {0, 1}ᵈ with P(0) = p.

    The masks are drawn once, for all samples: scores then depend on neither batch nor order.

    Args:
        passes: K ≥ 1; 5 in OpenOOD, more lowers the noise of the draw.
        probability: p in [0, 1); 0.5, that of training.
        seed: of the masks.

    Raises:
        MethodError: no pass, or a probability out of range.

    Reference: Gal & Ghahramani, Dropout as a Bayesian Approximation, ICML 2016, arXiv 1506.02142; dropout before the
    last layer alone, which needs no pass through the network. OpenOOD averages logits, and draws new masks for every
    image. Meant for a backbone trained with `training=dropout`.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), head=True)
    reference: ClassVar[str] = "Gal & Ghahramani, ICML 2016, arXiv 1506.02142"

    passes: Count = 5
    probability: Decay = 0.5
    seed: Seed = 0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep the head and draw the masks (K, d)."""
        head = classifier(head, "Dropout")
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.rand(self.passes, head.weight.shape[1], generator=generator)
        self.masks_ = (drawn >= self.probability).float() / (1 - self.probability)
        self.head_ = head
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        features, masks = x.features, self.learnt("masks_")
        total = torch.zeros(len(features), self.head_.num_classes, device=features.device)
        for mask in masks.to(features.device):
            total += torch.softmax(self.head_(features * mask), dim=1)
        return -(total / self.passes).amax(dim=1)
