"""Outliers that are made from the features of ID images."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, Decay, NonNegative, Positive, Probability
from openbench.training.base import Batch, Compat, EvalModel, StepInfo, TrainingData, TrainingMethod
from openbench.training.methods._parts import Extended, ReadLogits
from openbench.training.methods.contrastive import Contrastive, WithPrototypes

_RIDGE = 1e-4


class Queued(Extended):
    """A network with the last features of every class, in ring buffers.

    Attributes:
        queue: (c, length, d).
        seen: (c,) int64, features that each class has had so far.
    """

    queue: Tensor
    seen: Tensor

    def full(self) -> bool:
        """Whether the queue of every class is full."""
        return bool((self.seen >= self.queue.shape[1]).all())

    def remember(self, features: Tensor, labels: Tensor) -> None:
        """Put features (n, d) into their classes' queues, in place of the oldest."""
        length = self.queue.shape[1]
        for k in sorted(set(labels.tolist())):
            latest = features[labels == k][-length:]
            places = (self.seen[k] + torch.arange(len(latest), device=latest.device)) % length
            self.queue[k, places] = latest.to(self.queue.dtype)
            self.seen[k] += len(latest)


def empty_queues(num_classes: int, length: int, feature_dim: int) -> dict[str, Tensor]:
    """Return the parts of `Queued` for the last `length` features (d,) of each class."""
    seen = torch.zeros(num_classes, dtype=torch.int64)
    return {"queue": torch.zeros(num_classes, length, feature_dim), "seen": seen}


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

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Queued:
        """Return the network with queues and the energy classifier."""
        weight = nn.Parameter(torch.rand(num_classes))
        queues = empty_queues(num_classes, self.queue, feature_dim)
        return Queued(model, energy_weight=weight, decide=nn.Linear(1, 2), **queues)

    def eval_model(self, model: Any) -> EvalModel:
        """Return the network with the output `weighted_energy` (n, 1), which `method=weighted_energy` negates."""
        energy = WeightedEnergy(model.energy_weight)
        return ReadLogits(model.network, "weighted_energy", energy).evaluated("weighted_energy")

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch, and put its features into the queues."""
        features, logits = model.read(batch.images)
        loss = functional.cross_entropy(logits, batch.labels)
        if model.full() and batch.info.epoch >= self.start * batch.info.epochs:
            outlying = model.classifier(self.virtual(model.queue, batch.info))
            if self.compat == "openood":
                logits, outlying = logits.detach(), outlying.detach()
            loss = loss + self.weight * self.uncertainty(model, logits, outlying)
        model.remember(features.detach(), batch.labels)
        return loss

    def uncertainty(self, model: Any, logits: Tensor, outlying: Tensor) -> Tensor:
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


class WithBoundary(WithPrototypes, Queued):
    """CIDER's network and prototypes, the last features of every class, and an MLP that tells ID from outliers."""

    decide: nn.Module


def remoteness(queries: Tensor, bank: Tensor, k: int) -> Tensor:
    """Return 1 − cosine of each query (m, d) and its k-th nearest row of `bank` (n, d), (m,).

    On the unit sphere this orders as the distance ‖q̂ − b̂‖² = 2(1 − cosine) does. A zero vector has no direction: as a
    row it is nobody's neighbour, as a query it is infinitely far from all.
    """
    cosine = functional.normalize(queries, dim=1) @ functional.normalize(bank, dim=1).T
    undirected = ~queries.any(dim=1)[:, None] | ~bank.any(dim=1)[None, :]
    return (1 - cosine).masked_fill(undirected, float("inf")).kthvalue(k, dim=1).values


@dataclass(frozen=True)
class NPOS(Contrastive):
    """w_c·comp + w_d·disp + λ·BCE(φ(f), is-ID), φ an MLP on features f of the batch and on synthesised outliers.

    comp and disp are CIDER's. For each class, `pick` features are drawn from the `select` of its queue that have the
    largest distance, on the unit sphere, to their `k`-th nearest in it (themselves counted); around each, `sample_from`
    points f + σε are drawn with ε ~ N(0, I), the same ε for all, and the `keep_farthest` points whose `k`-th nearest in
    the queue is farthest are the outliers. Neighbours are exact. Outliers are used once the queues of all classes are
    full and the share `start` of the epochs is over. The epoch of lowest loss is kept; the evaluated head is CIDER's.

    Args:
        compactness: w_c ≥ 0; 1.
        dispersion: w_d ≥ 0; 0.5.
        weight: λ ≥ 0; 0.1.
        temperature: τ > 0 of comp and disp; 0.1.
        keep: α in [0, 1) of the moving prototypes; 0.95.
        width: dimensions of the projection; 128.
        start: share of the epochs without outliers; 0.4 (epoch 40 of 100).
        queue: features kept per class; 1000.
        k: which neighbour; 300 for CIFAR, 400 for ImageNet-200.
        select: candidates for the boundary per class; 200.
        pick: boundary features per class and step; 2.
        sample_from: points drawn around each; 600, for ImageNet-200 1000.
        keep_farthest: outliers among them; 200, for ImageNet-200 300.
        sigma: σ > 0; 0.1.
        compat: `openood` does what the authors' code and OpenOOD's do instead: every epoch empties the queues to
            zeros, though they count as full, so that boundary features are zeros until a class has been seen `queue`
            times; and the table of distances is read with rows and columns exchanged, so that the points kept are not
            the farthest but unrelated to their distance.

    Reference:
        Tao, Du, Zhu, Li: Non-parametric outlier synthesis, ICLR 2023, arXiv:2303.02966. Hyper-parameters are those of
        OpenOOD's CIFAR-10 script. There φ is given its own rate, which the schedule then overwrites; here φ has the
        same rate as all.
    """

    compactness: NonNegative = 1.0
    dispersion: NonNegative = 0.5
    weight: NonNegative = 0.1
    temperature: Positive = 0.1
    keep: Decay = 0.95
    start: Probability = 0.4
    queue: Count = 1000
    k: Count = 300
    select: Count = 200
    pick: Count = 2
    sample_from: Count = 600
    keep_farthest: Count = 200
    sigma: Positive = 0.1
    compat: Compat = "paper"

    reference: ClassVar[str] = "Tao, Du, Zhu, Li, ICLR 2023, arXiv:2303.02966"

    def __post_init__(self) -> None:
        """Check what must not be larger than something else."""
        for name, most in (("k", "queue"), ("select", "queue"), ("pick", "select"), ("keep_farthest", "sample_from")):
            self.require(getattr(self, name) <= getattr(self, most), name, f"1 to {most} ({getattr(self, most)})")

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> WithBoundary:
        """Return the network with projection, prototypes, queues and the MLP."""
        prepared = WithBoundary(model, feature_dim, num_classes, self.width)
        decide = nn.Sequential(nn.Linear(feature_dim, self.width), nn.ReLU(inplace=True), nn.Linear(self.width, 1))
        queues = empty_queues(num_classes, self.queue, feature_dim)
        prepared.add(decide=decide, prototypes=torch.zeros(num_classes, self.width), **queues)
        return prepared

    def on_epoch_start(self, model: Any, info: StepInfo, data: TrainingData) -> None:
        """Before the first step, put prototypes and directions at the class means of all training images."""
        super().on_epoch_start(model, info, data)
        if self.compat == "openood":
            model.queue.zero_()

    def loss(self, model: WithBoundary, batch: Batch) -> Tensor:
        """Return the loss of a batch; moves prototypes and directions by it, and puts its features into the queues."""
        features, compact, disperse = model.step(batch.images, batch.labels, self.keep, self.temperature)
        loss = self.compactness * compact + self.dispersion * disperse
        model.remember(features.detach(), batch.labels)
        if model.full() and batch.info.epoch >= self.start * batch.info.epochs:
            outliers = self.outliers(model.queue, batch.info.generator)
            loss = loss + self.weight * self.uncertainty(model, features, outliers)
        return loss

    def uncertainty(self, model: WithBoundary, features: Tensor, outliers: Tensor) -> Tensor:
        """Return the binary cross-entropy of features (n, d) against outliers (m, d), over all n + m of them."""
        logits = model.decide(torch.cat([features.float(), outliers]))[:, 0].float()
        is_id = torch.zeros_like(logits)
        is_id[: len(features)] = 1
        return functional.binary_cross_entropy_with_logits(logits, is_id)

    @torch.no_grad()
    def outliers(self, queue: Tensor, generator: torch.Generator) -> Tensor:
        """Return outliers (c·pick·keep_farthest, d) of queues (c, length, d), class by class, without gradient."""
        noise = torch.randn(self.sample_from, queue.shape[2], generator=generator).to(queue.device)
        with torch.autocast(queue.device.type, enabled=False):
            return torch.cat([self._around_boundary(features, noise, generator) for features in queue])

    def _around_boundary(self, features: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
        boundary = remoteness(features, features, self.k).topk(self.select).indices
        picked = features[boundary[torch.randperm(self.select, generator=generator)[: self.pick].to(features.device)]]
        points = (picked[:, None] + self.sigma * noise).flatten(0, 1)
        distance = remoteness(points, features, self.k)
        if self.compat == "openood":
            farthest = distance.view(self.sample_from, self.pick).topk(self.keep_farthest, dim=0).indices.T
        else:
            farthest = distance.view(self.pick, self.sample_from).topk(self.keep_farthest, dim=1).indices
        first = self.sample_from * torch.arange(self.pick, device=points.device)
        return points[(first[:, None] + farthest).flatten()]
