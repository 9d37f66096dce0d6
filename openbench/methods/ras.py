"""Ranked activation shift."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Head, HeadMethod, Request, Role
from openbench.methods._stats import BLOCK, sorted_rows, training


@dataclass
class RAS(HeadMethod):
    """Energy after each feature has taken the values of a fixed profile, in the order of its own values.

    score(x) = −log Σ_c exp(W f′ + b)_c, f′_j = m_{rank of f_j in f}, m the mean over training samples of their features
    in ascending order.

    Raises:
        MethodError: no training split or no head.

    Reference: Guglielmo & Masana, Ranked Activation Shift for Post-Hoc Out-of-Distribution Detection, ECCV 2026,
    arXiv 2604.08572. Among equal features, as the zeros of rectified ones, the earlier dimension takes the smaller
    value; the official code leaves it to an unstable sort.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN, head=True)
    reference: ClassVar[str] = "Guglielmo & Masana, ECCV 2026, arXiv 2604.08572"

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Average sorted training features (n, d), and keep the head."""
        train = training(train, "RAS")
        total = torch.zeros(train.features.shape[1], dtype=torch.float64, device=train.device)
        for rows in train.batches():
            for part in torch.split(rows.features, BLOCK):
                total += sorted_rows(part).sum(dim=0, dtype=torch.float64)
        self.profile_ = (total / len(train)).float()
        return super().fit(None, head)

    def reshape(self, features: Tensor) -> Tensor:
        """Return the profile in the order of each row, (n, d)."""
        profile = self.learnt("profile_").to(features.device)
        return torch.empty_like(features).scatter_(1, _order(features), profile.expand_as(features))


def _order(x: Tensor) -> Tensor:
    """Return which entry (n, d) of each row comes first, second, …, ascending; equal ones in the order of the row."""
    if x.device.type == "cpu":  # numpy takes less time than torch on a CPU
        return torch.from_numpy(np.argsort(x.numpy(), axis=1, kind="stable"))
    return x.argsort(dim=1, stable=True)
