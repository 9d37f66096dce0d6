"""Inputs of `fit`, maths and base classes that several methods share."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from openbench.core import FeatureSet, Field, Head, Method, Request, Role, by_rows
from openbench.errors import MethodError

FIT_BATCH = 4096  # rows converted to float64 at a time: few enough to stay near the processor
BLOCK = 512  # rows whose copy stays near the processor
_CONSTANT = 1e-6  # a spread below this part of the mean is the rounding of float32
_STRIP = 128  # columns of a scatter matrix filled at a time
_SHORT = 16  # classes below which torch.softmax over rows takes several times as long as over columns


def drawn(train: FeatureSet, most: int | None, seed: int) -> FeatureSet:
    """Return at most `most` samples, drawn without replacement and left in their order; None takes all."""
    if most is None or len(train) <= most:
        return train
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:most]
    return train[rows.sort().values]


def on_training(*fields: Field, **rest: Any) -> Request:
    """Return the request of a method that is fitted on ID training samples.

    Args:
        *fields: what is read of a sample.
        **rest: other arguments of the request.
    """
    return Request(fields=frozenset(fields), fit_on=Role.ID_TRAIN, **rest)


def true_labels(rows: FeatureSet) -> Tensor:
    """Return the labels (n,) of a batch."""
    return rows.labels


def plain_features(rows: FeatureSet) -> Tensor:
    """Return the features (n, d) of a batch."""
    return rows.features


def predictions(rows: FeatureSet) -> Tensor:
    """Return the predicted classes (n,) of a batch, by its logits."""
    return rows.logits.argmax(dim=1)


def class_means(train: FeatureSet, classes: int, of: Callable[[FeatureSet], Tensor] = true_labels) -> Tensor:
    """Return the mean feature of each class, (classes, d) float64; a class without samples takes the mean of all.

    Args:
        train: with features and what `of` reads.
        classes: number of classes of the head.
        of: the class (n,) of each row of a batch: `true_labels` or `predictions`.
    """
    d = train.features.shape[1]
    sums = torch.zeros(classes, d, dtype=torch.float64, device=train.device)
    counts = torch.zeros(classes, dtype=torch.float64, device=train.device)
    for rows in train.batches():
        index = of(rows)
        sums.index_add_(0, index, rows.features.double())
        counts += torch.bincount(index, minlength=classes)
    return torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], sums.sum(dim=0) / len(train))


def ranks_in_class(labels: Tensor) -> Tensor:
    """Return how many samples of the same class stand before each sample, (n,) int64."""
    by_class = labels.argsort(stable=True)
    sizes = torch.bincount(labels)
    ranks = torch.empty_like(by_class)
    ranks[by_class] = torch.arange(len(labels), device=labels.device) - (sizes.cumsum(0) - sizes)[labels[by_class]]
    return ranks


def balanced_draw(labels: Tensor, size: int, seed: int) -> Tensor:
    """Return the ascending indices (size,) of a draw with equally many samples per class, if there are enough."""
    labels = labels.cpu()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    # Shuffled samples sorted by their rank within their class: whole rounds of one per class come first.
    return order[ranks_in_class(labels[order]).argsort(stable=True)[:size]].sort().values


@dataclass(frozen=True)
class Moments:
    """First and second moments of n vectors, float64.

    Args:
        counts: (c,) vectors per class.
        sums: (c, d) sums per class, of vectors less `shift`.
        scatter: (d, d) Σ (x − shift)(x − shift)ᵀ over all vectors.
        shift: (d,) subtracted before accumulating, so that large means do not cost digits.
        where: the method, for errors.
    """

    counts: Tensor
    sums: Tensor
    scatter: Tensor
    shift: Tensor
    where: str

    @property
    def n(self) -> float:
        """The number of vectors."""
        return float(self.counts.sum())

    @property
    def present(self) -> Tensor:
        """(c,) bool: classes that have samples."""
        return self.counts > 0

    def class_means(self) -> Tensor:
        """Means (k, d) of the k classes that have samples."""
        return self.sums[self.present] / self.counts[self.present, None] + self.shift

    def mean(self) -> Tensor:
        """Mean (d,) of all vectors."""
        return self.sums.sum(dim=0) / self.n + self.shift

    def within_covariance(self) -> Tensor:
        """Biased covariance (d, d) around the class means: Σ (x − μ_y)(x − μ_y)ᵀ / n.

        Raises:
            MethodError: every sample lies on its class mean.
        """
        means = self.sums[self.present] / self.counts[self.present, None]
        within = _symmetric((self.scatter - (means.T * self.counts[self.present]) @ means) / self.n)
        if float(within.trace()) <= 1e-12 * float(self.scatter.trace()) / self.n:
            of = f"{int(self.n)} samples of {len(means)} classes"
            raise MethodError(f"{self.where}.fit: training features do not vary within classes ({of})")
        return within

    def total_covariance(self) -> Tensor:
        """Biased covariance (d, d) around the overall mean."""
        return self.covariance_around(self.mean())

    def covariance_around(self, origin: Tensor) -> Tensor:
        """Second moment Σ (x − o)(x − o)ᵀ / n around any origin o (d,)."""
        mean, o = self.sums.sum(dim=0) / self.n, origin.to(self.shift) - self.shift
        cross = torch.outer(mean, o)
        return _symmetric(self.scatter / self.n - cross - cross.T + torch.outer(o, o))


def moments(
    train: FeatureSet, where: str, vectors: Callable[[FeatureSet], Tensor] = plain_features, by_class: bool = True
) -> Moments:
    """Return the moments of a split in one streaming pass in float64.

    Args:
        train: with features, and labels if `by_class`.
        where: the method, for errors.
        vectors: the vectors (n, d) of a batch; its features by default.
        by_class: whether sums are per label; otherwise all vectors form one class.

    Raises:
        MethodError: nothing varies.
    """
    shift = vectors(next(train.batches(FIT_BATCH))).double().mean(dim=0)
    classes, d = int(train.labels.max()) + 1 if by_class else 1, len(shift)
    counts, sums, scatter = shift.new_zeros(classes), shift.new_zeros(classes, d), shift.new_zeros(d, d)
    buffer = torch.empty(0)
    for rows in train.batches(FIT_BATCH):
        batch = vectors(rows)
        if len(buffer) < len(batch):
            buffer = shift.new_empty(batch.shape)  # once: fresh memory takes longer than the copy
        x = buffer[: len(batch)].copy_(batch).sub_(shift)
        labels = rows.labels if by_class else torch.zeros(len(x), dtype=torch.int64, device=x.device)
        counts.add_(torch.bincount(labels, minlength=classes))
        sums.index_add_(0, labels, x)
        _add_scatter(scatter, x)
    result = Moments(counts, sums, torch.triu(scatter) + torch.triu(scatter, 1).T, shift, where)
    # Different float32 values differ by 6e-8 of their size or more; anything less is the rounding of sums.
    if bool((result.total_covariance().diagonal() <= (1e-12 * result.mean()).square()).all()):
        raise MethodError(f"{where}.fit: all {len(train)} training features are equal, so they have no covariance")
    return result


def _add_scatter(upper: Tensor, x: Tensor) -> None:
    """Add xᵀx (d, d) to a matrix of which only the upper triangle counts: little more than half the product."""
    for start in range(0, len(upper), _STRIP):
        upper[start : start + _STRIP, start:].addmm_(x[:, start : start + _STRIP].T, x[:, start:])


def whitening(covariance: Tensor) -> Tensor:
    """Return A (d, r) float64 with A Aᵀ = pinv(covariance); r is the rank.

    Directions whose variance is below 10 d ε of the largest carry rounding noise only and are left out, as in a
    pseudo-inverse: constant and duplicated features then change nothing.
    """
    values, vectors = torch.linalg.eigh(covariance)
    cut = 10 * len(values) * torch.finfo(values.dtype).eps * values[-1].clamp(min=0)
    large = values > cut
    return vectors[:, large] / values[large].sqrt()


def inverse_spread(mean: Tensor, covariance: Tensor) -> Tensor:
    """Return 1/σ (d,) of features with this mean and covariance; 0 where a feature does not vary."""
    spread = covariance.diagonal().clamp(min=0).sqrt()
    varies = spread > _CONSTANT * mean.abs()
    return torch.where(varies, 1 / torch.where(varies, spread, 1.0), 0.0)


def unit_features(rows: FeatureSet) -> Tensor:
    """Return features (n, d) scaled to unit length, float64."""
    features = rows.features.to(torch.float64, copy=True)
    lengths = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return features.div_(lengths.clamp(min=torch.finfo(lengths.dtype).tiny))


def row_normalise(x: Tensor) -> Tensor:
    """Return rows scaled to unit length; a zero row stays zero."""
    norms: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    return x / norms.clamp(min=torch.finfo(x.dtype).tiny)


def log_odds_against_top(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log Σ_{c≠ŷ} exp((z_c − z_ŷ)/T) − log(C − 1) (n,) float32, computed in float64.

    This is log((1 − p)/p) of p = max softmax(z/T), less what p = 1/C gives. It falls strictly with p, so it ranks as p
    does, and it resolves both ends: near p = 1, where p rounds to 1, and near p = 1/C, where high temperatures put all
    p.

    Raises:
        MethodError: fewer than two classes.
    """
    z = _two_classes(logits).to(torch.float64) / temperature
    top, index = z.max(dim=1, keepdim=True)
    others = (z - top).scatter(1, index, -torch.inf)
    return (torch.logsumexp(others, dim=1) - math.log(z.shape[1] - 1)).float()


def log_odds_by_class(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log Σ_{k≠c} exp((z_k − z_c)/T) − log(C − 1) (n, c) float32: its row minima are `log_odds_against_top`.

    Raises:
        MethodError: fewer than two classes.
    """
    z = _two_classes(logits).to(torch.float64) / temperature
    log_p = torch.log_softmax(z, dim=1)
    odds = torch.log1p(-log_p.exp()) - log_p - math.log(z.shape[1] - 1)
    # Where the largest p rounds to 1, 1 − p has no digits left; all other classes have p ≤ 1/2.
    top = z.argmax(dim=1, keepdim=True)
    return odds.float().scatter(1, top, log_odds_against_top(logits, temperature)[:, None])


def of_log_odds(odds: Tensor) -> Tensor:
    """Return the probabilities (n, c) float64 whose `log_odds_by_class` are `odds`."""
    return torch.sigmoid(-odds.double() - math.log(odds.shape[1] - 1))


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax of each row (n, c) in the dtype of `logits`; short rows are handed to torch as columns."""
    if logits.shape[1] >= _SHORT:
        return torch.softmax(logits, dim=1)
    return torch.softmax(logits.T.contiguous(), dim=0).T


def log_softmax(logits: Tensor) -> Tensor:
    """Return the logarithms of `softmax` in the dtype of `logits`, finite where probabilities underflow."""
    if logits.shape[1] >= _SHORT:
        return torch.log_softmax(logits, dim=1)
    return torch.log_softmax(logits.T.contiguous(), dim=0).T


def max_softmax(logits: Tensor) -> Tensor:
    """Return max softmax(z) (n,) in the dtype of `logits`; as in softmax itself, float32 rounds to 1 at leads above 16.

    1 / Σ exp(z − max z) takes a quarter of the time of torch.softmax on rows of few classes.
    """
    behind: Tensor = logits - logits.amax(dim=1, keepdim=True)
    return behind.exp_().sum(dim=1).reciprocal_()


def softmax_shortfall(logits: Tensor, temperature: float) -> Tensor:
    """Return 1/C − max softmax(z/T) (n,) float32, computed in float64.

    At high temperatures all maxima lie just above 1/C and differ in digits that float32 has around 0 only.
    """
    return (1 / logits.shape[1] - max_softmax(logits.to(torch.float64) / temperature)).float()


def mean_feature(train: FeatureSet) -> Tensor:
    """Return the mean feature (d,) float64 of a split, read in batches."""
    # Made once: fresh memory for each part takes longer than the copy.
    buffer = torch.empty(BLOCK, train.features.shape[1], dtype=torch.float64, device=train.device)
    total, ones = buffer.new_zeros(buffer.shape[1]), buffer.new_ones(BLOCK)
    for rows in train.batches(FIT_BATCH):
        for part in torch.split(rows.features, BLOCK):
            # A product with ones: summing columns in float64 takes ten times as long.
            total.addmv_(buffer[: len(part)].copy_(part).T, ones[: len(part)])
    return total / len(train)


def sorted_rows(x: Tensor) -> Tensor:
    """Return x (n, m) with each row in ascending order; on a CPU numpy takes a tenth of torch's time."""
    return torch.from_numpy(np.sort(x.numpy(), axis=1)) if x.device.type == "cpu" else x.sort(dim=1).values


def percentiles_of_all(values: Tensor, percentiles: Sequence[float]) -> list[float]:
    """Return percentiles of all entries, interpolated linearly between order statistics."""
    return np.percentile(values.cpu().numpy().reshape(-1), percentiles).tolist()


def gain(total: Tensor, largest: Tensor) -> Tensor:
    """Return exp(total/largest), 1 where `largest` is 0.

    The exponent is at most 60, whose power float32 still holds: signed features reach it, where the largest ones cancel
    or are negative.
    """
    return torch.where(largest == 0, 1.0, (total / largest).clamp(max=60.0).exp())


def largest_kept(dim: int, percentile: float) -> int:
    """Return how many of `dim` entries stay when a percentile is removed: d − round(d·p/100), halves to even."""
    return dim - round(dim * percentile / 100)


def _two_classes(logits: Tensor) -> Tensor:
    if logits.shape[1] < 2:
        raise MethodError("odds between classes need two classes, the classifier has 1 class — use another score")
    return logits


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, which detectors of other libraries draw from, and put them back."""
    state = np.random.get_state()  # noqa: NPY002 - what they draw from
    with torch.random.fork_rng(devices=[]):
        try:
            np.random.seed(seed)  # noqa: NPY002
            # torch.manual_seed keeps a stack trace per call for each kind of device that is not there.
            (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(seed)
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002


class Learning(Method):
    """A method that learns, from training features unless `needs` names others; `fit` checks that they are there."""

    needs: ClassVar[Request] = on_training(Field.FEATURES)

    @abstractmethod
    def _learn(self, train: Any, head: Any) -> None:
        """Learn from the split of the request, a FeatureSet, and from the Head; each is None where it names none."""

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn from the split and the classifier that the request names; return self.

        Raises:
            MethodError: one of them is missing.
        """
        where = f"{type(self).__name__}.fit"
        if self.request.fit_on is not None and train is None:
            raise MethodError(f"{where}: needs the split named by its request, found None — pass a FeatureSet")
        if self.request.head and head is None:
            raise MethodError(f"{where}: needs the classifier head, found None — pass head=Head(W, b)")
        self._learn(train, head)
        return self


class NearestMean(Learning):
    """The squared Mahalanobis distance to the nearest class mean, one covariance shared by all classes."""

    @abstractmethod
    def _vectors(self, x: FeatureSet) -> Tensor:
        """The vectors (n, d) that are compared with the means."""

    def _learn_means(self, m: Moments) -> None:
        """Learn class means and the shared covariance from the moments of training vectors."""
        whiten, center = whitening(m.within_covariance()), m.mean()
        self.center_ = center.float()
        self.whiten_ = whiten.float()
        self.means_ = ((m.class_means() - center) @ whiten).float()
        self.present_ = m.present.cpu()

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        square, to_means = self._distances(x)
        return square + to_means.amin(dim=1)

    def class_scores(self, x: FeatureSet) -> Tensor | None:
        """Return the squared distance to each class mean, (n, c) float32; +inf for classes absent from training."""
        square, to_means = self._distances(x)
        by_class = to_means.new_full((len(x), len(self.present_)), float("inf"))
        by_class[:, self.present_.to(by_class.device)] = square[:, None] + to_means
        return by_class

    def _distances(self, x: FeatureSet) -> tuple[Tensor, Tensor]:
        """‖w‖² (n,) and ‖m‖² − 2 w·m (n, k) for the k classes present: their sum is ‖w − m‖²."""
        center, vectors = self.learnt("center_"), self._vectors(x)
        white = by_rows(vectors - center.to(vectors.device), self.whiten_.to(vectors.device).T)
        return white.square().sum(dim=1), to_means(white, self.means_.to(vectors.device))


def to_means(white: Tensor, means: Tensor) -> Tensor:
    """Return ‖m‖² − 2 w·m (n, k) of whitened vectors w (n, r) and means m (k, r): one product, no differences."""
    return means.square().sum(dim=1) - 2 * white @ means.T
