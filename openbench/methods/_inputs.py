"""What `fit` can be called with: the split and the head that a method declared, or an error that names them."""

import torch

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
