"""What methods read in `fit`: the split and the head that they declared, class means, draws of samples."""

from collections.abc import Callable

import torch
from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.errors import MethodError


def training(train: FeatureSet | None, where: str) -> FeatureSet:
    """Return the split to fit on; that it has rows, all finite, was checked before (`openbench.core.inputs`).

    Raises:
        MethodError: none was given.
    """
    if train is None:
        raise MethodError(f"{where}.fit: needs the split named by its request — found None — pass a FeatureSet")
    return train


def classifier(head: Head | None, where: str) -> Head:
    """Return the head.

    Raises:
        MethodError: none was given.
    """
    if head is None:
        raise MethodError(f"{where}.fit: needs the classifier head — found None — pass head=Head(W, b)")
    return head


def drawn(train: FeatureSet, most: int | None, seed: int) -> FeatureSet:
    """Return at most `most` samples, drawn without replacement and left in their order; None takes all."""
    if most is None or len(train) <= most:
        return train
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:most]
    return train[rows.sort().values]


def true_labels(rows: FeatureSet) -> Tensor:
    """Return the labels (n,) of a batch."""
    return rows.labels


def predictions(rows: FeatureSet) -> Tensor:
    """Return the predicted classes (n,) of a batch, by its logits."""
    return rows.logits.argmax(dim=1)


def class_means(
    train: FeatureSet, classes: int, where: str, of: Callable[[FeatureSet], Tensor] = true_labels
) -> Tensor:
    """Return the mean feature of each class, (classes, d) float64, read in batches.

    A class without samples takes the mean of all.

    Args:
        train: with features and what `of` reads.
        classes: number of classes of the head.
        where: the method, for errors.
        of: the class (n,) of each row of a batch: `true_labels` or `predictions`.

    Raises:
        MethodError: a class outside 0 to classes − 1.
    """
    d = train.features.shape[1]
    sums = torch.zeros(classes, d, dtype=torch.float64, device=train.device)
    counts = torch.zeros(classes, dtype=torch.float64, device=train.device)
    for rows in train.batches():
        index = of(rows)
        if bool((index < 0).any()) or bool((index >= classes).any()):
            wrong = index[(index < 0) | (index >= classes)][0]
            raise MethodError(
                f"{where}.fit: a training label is {int(wrong)} — 0 to {classes - 1} for a head of {classes} classes — "
                "fit on the ID split that the head was trained on"
            )
        sums.index_add_(0, index, rows.features.double())
        counts += torch.bincount(index, minlength=classes)
    return torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], sums.sum(dim=0) / len(train))


def balanced_draw(labels: Tensor, size: int, seed: int) -> Tensor:
    """Return the ascending indices (size,) of a draw with equally many samples per class, if there are enough."""
    labels = labels.cpu()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    labels = labels[order]
    # Shuffled samples sorted by their rank within their class: whole rounds of one per class come first.
    by_class = labels.argsort(stable=True)
    starts = torch.bincount(labels).cumsum(0) - torch.bincount(labels)
    rank = torch.empty(len(labels), dtype=torch.int64)
    rank[by_class] = torch.arange(len(labels)) - starts[labels[by_class]]
    return order[rank.argsort(stable=True)[:size]].sort().values
