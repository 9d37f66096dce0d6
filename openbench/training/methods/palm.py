"""Several prototypes per class on the sphere, to which samples are softly assigned: PALM."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, Decay, NonNegative, Positive
from openbench.training.base import Batch, features_and_logits
from openbench.training.parts._contrastive import Contrastive, Projected

_CONTRAST_TEMPERATURE = 0.5


class Mixture(Projected):
    """The network, a projection to the sphere, prototypes (c, count, width) there, and class mean directions.

    Args:
        network: the backbone's network.
        feature_dim: d.
        num_classes: c.
        width: dimensions of the projection.
        count: prototypes per class, at first random directions with coordinates ≥ 0.
    """

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int, width: int, *, count: int) -> None:
        super().__init__(network, feature_dim, num_classes, width)
        self.prototypes: Tensor
        self.register_buffer("prototypes", functional.normalize(torch.rand(num_classes, count, width), dim=2))


def assignment(cosines: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Return log Q, (n, p): Q ∝ exp(cosine/ε) after rounds of giving prototypes equal weight, then samples 1 each.

    Sinkhorn's algorithm, in logarithms: nothing over- or underflows however small ε is.

    Args:
        cosines: (n, p) of samples and prototypes.
        epsilon: ε > 0.
        iterations: rounds.
    """
    log_q = cosines / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(dim=0, keepdim=True)
        log_q = log_q - log_q.logsumexp(dim=1, keepdim=True)
    return log_q


def contrast(prototypes: Tensor) -> Tensor:
    """Return −mean over prototypes p of [mean_{q ~ p} p·q/0.5 − log Σ_{q ≠ p} exp(p·q/0.5)], q ~ p of p's class.

    Args:
        prototypes: (c, count, width) of unit length.
    """
    c, count, _ = prototypes.shape
    flat = prototypes.flatten(0, 1)
    products = flat @ flat.T / _CONTRAST_TEMPERATURE
    itself = torch.eye(c * count, dtype=torch.bool, device=flat.device)
    label = torch.arange(c, device=flat.device).repeat_interleave(count)
    same = (label[:, None] == label) & ~itself
    pull = (products * same).sum(dim=1) / max(count - 1, 1)
    return (products.masked_fill(itself, float("-inf")).logsumexp(dim=1) - pull).mean()


@dataclass(frozen=True)
class PALM(Contrastive):
    """−mean_i [Σ_k w_ik h_i·P_yk/τ − log Σ_ck exp(h_i·P_ck/τ)] + λ·contrast(P), h unit projections, two views.

    w_ik are the Sinkhorn weights of sample i on its class' prototypes, all but the `top` largest set to zero, scaled to
    sum 1. Before the loss every prototype moves: P ← normalise(αP + (1 − α) Σ_i w̃_ik h_i), w̃ scaled to sum 1 over the
    samples; the weights of the loss are then computed again, on the same `top` prototypes. The first term's gradient
    treats prototypes as fixed, that of the contrast goes through them to the batch. No classifier is trained: the epoch
    of lowest loss is kept, and the evaluated head holds class mean directions, as with CIDER.

    Args:
        weight: λ ≥ 0; 1.
        temperature: τ > 0; 0.1.
        keep: α in [0, 1); 0.9 for CIFAR-10, 0.999 for CIFAR-100.
        prototypes: per class; 6.
        top: 1 ≤ top ≤ prototypes; 5.
        epsilon: ε > 0 of the assignment; 0.05.
        iterations: rounds of Sinkhorn's algorithm; 3.
        width: dimensions of the projection; 128.

    Reference:
        Lu, Gong, Wang, Xue, Yao, Moore: Learning with mixture of prototypes for out-of-distribution detection, ICLR
        2024, arXiv:2402.02653. Formulas are those of the authors' code, which OpenOOD's repeats: one assignment of the
        whole batch to the prototypes of all classes, and weights outside the logarithm. Hyper-parameters are those of
        OpenOOD's CIFAR-10 script.
    """

    weight: NonNegative = 1.0
    temperature: Positive = 0.1
    keep: Decay = 0.9
    prototypes: Count = 6
    top: Count = 5
    epsilon: Positive = 0.05
    iterations: Count = 3

    reference: ClassVar[str] = "Lu et al., ICLR 2024, arXiv:2402.02653"
    scorer: ClassVar[str] = "mds_pp"

    def __post_init__(self) -> None:
        """Check that there are enough prototypes."""
        self.require(self.top <= self.prototypes, "top", f"1 to prototypes ({self.prototypes})")

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Mixture:
        """Return the network with projection and prototypes."""
        return Mixture(model, feature_dim, num_classes, self.width, count=self.prototypes)

    def loss(self, model: Mixture, batch: Batch) -> Tensor:
        """Return the loss of a batch, and move prototypes and directions by it."""
        features, _ = features_and_logits(model.network, batch.images)
        model.update_directions(functional.normalize(features, dim=1), batch.labels, self.keep_direction)
        embedded = functional.normalize(model.project(features).float(), dim=1)
        with torch.autocast(embedded.device.type, enabled=False):
            chosen = self._log_weights(embedded, model.prototypes, batch.labels).topk(self.top, dim=1).indices
            prototypes = self.ema_update(model.prototypes, embedded, batch.labels, chosen)
            model.prototypes = prototypes.detach()
            loss = self.likelihood(model.prototypes, embedded, batch.labels, chosen)
            return loss + self.weight * contrast(prototypes)

    def ema_update(self, prototypes: Tensor, embedded: Tensor, labels: Tensor, chosen: Tensor) -> Tensor:
        """Return the prototypes (c, count, width) after a step towards their samples, with gradients to these.

        Args:
            prototypes: (c, count, width) of unit length.
            embedded: h (n, width).
            labels: (n,).
            chosen: (n, top) prototypes of each sample's class that may weigh.
        """
        weights = self._weights(self._log_weights(embedded, prototypes, labels), chosen)
        pulled = prototypes.new_zeros(prototypes.shape).index_add(0, labels, weights[:, :, None] * embedded[:, None])
        total = prototypes.new_zeros(prototypes.shape[:2]).index_add(0, labels, weights)
        mean = pulled / total.clamp(min=torch.finfo(total.dtype).tiny)[:, :, None]
        # A prototype without any sample stays where it is, whatever α.
        target = torch.where(total[:, :, None] > 0, mean, prototypes)
        return functional.normalize(self.keep * prototypes + (1 - self.keep) * target, dim=2)

    def likelihood(self, prototypes: Tensor, embedded: Tensor, labels: Tensor, chosen: Tensor) -> Tensor:
        """Return the first term of the loss, for prototypes (c, count, width) that have moved."""
        weights = self._weights(self._log_weights(embedded, prototypes, labels), chosen)
        logits = embedded @ prototypes.flatten(0, 1).T / self.temperature
        of_class = _of_class(logits, labels, len(prototypes))
        return (logits.logsumexp(dim=1) - (weights * of_class).sum(dim=1)).mean()

    def _log_weights(self, embedded: Tensor, prototypes: Tensor, labels: Tensor) -> Tensor:
        """Log Sinkhorn weights (n, count) of samples on the prototypes of their class, without gradient."""
        with torch.no_grad():
            log_q = assignment(embedded @ prototypes.flatten(0, 1).T, self.epsilon, self.iterations)
            return _of_class(log_q, labels, len(prototypes))

    @staticmethod
    def _weights(log_weights: Tensor, chosen: Tensor) -> Tensor:
        """Weights (n, count) that sum to 1 and are zero outside `chosen`."""
        masked = torch.full_like(log_weights, float("-inf")).scatter(1, chosen, log_weights.gather(1, chosen))
        return masked.softmax(dim=1)


def _of_class(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Pick from values (n, c·count) for all prototypes the (n, count) for those of each sample's class."""
    rows = torch.arange(len(labels), device=labels.device)
    return values.view(len(values), num_classes, -1)[rows, labels]
