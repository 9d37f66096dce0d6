"""OpenMax: the probability of an unknown class."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

import torch
from annotated_types import Ge
from torch import Tensor

from openbench.config.constraints import Count
from openbench.core import FeatureSet, Field, Head, Method, Request, Role
from openbench.errors import MethodError
from openbench.methods._stats import ranks_in_class, training

_SHIFT = 10_000.0  # libmr's translation of the tail, with which published models were fitted
_LARGEST_SHAPE = 1e12


@dataclass
class OpenMax(Method):
    """Log-odds of the unknown class, which collects what far logits lose.

    score(x) = u − log Σ_c exp z'_c, z'_c = z_c (1 − ω_c W_c(‖z − μ_c‖)), u = Σ_c (z_c − z'_c), ω = 1, (α−1)/α, …, 1/α
    for the α largest logits and 0 for others, W_c a Weibull distribution of the `tail` largest distances of correctly
    classified training samples of class c to their mean logit vector μ_c.

    Args:
        alpha: α, how many of the largest logits are revised; cut to the number of classes; 3 by default.
        tail: largest distances per class that are fitted; 20 by default, as in the paper.

    Raises:
        MethodError: a hyper-parameter out of range, no training split, or no correctly classified sample.

    Reference: Bendale & Boult, Towards Open Set Deep Networks, CVPR 2016, arXiv 1511.06233. The score is the logit of
    the paper's probability exp u / (Σ exp z' + exp u): the same order, without overflow and without ties at 0 and 1.
    A class without a correctly classified sample is never revised (OpenOOD: an error).
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.LOGITS, Field.LABELS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "Bendale & Boult, CVPR 2016, arXiv 1511.06233"

    alpha: Count = 3
    tail: Annotated[int, Ge(2)] = 20

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Learn mean logits and the tails of distances from training logits (n, c) and labels (n,)."""
        train = training(train, "OpenMax")
        classes = train.logits.shape[1]
        sums = torch.zeros(classes, classes, dtype=torch.float64, device=train.device)
        counts = torch.zeros(classes, dtype=torch.int64, device=train.device)
        for logits, labels in _correct(train):
            sums.index_add_(0, labels, logits)
            counts += torch.bincount(labels, minlength=classes)
        if not bool(counts.any()):
            raise MethodError(
                f"OpenMax.fit: none of {len(train)} training samples is classified correctly — check that logits and "
                "labels belong to the same classes"
            )
        self.means_ = sums / counts.clamp(min=1)[:, None]
        # Allocated once: parts between large temporaries would keep their memory from being freed.
        distances, labels, done = sums.new_empty(int(counts.sum())), counts.new_empty(int(counts.sum())), 0
        for z, y in _correct(train):
            part = slice(done, done + len(y))
            distances[part], labels[part] = torch.linalg.vector_norm(z - self.means_[y], dim=1), y
            done += len(y)
        tails = _largest_per_class(distances, labels, classes, self.tail)
        self.start_ = tails.nan_to_num(nan=torch.inf).amin(dim=1)
        self.shape_, self.log_scale_ = _weibull(tails - self.start_[:, None])
        self.known_ = counts > 0
        return self

    def score(self, x: FeatureSet) -> Tensor:
        """Return the scores (n,) float32; larger = more OOD."""
        means = self.learnt("means_").to(x.logits.device)
        z = x.logits.double()
        alpha = min(self.alpha, z.shape[1])
        top, index = z.topk(alpha, dim=1)
        distance = torch.cdist(z, means).gather(1, index)
        rank = 1 - torch.arange(alpha, dtype=z.dtype, device=z.device) / alpha
        removed = top * rank * self._outlying(distance, index)
        revised = z.scatter(1, index, top - removed)
        return (removed.sum(dim=1) - torch.logsumexp(revised, dim=1)).float()

    def _outlying(self, distance: Tensor, index: Tensor) -> Tensor:
        """W_c of the distances (n, α) to the classes `index`."""
        start, shape, log_scale, known = (
            getattr(self, name).to(index.device)[index] for name in ("start_", "shape_", "log_scale_", "known_")
        )
        # Far below the tail, where the translation does not reach, the distribution is 0.
        log_t = torch.log1p(torch.where(known, ((distance - start) / _SHIFT).clamp(min=-1), 0.0))
        return torch.where(known, -torch.expm1(-torch.exp(shape * (log_t - log_scale))), 0.0)


def _correct(train: FeatureSet) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits (n, c) float64 and labels (n,) of correctly classified samples, batch by batch."""
    for rows in train.batches():
        right = rows.logits.argmax(dim=1) == rows.labels
        yield rows.logits[right].double(), rows.labels[right]


def _largest_per_class(values: Tensor, labels: Tensor, classes: int, size: int) -> Tensor:
    """The `size` largest values of each class (c, size); NaN where a class has fewer."""
    order = values.argsort(descending=True)
    values, labels = values[order], labels[order]
    rank = ranks_in_class(labels)
    largest = values.new_full((classes, size), torch.nan)
    among = rank < size
    largest[labels[among], rank[among]] = values[among]
    return largest


def _weibull(excess: Tensor) -> tuple[Tensor, Tensor]:
    """Maximum-likelihood shape and log scale (c,) of `excess` + shift, row by row; NaN entries are left out.

    The likelihood equation Σ t^k log t / Σ t^k − mean log t = 1/k has one root in k, as its left side grows and its
    right side falls. A row without spread has none: its distribution is the limit, a step.
    """
    present = ~excess.isnan()
    log_t = torch.log1p(excess.nan_to_num(nan=0.0).clamp(min=0, max=1e300) / _SHIFT)
    mean = (log_t * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)
    low, high = torch.zeros_like(mean), torch.full_like(mean, torch.log(torch.tensor(_LARGEST_SHAPE)).item())
    for _ in range(80):
        middle = (low + high) / 2
        shape = middle.exp()[:, None]
        weight = torch.softmax((shape * log_t).masked_fill(~present, -1e300), dim=1)
        rising = (weight * log_t).sum(dim=1) - mean > 1 / middle.exp()
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    shape = ((low + high) / 2).exp()
    powers = (shape[:, None] * log_t).masked_fill(~present, -1e300)
    log_scale = (torch.logsumexp(powers, dim=1) - present.sum(dim=1).clamp(min=1).log()) / shape
    return shape, log_scale
