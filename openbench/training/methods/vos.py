"""Virtual outliers: unlikely draws from Gaussians around the classes, separated from ID features by energy."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, NonNegative, Probability
from openbench.training.base import (
    Batch,
    Compat,
    EvalModel,
    StepInfo,
    TrainingMethod,
    features_and_logits,
    head_of,
)
from openbench.training.parts._shared import Queued, ReadLogits

_RIDGE = 1e-4


class WithQueues(Queued):
    """The network, the last features of every class, and what turns energies into a decision.

    Args:
        network: the backbone's network.
        feature_dim: d.
        num_classes: c.
        length: features kept per class.
    """

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int, length: int) -> None:
        super().__init__()
        self.network = network
        self.energy_weight = nn.Parameter(torch.rand(num_classes))
        self.decide = nn.Linear(1, 2)
        self.add_queues(num_classes, length, feature_dim)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        return self.network(images)


class WeightedEnergy(nn.Module):
    """log Σ_k max(w_k, 0) exp(z_k) (n, 1) of logits (n, c), with the weights that were learnt."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, logits: Tensor) -> Tensor:
        """Logits (n, c) to (n, 1)."""
        return weighted_energy(logits, self.weight)[:, None]


def weighted_energy(logits: Tensor, weight: Tensor) -> Tensor:
    """Return log Σ_k max(w_k, 0) exp(z_k), (n,): minus the weighted free energy."""
    # A weight of zero stands for log 0; the floor keeps its gradient finite.
    floor = functional.relu(weight).clamp(min=torch.finfo(torch.float32).tiny)
    return (logits.float() + floor.log()).logsumexp(dim=1)


@dataclass(frozen=True)
class VOS(TrainingMethod):
    """CE(z, y) + λ·CE(A·E + b, is-ID), E = log Σ_k w_k exp z_k of ID features and of virtual outliers.

    Virtual outliers of class k are the `select` least likely of `sample_from` draws from N(μ_k, Σ), Σ shared; they
    begin when the queues of all classes are full and the share `start` of the epochs is over. Likelihood depends on the
    Mahalanobis radius alone, which is χ² with d degrees of freedom. So every radius is drawn, but a direction only for
    the largest: the same distribution at a fraction of the cost.

    Args:
        weight: λ ≥ 0; 0.1.
        start: share of the epochs without virtual outliers; 0.4 (epoch 40 of 100).
        queue: features kept per class; 1000.
        sample_from: draws per class and step; 10000.
        select: virtual outliers per class and step; 1.
        compat: `openood` cuts the gradient off before the energy, so that λ's term trains w, A and b and never the
            network; the published numbers were made this way, and are those of plain cross-entropy.

    Reference:
        Du et al.: VOS: learning what you don't know by virtual outlier synthesis, ICLR 2022, arXiv:2202.01197.
    """

    weight: NonNegative = 0.1
    start: Probability = 0.4
    queue: Annotated[int, Ge(2)] = 1000
    sample_from: Count = 10000
    select: Count = 1
    compat: Compat = "paper"

    reference: ClassVar[str] = "Du et al., ICLR 2022, arXiv:2202.01197"
    version: ClassVar[int] = 2  # the weighted energy is an output of what is evaluated
    scorer: ClassVar[str] = "energy"

    def __post_init__(self) -> None:
        """Check that there are enough samples to select from."""
        self.require(self.select <= self.sample_from, "select", f"1 to sample_from ({self.sample_from})")

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> WithQueues:
        """Return the network with queues and the energy classifier."""
        return WithQueues(model, feature_dim, num_classes, self.queue)

    def eval_model(self, model: WithQueues) -> EvalModel:
        """Return the network with the output `weighted_energy` (n, 1), which `method=weighted_energy` negates."""
        energy = WeightedEnergy(model.energy_weight)
        return ReadLogits(model.network, "weighted_energy", energy).eval_model(head_of(model.network), model.network)

    def loss(self, model: WithQueues, batch: Batch) -> Tensor:
        """Return the loss of a batch, and put its features into the queues."""
        features, logits = features_and_logits(model.network, batch.images)
        loss = functional.cross_entropy(logits, batch.labels)
        if model.full() and batch.info.epoch >= self.start * batch.info.epochs:
            outlying = head_of(model.network)(self.virtual(model.queue, batch.info))
            if self.compat == "openood":
                logits, outlying = logits.detach(), outlying.detach()
            loss = loss + self.weight * self.uncertainty(model, logits, outlying)
        model.remember(features.detach(), batch.labels)
        return loss

    def uncertainty(self, model: WithQueues, logits: Tensor, outlying: Tensor) -> Tensor:
        """Return the cross-entropy of ID logits (n, c) against virtual ones (m, c), classified by their energies."""
        energies = weighted_energy(torch.cat([logits, outlying]), model.energy_weight)
        is_id = torch.zeros(len(energies), dtype=torch.int64, device=energies.device)
        is_id[: len(logits)] = 1
        return functional.cross_entropy(model.decide(energies[:, None]), is_id)

    def virtual(self, queue: Tensor, info: StepInfo) -> Tensor:
        """Return virtual outliers (c·select, d) around the means of queues (c, length, d), without gradient."""
        c, length, d = queue.shape
        means = queue.double().mean(dim=1)
        centred = (queue.double() - means[:, None]).flatten(0, 1)
        covariance = centred.T @ centred / (c * length)
        covariance.diagonal().add_(_RIDGE)
        factor = torch.linalg.cholesky(covariance)
        rng = np.random.default_rng(int(torch.randint(0, 2**62, (), generator=info.generator)))
        squares = np.sort(rng.chisquare(d, (c, self.sample_from)), axis=1)[:, -self.select :]
        directions = rng.normal(size=(c, self.select, d))
        directions *= (np.sqrt(squares) / np.linalg.norm(directions, axis=2))[:, :, None]
        steps = torch.from_numpy(directions).to(factor) @ factor.T
        return (means[:, None] + steps).flatten(0, 1).float()
