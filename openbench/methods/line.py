"""Important neurons."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from openbench.config.constraints import Percentile, Positive
from openbench.core import FeatureSet, Field, Head, HeadMethod, Request, Role, by_rows
from openbench.methods._stats import class_means, classifier, training

_ENTRIES = 2**24  # of weights handled at a time


@dataclass
class LINe(HeadMethod):
    """Energy of clipped features with only the neurons and weights that matter for the predicted class.

    score(x) = −log Σ_c exp(Σ_j W_cj [|I_ŷj| W_cj > s_ŷ] [I_ŷj > t_ŷ] min(f_j, clip) + b_c), I_cj = w_cj μ_cj, μ_c the
    mean training feature of class c, t_ŷ and s_ŷ percentiles of I_ŷ and of |I_ŷ| ⊙ W, ŷ predicted from min(f, clip).

    I is the class' mean of the first-order Taylor (Shapley) contributions f ⊙ ∂z_y/∂f = f ⊙ w_y: no backward pass.

    Args:
        weight_percentile: share of weights removed, in [0, 100); 10 by default.
        activation_percentile: share of neurons removed, in [0, 100); 10 by default.
        clip: largest activation, > 0; 0.8 by default. Networks with larger activations need a larger one.

    Raises:
        MethodError: a hyper-parameter out of range, no training split, no head, NaN, or labels outside the head's.

    Reference: Ahn et al., LINe: Out-of-Distribution Detection by Leveraging Important Neurons, CVPR 2023,
    arXiv 2303.13995. The defaults are the authors' for ImageNet; theirs are 90, 90, 1.0 for CIFAR-10 and 90, 10, 1.0
    for CIFAR-100. A class without training samples takes the mean of all.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN, head=True
    )
    reference: ClassVar[str] = "Ahn et al., CVPR 2023, arXiv 2303.13995"

    read_by_score: ClassVar[frozenset[str]] = frozenset({"clip"})

    weight_percentile: Percentile = 10.0
    activation_percentile: Percentile = 10.0
    clip: Positive = 0.8

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn each class' important neurons and thresholds, from training features (n, d), labels and the head."""
        train, head = training(train, "LINe"), classifier(head, "LINe")
        weight = head.weight.cpu()
        importance = weight * class_means(train, head.num_classes).cpu().float()
        limit = np.percentile(importance.numpy(), self.activation_percentile, axis=1, keepdims=True)
        self.neurons_ = importance > torch.from_numpy(limit)
        self.importance_ = importance.abs()
        # (classes, classes, d) at once would be 8 GB for ImageNet.
        thresholds = [
            np.percentile((part[:, None] * weight).reshape(len(part), -1).numpy(), self.weight_percentile, axis=1)
            for part in torch.split(self.importance_, max(1, _ENTRIES // weight.numel()))
        ]
        self.thresholds_ = torch.from_numpy(np.concatenate(thresholds))
        return super().fit(None, head)

    def reshape(self, features: Tensor) -> Tensor:
        """Return min(f, clip) with the unimportant neurons of the predicted class at 0, (n, d)."""
        return self._pruned(features)[0]

    def _pruned(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The reshaped features (n, d), and the predicted classes (n,)."""
        clipped = features.clamp(max=self.clip)
        predicted = self.head_(clipped).argmax(dim=1)
        return clipped * self.neurons_.to(features.device)[predicted], predicted

    def _reshaped_logits(self, x: FeatureSet) -> Tensor:
        thresholds = self.learnt("thresholds_").to(x.features.device)
        weight, bias = self.head_.weight.to(x.features.device), self.head_.bias.to(x.features.device)
        features, predicted = self._pruned(x.features)
        logits = features.new_empty(len(features), len(weight))
        # A pruned head (c, d) is made once for all samples of a class, not once for each.
        for c in torch.bincount(predicted).nonzero()[:, 0].tolist():
            important = self.importance_[c].to(weight.device) * weight > thresholds[c]
            rows = (predicted == c).nonzero()[:, 0]
            logits[rows] = by_rows(features[rows], torch.where(important, weight, 0.0))
        return logits + bias
