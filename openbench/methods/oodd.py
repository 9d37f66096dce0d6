"""A dictionary of the test images that look most OOD so far."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from openbench.config.constraints import Count, Share
from openbench.core import FeatureSet, Field, Head, Request, Role, StreamingMethod, by_rows
from openbench.methods._bank import Bank
from openbench.methods._stats import max_softmax, ranks_in_class, row_normalise, training

_BLOCK = 256  # images of a stream whose turns are taken at once


@dataclass
class Dictionary:
    """The entries of OODD's dictionary, in the order in which they came.

    Args:
        features: (q, d) unit features.
        similarity: (q,) to the ID bank: the lower, the longer it stays.
    """

    features: Tensor
    similarity: Tensor


@dataclass(frozen=True)
class _Rows:
    """Some rows of a tensor that may be memory-mapped, read when they are asked for."""

    whole: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        return self.whole[self.rows[index]]


@dataclass
class OODD(StreamingMethod[Dictionary]):
    """Similarity to the test images that looked most OOD so far, less the one to confident training images.

    score(x_i) = cos_{(k₂)}(f̂_i, D_i) − cos_{(k₁)}(f̂_i, B), cos_{(k)}(f̂, S) the k-th largest cosine to the features in
    S; B the most confident training samples, the same number of each class; D_i those `queue` of x_1 … x_i whose
    cos_{(k₁)} to B is lowest.

    Args:
        k1: which neighbour in the bank; 5 (CIFAR-10), 10 (CIFAR-100), 100 (ImageNet).
        k2: which neighbour in the dictionary, where an image that is in it is its own first; 5.
        share: of the training samples that are in the bank; ½.
        queue: entries of the dictionary; 128 (CIFAR-10), 512 (CIFAR-100), 2048 (ImageNet).

    Raises:
        MethodError: no training split, or fewer than k1 samples in the bank.

    Reference: Yang et al., OODD: Test-time Out-of-Distribution Detection with Dynamic Dictionary, CVPR 2025,
    arXiv 2503.10468. The official code puts 512 images into the dictionary before it scores any of them, so that a
    score depends on later images; here each image is put in and scored before the next. While the dictionary has fewer
    than k2 entries, the last of them counts. Training images are seen once, not in several augmentations of which the
    most confident is kept, and there are no generated outliers to begin with (the released scripts use none either).
    The bank is read from the cached training features, so it may be larger than memory.
    """

    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LOGITS, Field.LABELS}), fit_on=Role.ID_TRAIN
    )
    reference: ClassVar[str] = "Yang et al., CVPR 2025, arXiv 2503.10468"

    k1: Count = 5
    k2: Count = 5
    share: Share = 0.5
    queue: Count = 128

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        """Choose the bank among training features (n, d), by logits (n, c) and labels (n,)."""
        train = training(train, "OODD")
        confidence = torch.cat([max_softmax(rows.logits.double()) for rows in train.batches()]).cpu()
        chosen = _most_confident(confidence, train.labels.cpu(), int(self.share * len(train)))
        self.require(self.k1 <= len(chosen), "k1", f"1 to {len(chosen)}, the number of samples in the bank")
        self.bank_ = Bank(_Rows(train.features, chosen), unit=True)
        self.dim_ = train.features.shape[1]
        return self

    def memory(self) -> Dictionary:
        """Return an empty dictionary."""
        self.learnt("bank_")
        return Dictionary(torch.empty(0, self.dim_), torch.empty(0))

    def score_next(self, x: FeatureSet, memory: Dictionary) -> Tensor:
        """Return the scores (n,) float32 of the next n images, each after it has had its turn in the dictionary."""
        bank: Bank = self.learnt("bank_")  # type: ignore[assignment]
        unit = row_normalise(x.features)
        # For all images at once, since the bank is read once for them. Unit vectors at squared distance s have cosine
        # 1 − s/2.
        similarity = 1 - bank.kth_squared_distance(unit, self.k1) / 2
        blocks = zip(torch.split(unit, _BLOCK), torch.split(similarity, _BLOCK), strict=True)
        return torch.cat([self._in_turn(u, s, memory) for u, s in blocks]) - similarity

    def _in_turn(self, unit: Tensor, similarity: Tensor, memory: Dictionary) -> Tensor:
        """cos_{(k₂)}(f̂_i, D_i) (n,) for each image of a block, all turns at once; the memory becomes D_n."""
        former = memory.features.to(unit.device)
        entries = torch.cat([former, unit])
        key = torch.cat([memory.similarity.to(unit.device), similarity])
        came = torch.arange(len(entries), device=unit.device)
        turn = came[len(former) :]  # the position of each image of the block among all entries
        # Whether entry k goes before entry j: it is less similar to ID, or as similar and came first.
        before = (key[:, None] < key) | ((key[:, None] == key) & (came[:, None] < came))
        ahead = before[: len(former)].sum(dim=0) + before[len(former) :].cumsum(dim=0)
        inside = (came <= turn[:, None]) & (ahead < self.queue)
        cosines = by_rows(unit, entries).masked_fill(~inside, -torch.inf)
        ranked = cosines.topk(min(self.k2, len(entries)), dim=1).values
        last = inside.sum(dim=1).clamp(max=self.k2) - 1
        memory.features, memory.similarity = entries[inside[-1]], key[inside[-1]]
        return ranked.gather(1, last[:, None])[:, 0]


def _most_confident(confidence: Tensor, labels: Tensor, count: int) -> Tensor:
    """The ascending rows (count,) that a turn of all classes after the other chooses, each its most confident left."""
    order = confidence.argsort(descending=True, stable=True)
    place = torch.empty_like(order)
    place[order] = ranks_in_class(labels[order])
    # One number that orders by place in the class, then by class.
    return (place * (int(labels.max()) + 1) + labels).argsort()[:count].sort().values
