"""Outliers without a density model: noise around the ID features with the farthest neighbours, for a small MLP."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, Decay, NonNegative, Positive, Probability
from openbench.training.base import Batch, Compat, StepInfo, TrainingData
from openbench.training.methods.cider import WithPrototypes
from openbench.training.parts._contrastive import Contrastive
from openbench.training.parts._shared import Queued


class WithBoundary(WithPrototypes, Queued):
    """CIDER's network and prototypes, the last features of every class, and an MLP that tells ID from outliers.

    Args:
        network: the backbone's network.
        feature_dim: d.
        num_classes: c.
        width: dimensions of the projection, and of the MLP's hidden layer.
        length: features kept per class.
    """

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int, width: int, *, length: int) -> None:
        super().__init__(network, feature_dim, num_classes, width)
        self.decide = nn.Sequential(nn.Linear(feature_dim, width), nn.ReLU(inplace=True), nn.Linear(width, 1))
        self.add_queues(num_classes, length, feature_dim)


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
        return WithBoundary(model, feature_dim, num_classes, self.width, length=self.queue)

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
