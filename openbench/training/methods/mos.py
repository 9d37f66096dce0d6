"""A softmax per group of classes, each with an answer others: minimum others score."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, MinLen
from numpy.typing import NDArray
from torch import Tensor, nn

from openbench.config.constraints import Count, NonNegative
from openbench.errors import ConfigError
from openbench.training.augment.augmentations import blend, draw_share
from openbench.training.base import Batch, Compat, EvalModel, StepInfo, TrainingData
from openbench.training.methods._parts import Extended, ReadLogits
from openbench.training.methods.cross_entropy import FineTuned, FineTuning

Groups = Count | Annotated[Sequence[Annotated[Sequence[Annotated[int, Ge(0)]], MinLen(1)]], MinLen(1)]


class Others(nn.Module):
    """From odds (n, c), each class's logit less that of its group's others, to log p_g(others) (n, G).

    Args:
        group_of: (c,) int64.
        groups: G.
    """

    def __init__(self, group_of: Tensor, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.group_of: Tensor
        self.register_buffer("group_of", group_of)

    def forward(self, odds: Tensor) -> Tensor:
        """Return log p_g(others) = −log(1 + Σ_{k∈g} exp a_k), (n, G) float32, of odds a (n, c)."""
        member = self.group_of[None, :] == torch.arange(self.groups, device=odds.device)[:, None]
        within = torch.where(member, odds.float()[:, None, :], float("-inf"))
        return -torch.logsumexp(torch.cat([torch.zeros_like(within[:, :, :1]), within], dim=2), dim=2)


class Grouped(Extended):
    """The network, and for each group of classes an output for all others."""

    others: nn.Linear
    groups: Others

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to the odds of each class against the others of its group (n, c)."""
        features, logits = self.read(images)
        return logits - self.others(features)[:, self.groups.group_of]


@dataclass(frozen=True)
class MOS(FineTuned):
    """Σ_g CE of the softmax over g's classes and "others", which is the target of every group without the label.

    Fine-tunes the weights of plain cross-entropy, with mixup and without weight decay. With a_k = z_k − o_g(k), the
    logit of a class less that of its group's others, p_g(others) = 1/(1 + Σ_{k∈g} exp a_k) and the loss is
    Σ_g log(1 + Σ_{k∈g} exp a_k) − a_y. The a are linear in the features, so they are the evaluated head. It
    predicts the class with the largest a, the best odds against its group's others. (The paper predicts the class with
    the largest probability within its group; that differs only where classes of one group compete.)

    Args:
        recipe: of the cross-entropy training that comes first.
        tuning: epochs and rate of the fine-tuning.
        groups: how many, found before the first step by k-means on the class means of the features; or the classes
            (numbers) of each, e.g. of a taxonomy.
        mixup: α ≥ 0 of Beta(α, α), λ drawn per batch; 0.1; 0 mixes nothing.
        compat: `openood` mixes the labels but not the images, as the code behind the published numbers does.

    Reference:
        Huang, Li: MOS: towards scaling out-of-distribution detection for large semantic space, CVPR 2021,
        arXiv:2105.01879; there the network was trained on other images, the head is new, and the rate falls in steps.
    """

    tuning: FineTuning = field(default_factory=lambda: FineTuning(epochs=30, lr=3e-3))
    groups: Groups = 2
    mixup: NonNegative = 0.1
    compat: Compat = "paper"

    reference: ClassVar[str] = "Huang, Li, CVPR 2021, arXiv:2105.01879"
    scorer: ClassVar[str] = "mos"

    def __post_init__(self) -> None:
        """Turn lists of classes into tuples, and check that each class is in one of them."""
        if isinstance(self.groups, int):
            return
        object.__setattr__(self, "groups", tuple(map(tuple, self.groups)))
        classes = [k for group in self.groups for k in group]
        allowed = "a list of lists of class numbers, each class once"
        self.require(len(set(classes)) == len(classes), "groups", allowed)

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Grouped:
        """Return the network with an output for the others of each group."""
        count = self.groups if isinstance(self.groups, int) else len(self.groups)
        groups = Others(assignment(self.groups, num_classes), count)
        return Grouped(model, others=nn.Linear(feature_dim, count), groups=groups)

    def parameter_groups(self, model: Grouped) -> list[dict[str, Any]]:
        """Return all parameters, without weight decay."""
        return [{"params": list(model.parameters()), "weight_decay": 0.0}]

    def on_epoch_start(self, model: Grouped, info: StepInfo, data: TrainingData) -> None:
        """Before the first step, find the groups unless the classes of each are configured."""
        if info.epoch == 0 and isinstance(self.groups, int):
            seed = int(torch.randint(0, 2**62, (), generator=info.generator))
            model.groups.group_of.copy_(clustered(class_means(model, data).cpu().numpy(), self.groups, seed))

    def loss(self, model: Grouped, batch: Batch) -> Tensor:
        """Return the loss of a batch, mixed first."""
        images, partners, share = batch.images, batch.labels, 1.0
        if self.mixup > 0:
            generator = batch.info.generator
            mixed = blend(images, draw_share(self.mixup, generator), generator)
            partners, share = batch.labels[mixed.partners.to(batch.labels.device)], mixed.share
            images = images if self.compat == "openood" else mixed.images
        odds: Tensor = model(images).float()
        normalisers = -model.groups(odds).sum(dim=1)
        first, second = (odds.gather(1, labels[:, None])[:, 0] for labels in (batch.labels, partners))
        return (normalisers - share * first - (1 - share) * second).mean()

    def eval_model(self, model: Grouped) -> EvalModel:
        """Return the network with odds as logits and the output `others` (n, G), log p_g(others)."""
        head, group_of = model.classifier, model.groups.group_of
        offset = 0 if head.bias is None else head.bias
        weight, bias = head.weight - model.others.weight[group_of], offset - model.others.bias[group_of]
        odds = model.with_head(weight, bias)
        return ReadLogits(odds.module, "others", copy.deepcopy(model.groups)).evaluated("others")


def class_means(model: Grouped, data: TrainingData) -> Tensor:
    """Return the mean feature (c, d) float64 of each class over all training images; zero for classes without."""
    model.eval()
    classes = len(model.groups.group_of)
    counts = torch.bincount(data.train.labels, minlength=classes)
    sums = torch.zeros(classes, model.others.in_features, dtype=torch.float64, device=counts.device)
    with torch.no_grad():
        for images, labels, _ in data.train.clean():
            sums.index_add_(0, labels, model.read(images)[0].double())
    return sums / counts.clamp(min=1)[:, None]


def assignment(groups: Groups, num_classes: int) -> Tensor:
    """Return each class's group (c,) int64; all zero where groups are yet to be found.

    Raises:
        ConfigError: the groups are not those of `num_classes` classes.
    """
    if isinstance(groups, int):
        if groups > num_classes:
            raise ConfigError(f"training.groups={groups} for {num_classes} classes — allowed: 1 to {num_classes}")
        return torch.zeros(num_classes, dtype=torch.int64)
    classes = sorted(k for group in groups for k in group)
    if classes != list(range(num_classes)):
        found = f"{len(classes)} classes up to {classes[-1]}"
        raise ConfigError(f"training.groups has {found} — put every class from 0 to {num_classes - 1} in one group")
    places = torch.empty(num_classes, dtype=torch.int64)
    for number, group in enumerate(groups):
        places[list(group)] = number
    return places


def clustered(means: NDArray[np.float64], groups: int, seed: int) -> Tensor:
    """Return the k-means cluster (c,) int64 of each class mean (c, d); groups are numbered by their lowest class."""
    # Imported here, since it takes half a second and other trainings do not need it.
    from sklearn.cluster import KMeans

    labels = KMeans(groups, n_init=10, random_state=seed % 2**32).fit(means).labels_.tolist()
    order = list(dict.fromkeys(labels))
    return torch.tensor([order.index(label) for label in labels])
