"""Outliers in training: exposure, energies, mixtures, two classifiers, groups that lend labels."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional

from openbench.config.constraints import Count, NonNegative, Positive, Probability
from openbench.training._images import ImageSet
from openbench.training.augment.augmentations import draw_share, pasted
from openbench.training.base import Batch, Compat, EvalModel, StepInfo, TrainingData, TrainingMethod
from openbench.training.methods._parts import Branched, Extended, uniform_cross_entropy
from openbench.training.methods.cross_entropy import FineTuned


@dataclass(frozen=True)
class OutlierExposure(TrainingMethod):
    """CE(z, y) + λ · mean over outliers of [log Σ exp z − mean_c z_c], the cross-entropy to the uniform distribution.

    ID images and outliers pass the network together and share batch-norm statistics, as in the authors' code. Unlike
    OpenOOD's, outliers are augmented as ID images are.

    Args:
        weight: λ ≥ 0; 0.5.
        outliers_per_step: 256, twice the ID images.

    Reference:
        Hendrycks, Mazeika, Dietterich: Deep anomaly detection with outlier exposure, ICLR 2019, arXiv:1812.04606.
    """

    weight: NonNegative = 0.5
    outliers_per_step: Count = 256

    reference: ClassVar[str] = "Hendrycks, Mazeika, Dietterich, ICLR 2019, arXiv:1812.04606"
    uses_outliers: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of ID images and outliers in one pass."""
        n = len(batch.images)
        logits = model(torch.cat([batch.images, batch.outliers]))
        return batch.cross_entropy(logits[:n]) + self.weight * uniform_cross_entropy(logits[n:])


@dataclass(frozen=True)
class EnergyBounded(FineTuned):
    """CE(z, y) + λ·{mean_ID max(0, E − m_in)² + mean_out max(0, m_out − E)²}, E(x) = −log Σ exp z.

    Args:
        recipe: of the cross-entropy training that comes first.
        tuning: epochs and rate of the fine-tuning.
        weight: λ ≥ 0; 0.1.
        m_in: bound on ID energies; −23 for CIFAR-10, −27 for CIFAR-100.
        m_out: bound on outlier energies, larger; −5.
        outliers_per_step: 256, twice the ID images.

    Reference:
        Liu et al.: Energy-based out-of-distribution detection, NeurIPS 2020, arXiv:2010.03759, section 3.2.
    """

    weight: NonNegative = 0.1
    m_in: float = -23.0
    m_out: float = -5.0
    outliers_per_step: Count = 256

    reference: ClassVar[str] = "Liu et al., NeurIPS 2020, arXiv:2010.03759"
    scorer: ClassVar[str] = "energy"
    uses_outliers: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check that the two energies are in order."""
        self.require(self.m_in < self.m_out, "m_in", f"a number < m_out ({self.m_out})")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of ID images and outliers in one pass."""
        n = len(batch.images)
        logits = model(torch.cat([batch.images, batch.outliers]))
        energies = -logits.logsumexp(dim=1)
        above = functional.relu(energies[:n] - self.m_in).square().mean()
        below = functional.relu(self.m_out - energies[n:]).square().mean()
        return batch.cross_entropy(logits[:n]) + self.weight * (above + below)


Mix = Literal["cutmix", "linear"]


@dataclass(frozen=True)
class MixOE(FineTuned):
    """CE(z(x), y) + β · CE(z(x̃), λ·onehot(y) + (1 − λ)/C), x̃ a mix of ID image (share λ) and outlier.

    Args:
        recipe: of the cross-entropy training that comes first.
        tuning: epochs and rate of the fine-tuning.
        mix: `cutmix` pastes a rectangle of the outlier, `linear` is λx + (1 − λ)x_out.
        alpha: λ ~ Beta(α, α), drawn per batch; 0.1 for linear mixing in OpenOOD, 1 for CutMix in the authors' code.
        weight: β ≥ 0; 1.

    Reference:
        Zhang et al.: Mixture outlier exposure: towards out-of-distribution detection in fine-grained environments,
        WACV 2023, arXiv:2106.03917.
    """

    mix: Mix = "cutmix"
    alpha: Positive = 0.1
    weight: NonNegative = 1.0

    reference: ClassVar[str] = "Zhang et al., WACV 2023, arXiv:2106.03917"
    uses_outliers: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of clean and mixed images in one pass."""
        mixed, share = self.mixed(batch.images, batch.outliers, batch.info.generator)
        logits = model(torch.cat([batch.images, mixed]))
        clean, faded = logits[: len(batch.images)], logits[len(batch.images) :]
        of_class = functional.cross_entropy(faded, batch.labels[: len(mixed)])
        uniform = uniform_cross_entropy(faded)
        return batch.cross_entropy(clean) + self.weight * (share * of_class + (1 - share) * uniform)

    def mixed(self, images: Tensor, outliers: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
        """Return mixtures (min(n, m), channels, h, w) of images and outliers, and the images' share λ."""
        count = min(len(images), len(outliers))
        images, outliers = images[:count], outliers[:count]
        if self.mix == "cutmix":
            return pasted(images, outliers, self.alpha, generator)
        share = draw_share(self.alpha, generator)
        return share * images + (1 - share) * outliers, share


def entropy(logits: Tensor, dim: int = 1) -> Tensor:
    """Return the mean over the other axis of −Σ p log p along `dim`, p = softmax(z) over classes."""
    log_p = functional.log_softmax(logits, dim=1)
    return -(log_p.exp() * log_p).sum(dim=dim).mean()


@dataclass(frozen=True)
class MCD(TrainingMethod):
    """CE(z₁, y) + CE(z₂, y), and late in training + λ·max(0, m − (H(p₁) − H(p₂))), H the mean entropy on outliers.

    The network's own head is the first classifier: it predicts the class, and every score except `mcd` uses it alone.

    Args:
        margin: m; 1.2.
        weight: λ ≥ 0; 1.
        start: share of the epochs without outliers; 0.9 (OpenOOD: epoch 90 of 100).
        compat: `openood` sums −p log p over the batch instead of the classes, as the code behind the published
            numbers does.

    Reference:
        Yu, Aizawa: Unsupervised out-of-distribution detection by maximum classifier discrepancy, ICCV 2019,
        arXiv:1908.04951. There outliers come with the unlabelled test images; here, as in OpenOOD, from a separate
        split.
    """

    margin: float = 1.2
    weight: NonNegative = 1.0
    start: Probability = 0.9
    compat: Compat = "paper"

    reference: ClassVar[str] = "Yu, Aizawa, ICCV 2019, arXiv:1908.04951"
    scorer: ClassVar[str] = "mcd"
    uses_outliers: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Branched:
        """Return the network with a second classifier."""
        return Branched(model, "second_head", nn.Linear(feature_dim, num_classes))

    def loss(self, model: Branched, batch: Batch) -> Tensor:
        """Return the loss of a batch; outliers pass through the network only once they count."""
        n, late = len(batch.images), batch.info.epoch >= self.start * batch.info.epochs
        images = torch.cat([batch.images, batch.outliers]) if late else batch.images
        features, first = model.read(images)
        second = model.branches["second_head"](features)
        loss = batch.cross_entropy(first[:n]) + batch.cross_entropy(second[:n])
        if not late:
            return loss
        axis = 0 if self.compat == "openood" else 1
        discrepancy = entropy(first[n:], axis) - entropy(second[n:], axis)
        return loss + self.weight * functional.relu(self.margin - discrepancy)

    def eval_model(self, model: Branched) -> EvalModel:
        """Return the network with the output `second_head` (n, c), the other classifier's logits."""
        return model.evaluated("branches.second_head")


_PER_GROUP = 10
_INITIAL_STD = 0.01
_ROUNDS = 20
# As a share of the largest variance: directions below it are rounding errors, which whitening would magnify.
_RANK = 1e-10


class Lent(nn.Module):
    """The classes lent to unlabelled images, kept from epoch to epoch, and the groups of all images in the present one.

    Attributes:
        labels: (m,) int64 on the CPU, −1 for none; m is known when training begins, and is saved with the state.
        groups: (n + m,) int64 of training images and unlabelled ones.
        weights: of their losses, likewise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.groups, self.weights = self.labels, torch.zeros(0)

    def get_extra_state(self) -> Tensor:
        """What is saved; groups and weights are made again in every epoch."""
        return self.labels

    def set_extra_state(self, state: Any) -> None:
        """Take what was saved."""
        self.labels = state


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

    def prepare(self, model: nn.Module, feature_dim: int, num_classes: int) -> Extended:
        """Return the network, a head with one output per group, and the labels that groups have lent."""
        return Extended(model, tell=nn.Linear(feature_dim, self.groups), lent=Lent())

    def on_epoch_start(self, model: Any, info: StepInfo, data: TrainingData) -> None:
        """Group all images, lend labels to outliers, and begin again with a fresh head for the groups."""
        lent, outliers = model.lent, cast(ImageSet, data.outliers)
        n, m = len(data.train), len(outliers)
        if info.epoch == 0 or len(lent.labels) != m:
            lent.labels = torch.full((m,), -1)
        seed = int(torch.randint(0, 2**31 - 1, (), generator=info.generator))
        features = torch.cat([_features(model, images) for images in (data.train, outliers)])
        groups = k_means(whitened(features, self.dims), max(1, min(self.groups, (n + m) // _PER_GROUP)), seed)
        lent.labels = pure_labels(groups, torch.cat([data.train.labels.cpu(), lent.labels]), self.purity)[n:]
        lent.groups, lent.weights = groups, balancing(groups)
        with torch.no_grad():
            initial = torch.randn(model.tell.weight.shape, generator=info.generator)
            model.tell.weight.copy_(_INITIAL_STD * initial)
            model.tell.bias.zero_()

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """Return the loss of a batch with its outliers."""
        features, logits = model.read(batch.images)
        other_features, other = model.read(batch.outliers)
        rows, lent = batch.outlier_rows, model.lent
        labels = lent.labels[rows].to(other.device)
        known = labels >= 0
        all_labels = torch.cat([batch.labels, labels[known]])
        loss = functional.cross_entropy(torch.cat([logits, other[known]]), all_labels)
        unknown = other[~known].float()
        # Where every outlier has been lent a label, there is none to average over.
        uniform = (unknown.logsumexp(dim=1) - unknown.mean(dim=1)).sum() / max(1, len(unknown))
        members = torch.cat([batch.rows, len(lent.groups) - len(lent.labels) + rows])
        groups, weights = (values[members].to(other.device) for values in (lent.groups, lent.weights))
        group_logits = model.tell(torch.cat([features, other_features]))
        group_loss = (weights * functional.cross_entropy(group_logits, groups, reduction="none")).mean()
        return loss + self.outlier_weight * uniform + self.group_weight * group_loss


@torch.no_grad()
def _features(model: Any, images: ImageSet) -> Tensor:
    """Features (n, d) of all images, without augmentation, in eval mode."""
    model.eval()
    return torch.cat([model.read(batch)[0].float() for batch, _, _ in images.clean()])


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
