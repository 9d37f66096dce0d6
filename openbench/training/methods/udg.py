"""Outliers that may include ID images: groups in feature space lend them labels, and are themselves classified."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, NonNegative
from openbench.training._images import ImageSet
from openbench.training.base import Batch, StepInfo, TrainingData, TrainingMethod, features_and_logits
from openbench.training.parts._shared import outliers_of

_PER_GROUP = 10
_INITIAL_STD = 0.01
_ROUNDS = 20
# As a share of the largest variance: directions below it are rounding errors, which whitening would magnify.
_RANK = 1e-10


class Lent(nn.Module):
    """The classes lent to unlabelled images, kept from epoch to epoch, and the groups of all images in the present one.

    Attributes:
        labels: (m,) int64 on the CPU, −1 for none; m is known when training begins, and is saved with the state.
        groups: of training images (n,) and of unlabelled ones (m,).
        weights: of their losses, likewise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.groups: tuple[Tensor, Tensor] = (self.labels, self.labels)
        self.weights: tuple[Tensor, Tensor] = (torch.zeros(0), torch.zeros(0))

    def get_extra_state(self) -> Tensor:
        """What is saved; groups and weights are made again in every epoch."""
        return self.labels

    def set_extra_state(self, state: Any) -> None:
        """Take what was saved."""
        self.labels = state


class Grouped(nn.Module):
    """The network, a head with one output per group, and the labels that groups have lent."""

    def __init__(self, network: nn.Module, feature_dim: int, groups: int) -> None:
        super().__init__()
        self.network = network
        self.tell = nn.Linear(feature_dim, groups)
        self.lent = Lent()

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c)."""
        return self.network(images)


@dataclass(frozen=True)
class UDG(TrainingMethod):
    """CE(z, y) over images with a label, true or lent, + λ·OE over the other outliers + μ·mean w_g CE(A f, g) over all.

    At the start of every epoch the features of training images and outliers are whitened in their principal directions
    and grouped by k-means. Outliers in a group of which more than `purity` has one and the same class are lent that
    class for the epoch; last epoch's loans count in it. OE is log Σ exp z − mean_c z_c. The head A, fresh in every
    epoch, classifies the groups g, with weights w_g ∝ 1/√size of mean 1 over groups. Training images and outliers pass
    through the network one after the other, as in the authors' code.

    Args:
        outlier_weight: λ ≥ 0; 0.5.
        group_weight: μ ≥ 0; 0.1.
        groups: of k-means; 1000, and no more than one for ten images.
        dims: principal directions kept; 256.
        purity: in [0.5, 1]; 0.8. 1 lends nothing.
        outliers_per_step: 256, twice the ID images.

    Reference:
        Yang et al.: Semantically coherent out-of-distribution detection, ICCV 2021, arXiv:2108.11941. The authors' code
        and OpenOOD's also have a doubled OE weight in groups made of outliers; the branch that gives it is never
        reached, as both set its threshold to that of `purity`, so it is left out here. Unlike OpenOOD's, outliers are
        augmented as ID images are, and groups without members have no part in the mean of w_g.
    """

    outlier_weight: NonNegative = 0.5
    group_weight: NonNegative = 0.1
    groups: Count = 1000
    dims: Count = 256
    purity: Annotated[float, Interval(ge=0.5, le=1)] = 0.8
    outliers_per_step: Count = 256

    reference: ClassVar[str] = "Yang et al., ICCV 2021, arXiv:2108.11941"
    uses_outliers: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Grouped:
        """Return the network with a head for the groups."""
        return Grouped(model, feature_dim, self.groups)

    def on_epoch_start(self, model: Grouped, info: StepInfo, data: TrainingData) -> None:
        """Group all images, lend labels to outliers, and begin again with a fresh head for the groups."""
        lent, outliers = model.lent, data.outliers
        if outliers is None:
            raise TypeError("UDG.on_epoch_start needs outliers — pass TrainingData with both sets")
        n, m = len(data.train), len(outliers)
        if info.epoch == 0 or len(lent.labels) != m:
            lent.labels = torch.full((m,), -1)
        seed = int(torch.randint(0, 2**31 - 1, (), generator=info.generator))
        features = torch.cat([_features(model, images) for images in (data.train, outliers)])
        groups = k_means(whitened(features, self.dims), max(1, min(self.groups, (n + m) // _PER_GROUP)), seed)
        weights = balancing(groups)
        lent.labels = pure_labels(groups, torch.cat([data.train.labels.cpu(), lent.labels]), self.purity)[n:]
        lent.groups, lent.weights = (groups[:n], groups[n:]), (weights[:n], weights[n:])
        head = model.tell
        initial = _INITIAL_STD * torch.randn(head.weight.shape, generator=info.generator)
        with torch.no_grad():
            head.weight.copy_(initial)
            head.bias.zero_()

    def loss(self, model: Grouped, batch: Batch) -> Tensor:
        """Return the loss of a batch with its outliers."""
        features, logits = features_and_logits(model.network, batch.images)
        other_features, other = features_and_logits(model.network, outliers_of(batch))
        rows = batch.outlier_rows
        lent = model.lent.labels[rows].to(other.device)
        known = lent >= 0
        labels = torch.cat([batch.labels, lent[known]])
        loss = functional.cross_entropy(torch.cat([logits, other[known]]), labels)
        unknown = other[~known].float()
        # Where every outlier has been lent a label, there is none to average over.
        uniform = (unknown.logsumexp(dim=1) - unknown.mean(dim=1)).sum() / max(1, len(unknown))
        groups, weights = (
            torch.cat([of_train[batch.rows], of_outliers[rows]]).to(other.device)
            for of_train, of_outliers in (model.lent.groups, model.lent.weights)
        )
        group_logits = model.tell(torch.cat([features, other_features]))
        group_loss = (weights * functional.cross_entropy(group_logits, groups, reduction="none")).mean()
        return loss + self.outlier_weight * uniform + self.group_weight * group_loss


def _features(model: Grouped, images: ImageSet) -> Tensor:
    """Features (n, d) of all images, without augmentation, in eval mode."""
    model.eval()
    with torch.no_grad():
        parts = [features_and_logits(model.network, batch)[0].float() for batch, _, _ in images.clean()]
    return torch.cat(parts)


def whitened(features: Tensor, dims: int) -> Tensor:
    """Return features in their first principal directions, each scaled to variance 1, then every row to unit length.

    Args:
        features: (n, d).
        dims: directions kept at most; fewer where the features span fewer.

    Returns:
        (n, min(dims, rank)) float32.
    """
    centred = features.double() - features.double().mean(dim=0)
    variance, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    count = min(dims, max(1, int((variance > _RANK * variance[-1]).sum())))
    scale = variance[-count:].clamp(min=torch.finfo(variance.dtype).tiny).rsqrt()
    return functional.normalize(centred @ directions[:, -count:] * scale, dim=1).float()


def k_means(points: Tensor, count: int, seed: int) -> Tensor:
    """Return the group (n,) int64 of each point by Lloyd's algorithm, 20 rounds on all points.

    Args:
        points: (n, d).
        count: groups, at most n.
        seed: of the first centres.
    """
    import faiss

    array = points.cpu().float().contiguous().numpy()
    # By default faiss would use 256 points per group only, and complain about fewer than 39.
    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": max(1, len(array))}
    clusters = faiss.Kmeans(array.shape[1], count, niter=_ROUNDS, seed=seed, **limits)
    clusters.train(array)
    return torch.from_numpy(clusters.index.search(array, 1)[1][:, 0])


def pure_labels(groups: Tensor, labels: Tensor, purity: float) -> Tensor:
    """Return for each member (n,) the label that more than a share `purity` of its group has, or −1.

    Args:
        groups: (n,).
        labels: (n,), −1 where there is none; counts as a separate label.
        purity: in [0.5, 1], so that at most one label has it.
    """
    width = int(labels.max()) + 2
    table = torch.bincount(groups * width + labels + 1, minlength=(int(groups.max()) + 1) * width).view(-1, width)
    most, label = table.max(dim=1)
    return torch.where(most > purity * table.sum(dim=1), label - 1, -1)[groups]


def balancing(groups: Tensor) -> Tensor:
    """Return the weight of each member (n,): 1/√size of its group, over the mean of that over groups with members."""
    sizes = torch.bincount(groups).double()
    weights = sizes.clamp(min=1).rsqrt()
    return (weights / weights[sizes > 0].mean())[groups].float()
