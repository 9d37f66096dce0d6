"""What `fit` can be called with: the split and the head that a method declared, or an error that names them."""

import torch
from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.errors import MethodError


def training(train: FeatureSet | None, where: str) -> FeatureSet:
    """Return the split to fit on.

    Raises:
        MethodError: none was given, or it is empty.
    """
    if train is None or not len(train):
        found = "None" if train is None else "no samples"
        raise MethodError(f"{where}.fit: needs the split named by its request — found {found} — pass a FeatureSet")
    return train


def classifier(head: Head | None, where: str) -> Head:
    """Return the head.

    Raises:
        MethodError: none was given.
    """
    if head is None:
        raise MethodError(f"{where}.fit: needs the classifier head — found None — pass head=Head(W, b)")
    return head


def finite(features: Tensor, where: str) -> Tensor:
    """Return training features, or sums of them, (n, d).

    Raises:
        MethodError: one is NaN or infinite; the message names the dimensions.
    """
    good = features.isfinite().all(dim=0)
    if not bool(good.all()):
        bad = torch.nonzero(~good)[:, 0]
        raise MethodError(
            f"{where}.fit: training features hold NaN or inf in {len(bad)} of {len(good)} dimensions, first in "
            f"dimension {int(bad[0])} — finite ones needed — look at the checkpoint's outputs"
        )
    return features


def drawn(train: FeatureSet, most: int | None, seed: int) -> FeatureSet:
    """Return at most `most` samples, drawn without replacement and left in their order; None takes all."""
    if most is None or len(train) <= most:
        return train
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:most]
    return train[rows.sort().values]
