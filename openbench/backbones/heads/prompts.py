"""Classifiers of a frozen vision–language model from learnt prompts: CoOp, and LoCoOp with its local regularisation."""

import logging
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from openbench.backbones.heads.fit import FittedHead, quality
from openbench.config.constraints import Count, NonNegative, Positive, Seed
from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field
from openbench.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

_WARM_UP = 1e-5  # learning rate of the first epoch
_DECAY = 5e-4
_MOMENTUM = 0.9
_SPREAD = 0.02  # of the vectors at the start
_TINY = 1e-5  # inside the logarithm of the entropy


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
