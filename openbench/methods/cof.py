"""Connectivity-based outlier factor."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from annotated_types import Ge
from torch import Tensor

from openbench.config.constraints import Count, Seed
from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.methods._bank import Bank
from openbench.methods._stats import drawn, training

_BLOCK = 512


@dataclass
class COF(Method):
    """Cost of linking a sample to its k nearest training samples, relative to what these pay for theirs.

    score(x) = k a(x) / Σ_j a(p_j), a(x) = Σ_j 2(k+1−j)/(k(k+1)) min_{i<j} ‖p_j − p_i‖, p_0 = x and p_1 … p_k its
    neighbours, nearest first.

    Args:
        k: neighbours; 20 by default, as in PyOD.
        max_train: number of training samples to draw without replacement, at most; None takes all.
        seed: of that draw.

    Raises:
        MethodError: k < 1, max_train < 2, not more than k training samples, or features that are not finite.

    Reference: Tang, Chen, Fu & Cheung, Enhancing Effectiveness of Outlier Detections for Low Density Patterns, PAKDD
    2002. As in PyOD, the links follow the neighbours' order by distance from x, not the paper's chain in which the
    next is the one nearest to those linked so far. PyOD's `decision_function`, from which ADBench's figures come,
    forgets the training samples and looks for neighbours within the batch that it scores. Here neighbours are
    training samples and each sample is scored by itself.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Tang et al., PAKDD 2002"

    k: Count = 20
    max_train: Annotated[int, Ge(2)] | None = 10_000
    seed: Seed = 0

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Keep training features (n, d) and what each pays for its links, (n,)."""
        bank = drawn(training(train, "COF"), self.max_train, self.seed).features
        self.require(self.k < len(bank), "k", f"1 to {len(bank) - 1}, one less than the training samples")
        self.bank_ = bank
        self.cost_ = self._cost(bank, Bank(bank).nearest_exactly(bank.double(), self.k, own=True))
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        cost = self.learnt("cost_").to(x.features.device)
        bank = self.bank_.to(x.features.device)
        index = Bank(bank).nearest_exactly(x.features.double(), self.k)
        own_cost, their_cost = self._cost(x.features, index), cost[index].mean(dim=1)
        # Copies of one sample pay nothing; relative to them, any cost is infinite.
        relative = torch.where(own_cost > 0, own_cost / their_cost, 0.0)
        return relative.clamp(max=torch.finfo(torch.float32).max).float()

    def _cost(self, samples: Tensor, index: Tensor) -> Tensor:
        """What samples (n, d) pay for their links to the bank's rows `index` (n, k), float64 (n,)."""
        bank, k = self.bank_.to(samples.device), self.k
        weight = 2 * torch.arange(k, 0, -1, device=samples.device).double() / (k * (k + 1))
        earlier = torch.ones(k + 1, k + 1, dtype=torch.bool, device=samples.device).tril(-1)
        costs = []
        for start in range(0, len(samples), _BLOCK):
            part = slice(start, start + _BLOCK)
            linked = torch.cat([samples[part, None], bank[index[part]]], dim=1).double()
            distances = torch.cdist(linked, linked, compute_mode="donot_use_mm_for_euclid_dist")
            costs.append(distances.masked_fill(~earlier, torch.inf)[:, 1:].amin(dim=2) @ weight)
        return torch.cat(costs)
