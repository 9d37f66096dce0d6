"""Maths that several methods share: streamed moments, whitening with a relative cut-off, stable softmax forms."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.errors import MethodError

FIT_BATCH = 4096  # rows converted to float64 at a time: few enough to stay near the processor
BLOCK = 512  # rows whose copy stays near the processor
_STRIP = 128  # columns of a scatter matrix filled at a time
_SHORT = 16  # classes below which torch.softmax over rows takes several times as long as over columns
Scale = Literal["log_odds", "probability"]


@dataclass(frozen=True)
class Moments:
    """First and second moments of n vectors, float64.

    Args:
        counts: (c,) vectors per class.
        sums: (c, d) sums per class, of vectors less `shift`.
        scatter: (d, d) Σ (x − shift)(x − shift)ᵀ over all vectors.
        shift: (d,) subtracted before accumulating, so that large means do not cost digits.
        where: the method that they are for; errors name it.
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
            raise MethodError(
                f"{self.where}.fit: training features do not vary within classes — {int(self.n)} samples of "
                f"{len(means)} classes — distances to class means need classes of several different samples"
            )
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
    train: FeatureSet,
    where: str,
    vectors: Callable[[FeatureSet], Tensor] = lambda rows: rows.features,
    by_class: bool = True,
) -> Moments:
    """Return the moments of a split in one streaming pass in float64.

    Args:
        train: with features, and labels if `by_class`.
        where: the method that they are for; errors name it.
        vectors: what is taken from each batch, (n, d); features by default.
        by_class: whether sums are kept per label; otherwise all vectors form one class.

    Raises:
        MethodError: the split is empty, or nothing varies.
    """
    counts = sums = scatter = shift = held = None
    for rows in train.batches(FIT_BATCH):
        given = vectors(rows)
        if held is None or len(held) < len(given):
            held = given.new_empty(given.shape, dtype=torch.float64)  # once: fresh memory takes longer than the copy
        x = held[: len(given)].copy_(given)
        labels = rows.labels if by_class else torch.zeros(len(x), dtype=torch.int64, device=x.device)
        if shift is None or counts is None or sums is None or scatter is None:
            shift = x.mean(dim=0)
            counts, sums = x.new_zeros(1), x.new_zeros(1, x.shape[1])
            scatter = x.new_zeros(x.shape[1], x.shape[1])
        classes = max(len(counts), int(labels.max()) + 1)
        counts, sums = _grown(counts, classes), _grown(sums, classes)
        x.sub_(shift)
        counts += torch.bincount(labels, minlength=classes)
        sums.index_add_(0, labels, x)
        _add_scatter(scatter, x)
    if shift is None or counts is None or sums is None or scatter is None:
        raise MethodError(f"{where}.fit: nothing to fit on — the split is empty — pass a split with samples")
    result = Moments(counts, sums, torch.triu(scatter) + torch.triu(scatter, 1).T, shift, where)
    # Different float32 values differ by 6e-8 of their size or more; anything less is the rounding of sums.
    if bool((result.total_covariance().diagonal() <= (1e-12 * result.mean()).square()).all()):
        raise MethodError(
            f"{where}.fit: all {len(train)} training features are equal — no covariance — look at the checkpoint"
        )
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
    keep = values > cut
    whitened: Tensor = vectors[:, keep] / values[keep].sqrt()
    return whitened


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
    # Made once: between what is kept and what is freed, malloc would take new memory for each part.
    held = torch.empty(BLOCK, train.features.shape[1], dtype=torch.float64, device=train.device)
    total, ones = held.new_zeros(held.shape[1]), held.new_ones(BLOCK)
    for rows in train.batches(FIT_BATCH):
        for part in torch.split(rows.features, BLOCK):
            # A product with ones: summing columns in float64 takes ten times as long.
            total.addmv_(held[: len(part)].copy_(part).T, ones[: len(part)])
    return total / len(train)


def sorted_rows(x: Tensor) -> Tensor:
    """Return x (n, m) with each row in ascending order; on a CPU numpy takes a tenth of torch's time."""
    return torch.from_numpy(np.sort(x.numpy(), axis=1)) if x.device.type == "cpu" else x.sort(dim=1).values


def percentiles_of_all(values: Tensor, percentiles: Sequence[float]) -> list[float]:
    """Return percentiles of all entries, interpolated linearly between order statistics."""
    found: list[float] = np.percentile(values.cpu().numpy().reshape(-1), percentiles).tolist()
    return found


def gain(total: Tensor, kept: Tensor) -> Tensor:
    """Return exp(total/kept), 1 where kept = 0.

    The exponent is held at 60, whose power products in float32 still carry: signed features get there, where those that
    are kept cancel or are negative.
    """
    return torch.where(kept == 0, 1.0, (total / kept).clamp(max=60.0).exp())


def largest_kept(dim: int, percentile: float) -> int:
    """Return how many of `dim` entries stay when a percentile is removed: d − round(d·p/100), halves to even."""
    return dim - round(dim * percentile / 100)


def _two_classes(logits: Tensor) -> Tensor:
    if logits.shape[1] < 2:
        raise MethodError("odds between classes: the classifier has 1 class — at least 2 needed — use another score")
    return logits


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2


def _grown(x: Tensor, rows: int) -> Tensor:
    return x if len(x) >= rows else torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])


def logit_origin(head: Head) -> Tensor:
    """Return u = −W⁺b (d,) float64.

    Singular values below 1e-5 of the largest count as zero: rows of W that sum to zero lower its rank, and the inverse
    of what rounding leaves there would be noise.
    """
    inverse: Tensor = torch.linalg.pinv(head.weight.double(), rtol=1e-5)
    return -inverse @ head.bias.double()


def minor_directions(train: FeatureSet, where: str, origin: Tensor, dim: int) -> Tensor:
    """Return the eigenvectors (d, d − dim) float64 of Σ (f − u)(f − u)ᵀ that belong to the smallest eigenvalues."""
    covariance = moments(train, where, by_class=False).covariance_around(origin)
    _, vectors = torch.linalg.eigh(covariance)  # ascending
    minor: Tensor = vectors[:, : len(origin) - dim]
    return minor


def shortfall(logits: Tensor, temperature: float, scale: Scale) -> Tensor:
    """Return how far p = max softmax(z/T) is from 1 (n,) float32: as log((1 − p)/p) up to a constant, or 1/C − p."""
    if scale == "probability":
        return softmax_shortfall(logits, temperature)
    return log_odds_against_top(logits, temperature)


def shortfall_by_class(logits: Tensor, temperature: float, scale: Scale) -> Tensor:
    """Return the odds against each class, or 1/C − softmax(z/T), (n, c) float32, on the scale of `shortfall`."""
    if scale == "log_odds":
        return log_odds_by_class(logits, temperature)
    p = torch.softmax(logits.double() / temperature, dim=1)
    return (1 / p.shape[1] - p).float()


def probabilities_by_class(scores: Tensor, scale: Scale) -> Tensor:
    """Return softmax(z/T) (n, c) of class scores on the scale of `shortfall`."""
    return of_log_odds(scores) if scale == "log_odds" else 1 / scores.shape[1] - scores
