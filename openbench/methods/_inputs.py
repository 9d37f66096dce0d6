"""What `fit` can be called with: the split and the head that a method declared, or an error that names them."""

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
