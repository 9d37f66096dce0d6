"""Classifiers fitted on the cached features of a network: linear ones, learnt prompts, and votes of neighbours."""

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor, nn
from torch.nn import functional

from openbench.backbones.base import Backbone, HeadKind, Outputs, PromptKind
from openbench.backbones.network import NetworkBackbone
from openbench.config.constraints import Count, NonNegative, Positive, Seed
from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field, Request
from openbench.digest import array_sha256, digest
from openbench.errors import ConfigError, DataError, NotApplicableError

logger = logging.getLogger(__name__)

LAMBDAS: tuple[float, ...] = tuple(10.0 ** (power / 2) for power in range(2, -13, -1))  # 10 … 10⁻⁶, the largest first
_BATCH = 8192
_OPTIONS = {"maxiter": 3000, "maxfun": 6000, "maxcor": 20, "ftol": 1e-15, "gtol": 1e-4}
_WIDE = 12.0  # how far the temperature may lie from the spread within classes, in powers of e
_WARM_UP = 1e-5  # learning rate of the first epoch
_DECAY = 5e-4
_MOMENTUM = 0.9
_SPREAD = 0.02  # of the vectors at the start
_TINY = 1e-5  # inside the logarithm of the entropy
HEADS_VERSION = 1  # raised when a fit or the logits change
NEIGHBOURS, TEMPERATURE = 20, 0.07
_BANK = 32768  # training features compared at a time
_QUERIES = 1024


@dataclass(frozen=True)
class FittedHead:
    """A linear classifier, and how it came about.

    Args:
        head: W (c, d) and b (c,).
        about: what a record says of it: its regularisation or temperature, and its ID validation accuracy.
    """

    head: Head
    about: Mapping[str, Any]


def linear_probe(train: FeatureSet, val: FeatureSet, classes: int) -> FittedHead:
    """Return logistic regression on features, the regularisation of the highest ID validation accuracy.

    min over W, b of (1/n) Σ CE(W f̃ + b, y) + ½ λ ‖W‖², by L-BFGS to convergence, for each λ of 10, 10^0.5, …, 10⁻⁶.
    f̃ = (f − m)/s with the mean m of the training features and the root mean square s of their deviations, so that λ
    means the same for every network; ties in accuracy go to the lower cross-entropy. The record of each λ has the
    largest component that is left of the gradient of the objective over λ: at most 1e-4 where L-BFGS has converged.

    Args:
        train: features (n, d) and labels (n,).
        val: likewise, of ID validation.
        classes: c.

    Raises:
        DataError: a class without training samples.

    Reference:
        Radford et al., ICML 2021, arXiv 2103.00020, appendix A.3: L-BFGS, λ swept on validation. Their features are not
        scaled, and their λ are others.
    """
    problem = _Problem(train, classes)
    parameters, trials, tried = np.zeros(classes * (problem.d + 1)), [], []
    for weight in LAMBDAS:
        found = minimize(problem.value, parameters, args=(weight,), jac=True, method="L-BFGS-B", options=_OPTIONS)
        parameters = found.x  # the next λ starts here
        head = problem.head(parameters)
        accuracy, loss = quality(head, val)
        steps, left = int(found.nit), float(np.abs(found.jac).max())
        trials.append({"lambda": weight, "accuracy": accuracy, "cross_entropy": loss, "steps": steps, "gradient": left})
        early = "" if left <= _OPTIONS["gtol"] else f", stopped early: a gradient of {left:.1g} is left"
        logger.info(f"linear probe: λ = {weight:.2g}: ID validation accuracy {accuracy:.4f} after {steps} steps{early}")
        tried.append((accuracy, -loss, weight, head))
    accuracy, _, weight, head = max(tried, key=lambda one: one[:2])
    return FittedHead(head, {"lambda": weight, "id_val_accuracy": accuracy, "trials": trials})


def nearest_mean(train: FeatureSet, val: FeatureSet, classes: int) -> FittedHead:
    """Return the nearest class mean as a linear head: z_c = −½ t ‖f − μ_c‖² + ½ t ‖f‖² = t μ_c·f − ½ t ‖μ_c‖².

    The temperature t is that of the lowest cross-entropy on ID validation; it changes probabilities, not predictions.

    Args:
        train: features (n, d) and labels (n,).
        val: likewise, of ID validation.
        classes: c.

    Raises:
        DataError: a class without training samples.

    Reference: Snell et al., NeurIPS 2017, arXiv 1703.05175, where t is 2.
    """
    problem = _Problem(train, classes)
    means = torch.from_numpy(problem.means)  # around the mean of all features, which cancels in the differences

    def head_at(log_t: float) -> Head:
        scaled = means * np.exp(log_t)
        bias = -0.5 * (scaled * means).sum(dim=1) - scaled @ torch.from_numpy(problem.mean)
        return Head(scaled.float(), bias.float())

    centre = -2 * float(np.log(problem.scale))
    found = minimize_scalar(
        lambda log_t: quality(head_at(log_t), val)[1], bounds=(centre - _WIDE, centre + _WIDE), method="bounded"
    )
    head = head_at(float(found.x))
    accuracy, _ = quality(head, val)
    return FittedHead(head, {"temperature": float(np.exp(found.x)), "id_val_accuracy": accuracy})


class _Problem:
    """Training features around their mean, in units of their deviation.

    Attributes:
        train: features and labels.
        classes: c.
        d: number of features.
        mean: (d,) float64 of the features.
        scale: root mean square of their deviations from it, over samples and features.
        means: (c, d) float64 of each class, around `mean`.
        kind: in which it computes.
        single: features, scaled, and labels of the only batch; empty if there are several.
    """

    def __init__(self, train: FeatureSet, classes: int) -> None:
        """Read the training set twice: for the mean, and for the deviations."""
        d = train.features.shape[1]
        counts = torch.bincount(train.labels, minlength=classes)
        if len(counts) > classes or int(counts.min()) == 0:
            absent = [c for c, count in enumerate(counts.tolist()) if not count]
            found = f"{len(counts) - len(absent)} classes and none of class {absent[0] if absent else classes}"
            raise DataError(f"a head for {classes} classes needs training samples of each, found {found}")
        sums, square = torch.zeros(classes, d, dtype=torch.float64), 0.0
        for rows in train.batches(_BATCH):
            sums.index_add_(0, rows.labels.cpu(), rows.features.double().cpu())
        mean = sums.sum(dim=0) / len(train)
        for rows in train.batches(_BATCH):
            square += float((rows.features.double().cpu() - mean).square().sum())
        self.train, self.classes, self.d, self.mean = train, classes, d, mean.numpy()
        self.scale = (square / (len(train) * d)) ** 0.5 or 1.0
        self.means = (sums / counts[:, None] - mean).numpy()
        self.kind = torch.float64 if train.device.type == "cpu" else torch.float32
        self.single = list(self._scaled()) if len(train) <= _BATCH else []  # it is read a thousand times

    def value(self, parameters: NDArray[np.float64], weight: float) -> tuple[float, NDArray[np.float64]]:
        """The objective over λ, and its gradient, at W (c, d) and b (c,), flattened one after the other.

        Divided by λ, a gradient of a given length bounds the distance to the best W, whatever λ is.
        """
        W, b = (torch.from_numpy(part).to(self.train.device, self.kind) for part in self._parts(parameters))
        loss, dW, db = 0.0, torch.zeros(W.shape, dtype=torch.float64), torch.zeros(len(b), dtype=torch.float64)
        for x, labels in self.single or self._scaled():
            log_p = torch.log_softmax(torch.addmm(b, x, W.T), dim=1)
            loss -= float(log_p.gather(1, labels[:, None]).double().sum())
            error = log_p.exp()
            error[torch.arange(len(x), device=x.device), labels] -= 1
            dW += (error.T @ x).double().cpu()
            db += error.sum(dim=0).double().cpu()
        n, flat = len(self.train), self._parts(parameters)[0]
        gradient = np.concatenate([(dW.numpy() / (n * weight) + flat).ravel(), db.numpy() / (n * weight)])
        return loss / (n * weight) + 0.5 * float((flat**2).sum()), gradient

    def _scaled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The features, scaled, and the labels of each batch."""
        mean = torch.from_numpy(self.mean).to(self.train.device, self.kind)
        for rows in self.train.batches(_BATCH):
            yield (rows.features.to(self.kind) - mean) / self.scale, rows.labels

    def head(self, parameters: NDArray[np.float64]) -> Head:
        """The classifier of features as they are."""
        W, b = self._parts(parameters)
        weight = W / self.scale
        return Head(*(torch.from_numpy(part.astype(np.float32)) for part in (weight, b - weight @ self.mean)))

    def _parts(self, parameters: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        size = self.classes * self.d
        return parameters[:size].reshape(self.classes, self.d), parameters[size:]


def quality(head: Head, val: FeatureSet) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy on a labelled set."""
    right, loss = 0, 0.0
    for rows in val.batches(_BATCH):
        z: Tensor = head(rows.features).double()
        right += int((z.argmax(dim=1) == rows.labels).sum())
        loss += float(torch.nn.functional.cross_entropy(z, rows.labels, reduction="sum"))
    return right / len(val), loss / len(val)


@dataclass(frozen=True)
class PromptLearning:
    """How prompts are learnt.

    Args:
        context: vectors before the class name; the papers have 16.
        shots: training images of each class, drawn by the seed; null = all. The papers have 16.
        epochs: the papers have 50 for 16 shots.
        batch_size: images of a step.
        lr: learning rate of SGD, after an epoch of warm-up, falling as a cosine.
        weight: λ of LoCoOp's entropy of patches; the paper has 0.25.
        top: K: patches whose K most probable classes lack the label count as background; null = a fifth of the classes,
            as the paper's 200 of 1,000.
        seed: of the draws of shots, vectors and batches.
    """

    context: Count = 16
    shots: Count | None = 16
    epochs: Count = 50
    batch_size: Count = 32
    lr: Positive = 0.002
    weight: NonNegative = 0.25
    top: Count | None = None
    seed: Seed = 0

    def top_of(self, classes: int) -> int:
        """K for a number of classes.

        Raises:
            ConfigError: K classes are all, so every patch would show the label.
        """
        top = max(1, classes // 5) if self.top is None else self.top
        if top >= classes:
            raise ConfigError(f"prompt learning: top={top} of {classes} classes — allowed: 1 to {classes - 1}")
        return top

    def drawn(self, labels: Tensor) -> Tensor:
        """Return the ascending rows of `shots` images of each class, or of all where there are fewer."""
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(self.seed))
        if self.shots is None:
            return order.sort().values
        shots = [order[labels[order] == c][: self.shots] for c in range(int(labels.max()) + 1)]
        return torch.cat(shots).sort().values


def learnt_prompts(tower: Any, train: FeatureSet, val: FeatureSet, how: PromptLearning) -> FittedHead:
    """Return the zero-shot classifier of prompts whose first vectors are learnt on features of frozen towers.

    The loss is CE(s cos(f, t), y), plus −λ H of the patches whose K most probable classes lack y where `train` has
    patches (LoCoOp); t are the embeddings of `[v1] … [vk] class.`, s the model's scale, H the mean entropy of
    softmax(s cos(z, t)). SGD with momentum; the vectors are those of the last epoch.

    Args:
        tower: the text side, an `OpenClipText`, whose weights stay as they are.
        train: unit features (n, d) and labels of the shots, for LoCoOp with patches (n, p, d).
        val: features and labels of ID validation, for the record only.
        how: the settings.

    Raises:
        ConfigError: K that takes all classes.
        DataError: the loss is not finite.

    Reference:
        Zhou et al.: Learning to prompt for vision-language models, IJCV 2022, arXiv:2109.01134. Miyai et al.: LoCoOp:
        Few-shot out-of-distribution detection via prompt learning, NeurIPS 2023, arXiv:2306.01293; AtsuMiyai/LoCoOp.
        Differences: images are seen as the preprocessing shows them, without random crops and flips, so that an epoch
        costs no image pass; the draws are another generator's.
    """
    top = how.top_of(len(tower.classes)) if Field.PATCHES in train else 0
    generator = torch.Generator().manual_seed(how.seed)
    start = _SPREAD * torch.randn(how.context, tower.width, generator=generator)
    context = start.to(tower.device).requires_grad_(True)
    optimiser = torch.optim.SGD([context], lr=how.lr, momentum=_MOMENTUM, weight_decay=_DECAY)
    for epoch in range(how.epochs):
        for group in optimiser.param_groups:
            group["lr"] = _WARM_UP if epoch == 0 else 0.5 * how.lr * (1 + math.cos(math.pi * epoch / how.epochs))
        total = 0.0
        for part in torch.split(torch.randperm(len(train), generator=generator), how.batch_size):
            rows = train[part]
            optimiser.zero_grad()
            loss = _loss(tower, context, rows, top, how.weight)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total += float(loss.detach()) * len(rows)
        if not math.isfinite(total):
            raise DataError(f"prompts: the loss is {total} in epoch {epoch + 1} — lower lr")
        logger.info(f"prompts: epoch {epoch + 1} of {how.epochs}: loss {total / len(train):.4f}")
    with torch.no_grad():
        weight = (tower.scale * tower.embed_context(context)).float().cpu()
    head = Head(weight, torch.zeros(len(weight)))
    return FittedHead(head, {**asdict(how), "id_val_accuracy": quality(head, val)[0], "loss": total / len(train)})


def _loss(tower: Any, context: Tensor, rows: FeatureSet, top: int, weight: float) -> Tensor:
    """Cross-entropy, and LoCoOp's part of K = `top` and λ = `weight`; none where K = 0."""
    texts = tower.embed_context(context)
    logits = tower.scale * functional.normalize(rows.features.to(texts), dim=1) @ texts.T
    labels = rows.labels.to(texts.device)
    loss = functional.cross_entropy(logits, labels)
    if not top:
        return loss
    patches = tower.scale * functional.normalize(rows.patches.to(texts), dim=2) @ texts.T
    return loss - weight * background_entropy(patches, labels, top)


def background_entropy(logits: Tensor, labels: Tensor, top: int) -> Tensor:
    """Return the mean entropy of the patches whose `top` most probable classes lack the image's label; 0 without any.

    Args:
        logits: (n, p, c) of patches.
        labels: (n,).
        top: K.
    """
    probabilities = torch.softmax(logits, dim=2)
    likely = logits.topk(top, dim=2).indices
    chosen = probabilities[(likely != labels[:, None, None]).all(dim=2)]
    if not len(chosen):
        return logits.sum() * 0
    return -(chosen * torch.log(chosen + _TINY)).sum(dim=1).mean()


class Headed(Backbone):
    """A network's features and maps, and the logits of a head that was fitted on its features.

    The features are cached as those of the network alone, so another head costs no pass. With a linear head, methods
    that run the network or take gradients see it with the head in its place.
    """

    def __init__(
        self,
        network: Backbone,
        kind: HeadKind | PromptKind,
        classify: Callable[[Tensor], Tensor],
        *,
        classes: int,
        fitted_on: Any,
        about: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Join a network and a head.

        Args:
            network: without a classifier, with weights; or features without a network.
            kind: of the head, e.g. `linear_probe`; the name ends in it.
            classify: features (n, d) → logits (n, c); a Head where they are linear.
            classes: c.
            fitted_on: the identity of the samples that the head was fitted and chosen on; enters the digest.
            about: further entries of a record on the head.
        """
        self.features_from, self._classify = network, classify
        self.name = f"{network.name}_{kind}"
        self.architecture = f"{network.architecture}, {kind} of {classes} classes"
        self.num_classes, self.feature_dim = classes, network.feature_dim
        self.layers, self.preprocess, self.device = network.layers, network.preprocess, network.device
        self.has_head, self.has_network = isinstance(classify, Head), network.has_network
        self.text_towers, self.has_patches = network.text_towers, network.has_patches
        identity = {"kind": kind, "version": HEADS_VERSION, "classes": classes, "fitted_on": fitted_on}
        self.digest = digest({"backbone": network.digest, "head": identity})
        self.weights_sha256 = network.weights_sha256
        self.fitted_head = {"kind": kind}
        if isinstance(classify, Head):
            parts = [array_sha256(part.numpy()) for part in (classify.weight, classify.bias)]
            self.fitted_head |= {"sha256": digest(parts, length=64), **about}
        self._network = network

    @property
    def made_of(self) -> tuple[object, ...]:
        """The network and the class of the head; their source may enter an identity."""
        return (self._network, type(self._classify))

    @property
    def passes(self) -> int:
        """Images pushed through the network so far."""
        return self._network.passes + (self._whole.passes if "_whole" in vars(self) else 0)

    @passes.setter
    def passes(self, count: int) -> None:
        """Start counting again, e.g. without the images of a pass that failed."""
        self._network.passes += count - self.passes

    @property
    def head(self) -> Head:
        """The linear head on the CPU; with zero classes where it is not linear."""
        if isinstance(self._classify, Head):
            return self._classify
        return Head(torch.zeros(0, self.feature_dim), torch.zeros(0))

    def to(self, device: torch.device) -> Self:
        """Move the network; return self."""
        self._network.to(device)
        self.device = self._network.device
        if "_whole" in vars(self):
            self._whole.to(device)
        return self

    def classify(self, features: Tensor) -> Tensor:
        """Logits (n, c) of features (n, d), on their device."""
        with torch.no_grad():
            return self._classify(features)

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return what `request` names for normalised images (n, 3, h, w), after its input-gradient step if any.

        Raises:
            NotApplicableError: an input step where the head is not linear.
        """
        if request.perturb is not None:
            return self._whole.outputs(images, request)
        outputs = self._network.outputs(images, request)
        return replace(outputs, logits=self.classify(outputs.features))

    def frozen(self) -> AbstractContextManager[nn.Module]:
        """The network with the head, in eval mode without parameter gradients.

        Raises:
            NotApplicableError: the head is not linear.
        """
        return self._whole.frozen()

    def changing(self, layer: str, change: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
        """While open, the layers after `layer` receive its map (n, c, h, w) as `change` returns it."""
        return self._whole.changing(layer, change)

    def module(self) -> nn.Module:
        """The network with the head."""
        return self._whole.module()

    @cached_property
    def _whole(self) -> NetworkBackbone:
        """One network with the head where it has none; made when a method runs it itself."""
        network = self._network
        if not isinstance(self._classify, Head) or not isinstance(network, NetworkBackbone):
            lacks = "its head is not linear, so it has no gradients" if network.has_network else "there is no network"
            way = "choose a method that reads features or logits" + ", or head=linear_probe" * network.has_network
            raise NotApplicableError(f"backbone '{self.name}': {lacks} — {way}")
        module, head, anatomy = copy.deepcopy(network.module()), self._classify, network.anatomy
        linear = nn.Linear(self.feature_dim, self.num_classes)
        linear.weight.data, linear.bias.data = head.weight.clone(), head.bias.clone()
        module.set_submodule(anatomy.head, linear.to(self.device))
        return network.replaced(module, anatomy, self.architecture)


@dataclass(frozen=True, eq=False)
class NearestNeighbours:
    """A weighted vote of the 20 training features of the largest cosine.

    Neighbour j votes for its class with exp(cos_j/0.07). Its logits are z_c = log((k·p_c + 1/C)/(k + 1)) with the share
    p_c of the votes: one further neighbour, spread evenly over the C classes, keeps them finite.

    Args:
        train: features (n, d), memory-mapped or not, and labels (n,).
        classes: C.

    Reference: Wu et al., CVPR 2018, arXiv 1805.01978; k and temperature of DINO and DINOv2's evaluation (Oquab et al.,
        TMLR 2024, arXiv 2304.07193).
    """

    train: FeatureSet
    classes: int

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (n, c) of features (n, d)."""
        return torch.cat([self._logits(rows) for rows in torch.split(features, _QUERIES)])

    def _logits(self, features: Tensor) -> Tensor:
        queries, labels = functional.normalize(features, dim=1), self.train.labels.to(features.device)
        k = min(NEIGHBOURS, len(self.train))
        near = features.new_empty(len(features), 0)
        voters = torch.empty(len(features), 0, dtype=torch.int64, device=features.device)
        for start in range(0, len(self.train), _BANK):
            bank = functional.normalize(self.train.features[start : start + _BANK].to(features.device), dim=1)
            cosines, place = (queries @ bank.T).topk(min(k, len(bank)), dim=1)
            near, voters = torch.cat([near, cosines], dim=1), torch.cat([voters, labels[place + start]], dim=1)
            near, nearest = near.topk(min(k, near.shape[1]), dim=1)
            voters = voters.gather(1, nearest)
        votes = torch.softmax(near / TEMPERATURE, dim=1)
        shares = torch.zeros(len(features), self.classes, device=features.device).scatter_add_(1, voters, votes)
        return torch.log((k * shares + 1 / self.classes) / (k + 1))
