"""Positions on the unit sphere: views and classes pulled together, prototypes pushed apart."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, Decay, NonNegative, Positive
from openbench.errors import ConfigError
from openbench.training.base import Batch, EvalModel, Selection, StepInfo, TrainingData, TrainingMethod, head_of
from openbench.training.methods._parts import ROTATIONS, Extended, Turned, rotated, rotated_labels
from openbench.training.methods.cross_entropy import FineTuned, FineTuning

# CIDER's official code scales the compactness loss by τ over this.
_BASE_TEMPERATURE = 0.07
_PROTOTYPE_TEMPERATURE = 0.5  # of PALM


class Projected(Extended):
    """The network, a projection to the sphere, and class mean directions of the features.

    Nothing trains the network's own classifier. So that accuracy and logits mean something, the directions replace it:
    an average of unit features per class, updated during training and used by no loss.

    Args:
        network: the backbone's network.
        feature_dim: d.
        num_classes: c.
        width: dimensions of the projection.
        **parts: see `Extended`.
    """

    project: nn.Module
    directions: Tensor
    prototypes: Tensor  # of methods that add them

    def __init__(self, network: nn.Module, feature_dim: int, num_classes: int, width: int, **parts: Tensor) -> None:
        hidden = nn.Linear(feature_dim, feature_dim)
        project = nn.Sequential(hidden, nn.ReLU(inplace=True), nn.Linear(feature_dim, width))
        super().__init__(network, project=project, directions=torch.zeros(num_classes, feature_dim), **parts)

    def embed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit features (n, d) and unit projections (n, width)."""
        features, _ = self.read(images)
        return functional.normalize(features, dim=1), functional.normalize(self.project(features), dim=1)

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to products of features with class mean directions (n, c)."""
        features, _ = self.read(images)
        return features @ functional.normalize(self.directions, dim=1).T

    @torch.no_grad()
    def initialise(self, data: TrainingData, *prototypes: Tensor) -> None:
        """Put the directions, and prototypes (c, width) of projections, at the class means of all training images."""
        self.eval()
        means = [self.directions, *prototypes]
        for images, labels, _ in data.train.clean():
            for mean, points in zip(means, self.embed(images), strict=False):
                mean.index_add_(0, labels, points)
        for mean in means:
            mean.copy_(functional.normalize(mean, dim=1))

    def update_directions(self, features: Tensor, labels: Tensor, keep: float) -> None:
        """Move the directions by the unit features (n, d) of a batch; each sample leaves the share `keep` in [0, 1)."""
        self.directions = ema_update(self.directions, features.detach().float(), labels, keep)


def ema_update(prototypes: Tensor, embedded: Tensor, labels: Tensor, keep: float) -> Tensor:
    """Return prototypes (c, d) after P_y ← normalise(α P_y + (1 − α) h) for every sample in turn, with gradients to h.

    Classes do not influence one another, so the i-th samples of all classes are taken at once.

    Args:
        prototypes: (c, d) of unit length.
        embedded: h (n, d).
        labels: (n,).
        keep: α in [0, 1].
    """
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels, minlength=len(prototypes))
    first = counts.cumsum(0) - counts
    for i in range(int(counts.max())):
        present = counts > i
        samples = embedded[order[first[present] + i]]
        step = functional.normalize(keep * prototypes[present] + (1 - keep) * samples, dim=1)
        prototypes = prototypes.index_put((present.nonzero()[:, 0],), step)
    return prototypes


@dataclass(frozen=True)
class Contrastive(TrainingMethod):
    """A loss on unit projections of two views of every image.

    No classifier is trained: the epoch of lowest loss is kept, and class mean directions of the features predict.

    Attributes:
        width: dimensions of the projection; 128.
        keep_direction: α in [0, 1) of the class mean directions at each sample; only accuracy and logits use these.
    """

    width: Count = 128

    keep_direction: ClassVar[float] = 0.95
    scorer: ClassVar[str] = "knn"
    selection: ClassVar[Selection] = "train_loss"
    views: ClassVar[int] = 2
    own_head: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Projected:
        """Return the network with a projection."""
        return Projected(model, feature_dim, num_classes, self.width)

    def on_epoch_start(self, model: Projected, info: StepInfo, data: TrainingData) -> None:
        """Before the first step, put directions at the class means of all training images."""
        if info.epoch == 0:
            model.initialise(data)

    def eval_model(self, model: Projected) -> EvalModel:
        """Return the network with class mean directions as its head."""
        directions = functional.normalize(model.directions, dim=1)
        return model.with_head(directions, torch.zeros_like(directions[:, 0]))


@dataclass(frozen=True)
class SupCon(Contrastive):
    """Mean over i of −1/|P(i)| Σ_{p∈P(i)} log[exp(h_i·h_p/τ) / Σ_{a≠i} exp(h_i·h_a/τ)], P(i) the others of i's class.

    Two views of every image, h their unit projections. With four rotations every view is turned by 0, 90, 180 and 270
    degrees and a turned class is a separate class: what CSI learns first. No classifier is trained: the epoch of lowest
    loss is kept, and class mean directions predict; KNN on the features does not use them.

    Args:
        temperature: τ > 0; 0.1.
        rotations: 1, or 4 (square images).
        width: dimensions of the projection; 128.

    Reference:
        Khosla et al.: Supervised contrastive learning, NeurIPS 2020, arXiv:2004.11362, equation 2 without its constant
        factor; scored by KNN as in Sun et al., ICML 2022, arXiv:2204.06507. Rotations: Tack et al., NeurIPS 2020,
        arXiv:2007.08176; the released code counts i among its own class, which adds a constant to each term and
        divides by |P| + 1 instead of |P|.
    """

    temperature: Positive = 0.1
    rotations: Literal[1, 4] = 1

    reference: ClassVar[str] = "Khosla et al., NeurIPS 2020, arXiv:2004.11362"

    def loss(self, model: Projected, batch: Batch) -> Tensor:
        """Return the loss of a batch, and move the directions by its images as they are."""
        images, labels = batch.images, batch.labels
        if self.rotations > 1:
            images, labels = rotated(images), rotated_labels(labels, len(model.directions))
        features, embedded = model.embed(images)
        model.update_directions(features[: len(batch.labels)], batch.labels, self.keep_direction)
        return contrast(embedded.float(), labels, self.temperature)


def contrast(embedded: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive loss of unit vectors; those without another of their class count 0.

    Args:
        embedded: h (n, width) of unit length.
        labels: (n,).
        temperature: τ > 0.
    """
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    products = embedded @ embedded.T / temperature
    log_p = products - products.masked_fill(itself, float("-inf")).logsumexp(dim=1, keepdim=True)
    same = (labels[:, None] == labels[None, :]) & ~itself
    counts = same.sum(dim=1)
    return -(torch.where(same, log_p, 0.0).sum(dim=1) / counts.clamp(min=1)).mean()


class Averaged(Turned):
    """The network, and a head with one output per class and rotation."""

    def combined(self, logits: list[Tensor]) -> Tensor:
        """Return (n, c): the logits for "turned by r" of the image turned by r, averaged over the turns r."""
        return torch.stack([turn.chunk(ROTATIONS, dim=1)[r] for r, turn in enumerate(logits)]).mean(dim=0)


@dataclass(frozen=True)
class CSI(FineTuned):
    """CE(z(x), y) + mean_r CE(j(x turned by r), (y, r)), z and j linear on a network trained by SupCon over rotations.

    Two trainings, one after the other: first that of `training=supcon rotations=4` with `recipe`, then the two heads
    with `tuning`, while the network is frozen, its batch norm too. `method=csi` averages over the four turns (CSI-ens
    in the paper), `method=msp` sees the unrotated image (CSI).

    Args:
        recipe: of the contrastive training.
        tuning: epochs and rate of the heads.
        temperature: τ > 0 of the contrastive training; 0.07.
        width: dimensions of the projection there; 128.

    Reference:
        Tack et al.: CSI: novelty detection via contrastive learning on distributionally shifted instances, NeurIPS
        2020, arXiv:2007.08176, section 2.3 for labelled classes. The heads' rate falls by a cosine instead of steps,
        with the recipe's momentum; the third head of the released code, for the rotation alone, enters neither score
        and is left out.
    """

    tuning: FineTuning = field(default_factory=lambda: FineTuning(epochs=100, lr=0.1))
    temperature: Positive = 0.07
    width: Count = 128

    reference: ClassVar[str] = "Tack et al., NeurIPS 2020, arXiv:2007.08176"
    scorer: ClassVar[str] = "csi"
    fine_tunes: ClassVar[bool] = False

    @property
    def initial(self) -> SupCon:
        """The contrastive training over four rotations."""
        return SupCon(self.recipe, self.width, self.temperature, ROTATIONS)

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Averaged:
        """Return the network with a head for turned classes."""
        return Averaged(model, "joint", ROTATIONS * num_classes, feature_dim, output="turned")

    def parameter_groups(self, model: Averaged) -> list[dict[str, Any]]:
        """Return the two heads."""
        return [{"params": [*model.classifier.parameters(), *model.get_submodule("joint").parameters()]}]

    def loss(self, model: Averaged, batch: Batch) -> Tensor:
        """Return the loss of both heads."""
        head, n = model.classifier, len(batch.images)
        model.network.eval()
        with torch.no_grad():
            features, _ = model.read(rotated(batch.images))
        torch.clear_autocast_cache()  # torch 2.6 would go on with the head's weights as cast without gradients
        turned = rotated_labels(batch.labels, head.out_features)
        loss = functional.cross_entropy(head(features[:n]), batch.labels)
        return loss + functional.cross_entropy(model.of_turned(features), turned)

    def eval_model(self, model: Averaged) -> EvalModel:
        """Return the network with the output `turned` (n, c), logits averaged over four turns; five passes."""
        return model.evaluated("turned")


@dataclass(frozen=True)
class ReweightOOD(Contrastive):
    """ELU(log Σ_same exp(−w⁺s/τ) + log Σ_other exp(w⁻s/τ)), s the cosines of all pairs of a batch on the sphere.

    w⁺ = σ(−(m_w s − c_w)) is large for pairs of one class that are far apart, w⁻ = σ(m_b s − c_b) for pairs of two
    classes that are close; no gradient flows through either. Two views of every image; each pair counts once.
    No classifier is trained: the epoch of lowest loss is kept, and class mean directions predict. The paper's score,
    Mahalanobis distance on unit features of the network, does not use them.

    Args:
        temperature: τ > 0; 0.1.
        m_b: slope of w⁻; 5.
        c_b: offset of w⁻; 4.
        m_w: slope of w⁺; 2.
        c_w: offset of w⁺; 1.
        width: dimensions of the projection; 128.

    Reference:
        Regmi et al.: ReweightOOD: loss reweighting for distance-based OOD detection, CVPR workshops 2024, 131–141.
        The warm-up is this loop's, not the released code's.
    """

    temperature: Positive = 0.1
    m_b: float = 5.0
    c_b: float = 4.0
    m_w: float = 2.0
    c_w: float = 1.0

    reference: ClassVar[str] = "Regmi et al., CVPR workshops 2024"
    scorer: ClassVar[str] = "mds_pp"

    def loss(self, model: Projected, batch: Batch) -> Tensor:
        """Return the loss of all pairs of a batch, and move the directions by it."""
        features, embedded = model.embed(batch.images)
        model.update_directions(features, batch.labels, self.keep_direction)
        first, second = torch.triu_indices(len(embedded), len(embedded), offset=1, device=embedded.device)
        cosines = (embedded.float() @ embedded.float().T)[first, second]
        same = batch.labels[first] == batch.labels[second]
        return functional.elu(self.of_one_class(cosines[same]) + self.of_two_classes(cosines[~same]))

    def of_one_class(self, cosines: Tensor) -> Tensor:
        """Return log Σ exp(−w⁺s/τ) of cosines s (pairs,)."""
        weights = torch.sigmoid(self.c_w - self.m_w * cosines.detach())
        return torch.logsumexp(-weights * cosines / self.temperature, dim=0)

    def of_two_classes(self, cosines: Tensor) -> Tensor:
        """Return log Σ exp(w⁻s/τ) of cosines s (pairs,)."""
        weights = torch.sigmoid(self.m_b * cosines.detach() - self.c_b)
        return torch.logsumexp(weights * cosines / self.temperature, dim=0)


class WithPrototypes(Projected):
    """The network, a projection to the sphere, class prototypes there, and class mean directions of the features."""

    def initialise(self, data: TrainingData, *prototypes: Tensor) -> None:
        """Put directions and prototypes at the class means of all training images."""
        super().initialise(data, self.prototypes)

    def step(self, images: Tensor, labels: Tensor, keep: float, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
        """Move prototypes and directions by a batch.

        Args:
            images: (n, channels, h, w).
            labels: (n,).
            keep: α in [0, 1), the share of the old value that each sample leaves.
            temperature: τ > 0.

        Returns:
            The features (n, d) of the images; compactness, τ/0.07 · CE(P h/τ, y); dispersion, see `dispersion`.
        """
        features, _ = self.read(images)
        embedded = functional.normalize(self.project(features).float(), dim=1)
        prototypes = ema_update(self.prototypes, embedded, labels, keep)
        self.prototypes = prototypes.detach()
        self.update_directions(functional.normalize(features, dim=1), labels, keep)
        entropy = functional.cross_entropy(embedded @ self.prototypes.T / temperature, labels)
        return features, temperature / _BASE_TEMPERATURE * entropy, dispersion(prototypes, temperature)


def dispersion(prototypes: Tensor, temperature: float) -> Tensor:
    """Return the mean over i of log mean over j ≠ i of exp(P_i·P_j/τ)."""
    c = len(prototypes)
    products = (prototypes @ prototypes.T / temperature).masked_fill(
        torch.eye(c, dtype=torch.bool, device=prototypes.device), float("-inf")
    )
    return (products.logsumexp(dim=1) - math.log(c - 1)).mean()


@dataclass(frozen=True)
class CIDER(Contrastive):
    """w·(τ/0.07)·CE(P h/τ, y) + mean_i log mean_{j≠i} exp(P_i·P_j/τ), h the unit projection, P moving class prototypes.

    Two views of every image. No classifier is trained: the epoch of lowest loss is kept. So that accuracy and logits
    mean something, the evaluated head holds the class mean directions of unit features, an average kept in training;
    that head is not part of the paper, whose score, KNN on the features, does not use it.

    Args:
        weight: w ≥ 0; 2.
        temperature: τ > 0; 0.1.
        keep: α in [0, 1) of the moving prototypes; 0.95, or 0.5 for CIFAR-100.
        width: dimensions of the projection; 128.

    Reference:
        Ming et al.: How to exploit hyperspherical embeddings for out-of-distribution detection?, ICLR 2023,
        arXiv:2203.04450.
    """

    weight: NonNegative = 2.0
    temperature: Positive = 0.1
    keep: Decay = 0.95

    reference: ClassVar[str] = "Ming et al., ICLR 2023, arXiv:2203.04450"

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> WithPrototypes:
        """Return the network with projection and prototypes."""
        prototypes = torch.zeros(num_classes, self.width)
        return WithPrototypes(model, feature_dim, num_classes, self.width, prototypes=prototypes)

    def loss(self, model: WithPrototypes, batch: Batch) -> Tensor:
        """Return the loss of a batch, and move prototypes and directions by it."""
        _, compact, disperse = model.step(batch.images, batch.labels, self.keep, self.temperature)
        return self.weight * compact + disperse


def last_stage(network: nn.Module) -> nn.Module:
    """Return the last child of a network that has parameters and comes before its classifier: a ResNet's `layer4`.

    In networks that keep all blocks in one child, as transformers do, that child is the last stage.

    Raises:
        ConfigError: there is none.
    """
    head = head_of(network)
    for part in reversed(list(network.children())):
        if any(True for _ in part.parameters()) and not any(module is head for module in part.modules()):
            return part
    raise ConfigError(f"no part of {type(network).__name__} before its classifier has parameters — use training=cider")


@dataclass(frozen=True)
class CIDERLastStage(FineTuned, CIDER):
    """The loss of CIDER; it trains only the network's last stage and the projection, from cross-entropy's weights.

    OpenOOD trains CIDER on ImageNet in this way. Earlier stages keep their weights; their batch norm goes on averaging,
    as it does there. Two views of every image.

    Args:
        recipe: of the cross-entropy training that comes first.
        tuning: epochs and rate of the fine-tuning: 10 and 0.01 for ImageNet-200, 0.001 for ImageNet-1K.
        weight_decay: of the fine-tuning; 1e-4.
        weight: w ≥ 0, of compactness against dispersion; 2.
        temperature: τ > 0; 0.1.
        keep: α in [0, 1) of the moving prototypes; 0.95.
        width: dimensions of the projection; 128.

    Reference:
        Ming et al.: How to exploit hyperspherical embeddings for out-of-distribution detection?, ICLR 2023,
        arXiv:2203.04450; stage and rates of Zhang et al.: OpenOOD v1.5, arXiv:2306.09301, without their warm-up, which
        lasts all ten epochs.
    """

    tuning: FineTuning = field(default_factory=lambda: FineTuning(epochs=10, lr=0.01))
    weight_decay: NonNegative = 1e-4

    reference: ClassVar[str] = "Ming et al., ICLR 2023, arXiv:2203.04450"

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> WithPrototypes:
        """Return the network with projection and prototypes; earlier stages get no gradient."""
        prepared = super().prepare(model, feature_dim, num_classes)
        model.requires_grad_(False)
        last_stage(model).requires_grad_(True)
        return prepared

    def parameter_groups(self, model: WithPrototypes) -> list[dict[str, Any]]:
        """Return the parameters of the last stage and of the projection."""
        return [{**group, "weight_decay": self.weight_decay} for group in super().parameter_groups(model)]


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


def prototype_contrast(prototypes: Tensor) -> Tensor:
    """Return −mean over prototypes p of [mean_{q ~ p} p·q/0.5 − log Σ_{q ≠ p} exp(p·q/0.5)], q ~ p of p's class.

    Args:
        prototypes: (c, count, width) of unit length.
    """
    c, count, _ = prototypes.shape
    flat = prototypes.flatten(0, 1)
    products = flat @ flat.T / _PROTOTYPE_TEMPERATURE
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

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Projected:
        """Return the network with projection and prototypes, at first random directions with coordinates ≥ 0."""
        prepared = super().prepare(model, feature_dim, num_classes)
        prepared.add(prototypes=functional.normalize(torch.rand(num_classes, self.prototypes, self.width), dim=2))
        return prepared

    def loss(self, model: Projected, batch: Batch) -> Tensor:
        """Return the loss of a batch, and move prototypes and directions by it."""
        features, _ = model.read(batch.images)
        model.update_directions(functional.normalize(features, dim=1), batch.labels, self.keep_direction)
        embedded = functional.normalize(model.project(features).float(), dim=1)
        with torch.autocast(embedded.device.type, enabled=False):
            log_weights = self._log_weights(embedded, model.prototypes, batch.labels)
            chosen = log_weights.topk(self.top, dim=1).indices
            prototypes = self.ema_update(model.prototypes, embedded, batch.labels, _weights(log_weights, chosen))
            model.prototypes = prototypes.detach()
            loss = self.likelihood(model.prototypes, embedded, batch.labels, chosen)
            return loss + self.weight * prototype_contrast(prototypes)

    def ema_update(self, prototypes: Tensor, embedded: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the prototypes (c, count, width) after a step towards their samples, with gradients to these.

        Args:
            prototypes: (c, count, width) of unit length.
            embedded: h (n, width).
            labels: (n,).
            weights: (n, count) of each sample on the prototypes of its class.
        """
        pulled = prototypes.new_zeros(prototypes.shape).index_add(0, labels, weights[:, :, None] * embedded[:, None])
        total = prototypes.new_zeros(prototypes.shape[:2]).index_add(0, labels, weights)
        mean = pulled / total.clamp(min=torch.finfo(total.dtype).tiny)[:, :, None]
        # A prototype without any sample stays where it is, whatever α.
        target = torch.where(total[:, :, None] > 0, mean, prototypes)
        return functional.normalize(self.keep * prototypes + (1 - self.keep) * target, dim=2)

    def likelihood(self, prototypes: Tensor, embedded: Tensor, labels: Tensor, chosen: Tensor) -> Tensor:
        """Return the first term of the loss, for prototypes (c, count, width) that have moved."""
        weights = _weights(self._log_weights(embedded, prototypes, labels), chosen)
        logits = embedded @ prototypes.flatten(0, 1).T / self.temperature
        of_class = _of_class(logits, labels, len(prototypes))
        return (logits.logsumexp(dim=1) - (weights * of_class).sum(dim=1)).mean()

    @torch.no_grad()
    def _log_weights(self, embedded: Tensor, prototypes: Tensor, labels: Tensor) -> Tensor:
        """Log Sinkhorn weights (n, count) of samples on the prototypes of their class, without gradient."""
        log_q = assignment(embedded @ prototypes.flatten(0, 1).T, self.epsilon, self.iterations)
        return _of_class(log_q, labels, len(prototypes))


def _weights(log_weights: Tensor, chosen: Tensor) -> Tensor:
    """Weights (n, count) that sum to 1 and are zero outside `chosen` (n, top)."""
    masked = torch.full_like(log_weights, float("-inf")).scatter(1, chosen, log_weights.gather(1, chosen))
    return masked.softmax(dim=1)


def _of_class(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Pick from values (n, c·count) for all prototypes the (n, count) for those of each sample's class."""
    rows = torch.arange(len(labels), device=labels.device)
    return values.view(len(values), num_classes, -1)[rows, labels]
