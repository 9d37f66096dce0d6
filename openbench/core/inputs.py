"""What a method can be given: rows, finite, in float32, with labels that are classes."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.errors import MethodError


def held_to_finite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `score` or `class_scores`, which then refuses rows that are NaN or infinite, or none at all."""

    @wraps(function)
    def on_finite(self: Any, x: FeatureSet, *args: Any, **rest: Any) -> Any:
        _check_rows(x, f"{type(self).__name__}.{function.__name__}")
        return function(self, x, *args, **rest)

    return on_finite


def held_to_labels(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fit`, which then refuses labels below 0 and a training set without rows."""

    @wraps(function)
    def on_classes(self: Any, train: FeatureSet | None, *args: Any, **rest: Any) -> Any:
        where = f"{type(self).__name__}.fit"
        if train is not None and not len(train):
            raise MethodError(f"{where}: the training set has no rows — at least one is needed")
        labels = None if train is None else train.columns.get(Field.LABELS)
        if labels is not None and int(labels.min()) < 0:
            raise MethodError(f"{where}: label {int(labels.min())} — allowed: classes from 0 — leave other rows out")
        return function(self, train, *args, **rest)

    return on_classes


def _check_rows(x: FeatureSet, where: str) -> None:
    if not len(x):
        raise MethodError(f"{where}: no rows to score — at least one is needed")
    columns: dict[str, Tensor] = {**{str(name): column for name, column in x.columns.items()}, **x.maps}
    for name, column in columns.items():
        # One number per column is enough to see that all are finite, or nearly so: sums can overflow.
        if not column.is_floating_point() or bool(column.sum().isfinite()):
            continue
        bad = ~column.isfinite().reshape(len(column), -1).all(dim=1)
        if bool(bad.any()):
            first = int(torch.nonzero(bad)[0])
            raise MethodError(
                f"{where}: {int(bad.sum())} of {len(column)} rows of '{name}' are not finite (first: row {first}) "
                "— numbers other than NaN and infinity expected — find the inputs that the network gives these for"
            )
