"""Optimal feature shaping."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count
from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.errors import MethodError
from openbench.methods._stats import classifier, training

_TAIL = 1e-3  # share of training activations beyond each end of the intervals
_LENGTH = 1000.0  # of θ, as in the authors' code; it matters to the energy alone


@dataclass
class OptFS(Method):
    """Largest logit of features that are weighted by how much activations of their size add to it on training samples.

    score(x) = −Σ_j w_ŷj θ(f_j) f_j, θ constant on each of K intervals between the .001 and .999 quantiles of all
    training activations and 0 outside, θ_k ∝ the mean over training samples of Σ_j w_ŷj f_j [f_j in interval k].

    Args:
        intervals: K ≥ 1; 100 by default.
        form: `max_logit` as above; `energy` is −log Σ_c exp(Σ_j w_cj θ(f_j) f_j + b_c) with ‖θ‖ = 1000.

    Raises:
        MethodError: a hyper-parameter out of range, no training split, no head, or quantiles that are equal.

    Reference: Zhao et al., Towards Optimal Feature-Shaping Methods for Out-of-Distribution Detection, ICLR 2024,
    arXiv 2402.00865. The closed form that needs no OOD sample, with predictions ŷ of the unshaped logits.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS}), fit_on=Role.ID_TRAIN, head=True
    )
    reference: ClassVar[str] = "Zhao et al., ICLR 2024, arXiv 2402.00865"

    intervals: Count = 100
    form: Literal["max_logit", "energy"] = "max_logit"

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn θ from training features (n, d), logits (n, c) and the head, in two passes."""
        train, self.head_ = training(train, "OptFS"), classifier(head, "OptFS")
        low, high = _quantiles(train)
        if not low < high:
            raise MethodError(f"OptFS.fit: the .001 and .999 quantiles of training activations are both {low:.6g}")
        self.bounds_ = torch.linspace(low, high, self.intervals + 1, dtype=torch.float64)
        total = torch.zeros(self.intervals + 2, dtype=torch.float64)
        for rows in train.batches():
            gain = self._weights(rows.logits) * rows.features
            place = torch.bucketize(rows.features.double(), self.bounds_.to(gain.device), right=True)
            total += torch.bincount(place.reshape(-1), gain.double().reshape(-1), minlength=len(total)).cpu()
        total[0] = total[-1] = 0  # outside
        length = float(torch.linalg.vector_norm(total))
        # A head of zeros gives no gain anywhere: θ is 0 then.
        self.theta_ = (total * (_LENGTH / length if length > 0 else 0.0)).float()
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        theta = self.learnt("theta_").to(x.features.device)
        place = torch.bucketize(x.features.double(), self.bounds_.to(x.features.device), right=True)
        shaped = x.features * theta[place]
        if self.form == "energy":
            return -torch.logsumexp(self.head_(shaped), dim=1)
        return -(self._weights(x.logits) * shaped).sum(dim=1)

    def _weights(self, logits: Tensor) -> Tensor:
        """Row of the head (n, d) that belongs to each prediction."""
        return self.head_.weight.to(logits.device)[logits.argmax(dim=1)]


def _quantiles(train: FeatureSet) -> tuple[float, float]:
    """The .001 and .999 quantiles of all training activations, exact and interpolated linearly.

    Only the activations beyond them stay in memory.
    """
    position = (train.features.numel() - 1) * _TAIL
    below = int(position)
    size = min(below + 2, train.features.numel())
    least = most = torch.empty(0)
    for rows in train.batches():
        values = rows.features.reshape(-1).cpu()
        least, most = _smallest(least, values, size), _smallest(most, -values, size)
    least, most = (x.topk(size, largest=False).values.double() for x in (least, most))
    low, high = (x[below] + (position - below) * (x[min(below + 1, size - 1)] - x[below]) for x in (least, most))
    return float(low), -float(high)


def _smallest(former: Tensor, values: Tensor, count: int) -> Tensor:
    """Return at most 2·`count` of former and new values, the `count` smallest among them, in no order."""
    if len(former) >= count:
        # Nearly all new values are larger than the `count`-th: selecting among them would cost the most.
        values = values[values < former[:count].max()]
    both = torch.cat([former, values])
    return both if len(both) <= 2 * count else both.topk(count, largest=False, sorted=False).values
