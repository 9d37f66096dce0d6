"""Checks of what methods are given: finite rows, and labels that are class numbers."""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field, Request
from openbench.errors import MethodError

LARGEST = 1e15  # of training features: a million squares of it add up to less than float32's largest number
MOST_CLASSES = 1_000_000  # where neither head nor logits say how many there are; a mean is kept for each
_AT_ONCE = 4096  # rows compared at a time


def guard(cls: type, **wrappers: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap the methods that a class defines itself; inherited ones are wrapped already.

    Args:
        cls: a new subclass of `Method`.
        wrappers: name of a method → its wrapper.
    """
    for name, wrap in wrappers.items():
        function = vars(cls).get(name)
        if inspect.isfunction(function):
            setattr(cls, name, wrap(function))


def check_finite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `score` or `class_scores`, wrapped so that it refuses empty input and rows that are NaN or infinite."""

    @wraps(function)
    def on_finite(self: Any, x: FeatureSet, *args: Any, **rest: Any) -> Any:
        _check_rows(x, f"{type(self).__name__}.{function.__name__}")
        return function(self, x, *args, **rest)

    return on_finite


def check_training(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fit`, wrapped so that it refuses training sets from which nothing can be learnt.

    It refuses a set without rows, values that are NaN, infinite or beyond 1e15, rows that are all equal, and labels
    that are not classes of the head (of the logits where there is no head).
    """

    @wraps(function)
    def on_training(self: Any, train: FeatureSet | None, *args: Any, **rest: Any) -> Any:
        if train is not None:
            where = f"{type(self).__name__}.fit"
            if not len(train):
                raise MethodError(f"{where}: the training set has no rows — at least one is needed")
            _check_training(_read(train, self.request), where)
            _check_labels(train, args[0] if args else rest.get("head"), where)
        return function(self, train, *args, **rest)

    return on_training


def _read(x: FeatureSet, request: Request) -> dict[str, Tensor]:
    """The columns and maps that a request names and that are present, by name."""
    columns = {str(name): x.columns[name] for name in request.fields - {Field.LABELS} if name in x.columns}
    return columns | {layer: x.maps[layer] for layer in request.layers if layer in x.maps}


def _check_training(columns: Mapping[str, Tensor], where: str) -> None:
    for name, column in columns.items():
        least, most = map(float, column.aminmax())
        reached = max(abs(least), abs(most))
        if not math.isfinite(reached):
            _refuse_not_finite(name, column, where)
        if reached > LARGEST:
            raise MethodError(f"{where}: training {name} reach {reached:.3g}, allowed: {LARGEST:g} — check the network")
    if columns and all(_is_one_row(column) for column in columns.values()):
        raise MethodError(f"{where}: all training {' and '.join(sorted(columns))} are equal — check the network")


def _is_one_row(column: Tensor) -> bool:
    """Whether all rows are equal, or there is only one."""
    return all(bool((rows == column[:1]).all()) for rows in torch.split(column, _AT_ONCE))


def _check_labels(train: FeatureSet, head: Head | None, where: str) -> None:
    labels = train.columns.get(Field.LABELS)
    if labels is None:
        return
    if int(labels.min()) < 0:
        raise MethodError(f"{where}: label {int(labels.min())} — allowed: classes from 0")
    if head is not None:
        classes, of = head.num_classes, "the head's classes"
    elif Field.LOGITS in train:
        classes, of = train.logits.shape[1], "the logits' classes"
    else:
        classes, of = MOST_CLASSES, "classes"
    if int(labels.max()) >= classes:
        raise MethodError(f"{where}: label {int(labels.max())} — allowed: {of}, 0 to {classes - 1}, as in training")


def _check_rows(x: FeatureSet, where: str) -> None:
    for name, column in x.named().items():
        if not column.numel():
            raise MethodError(f"{where}: no rows to score — at least one is needed")
        _refuse_not_finite(name, column, where)


def _refuse_not_finite(name: str, column: Tensor, where: str) -> None:
    # A finite sum shows that all values are finite; an infinite one may also be an overflow, so rows are checked then.
    if not column.is_floating_point() or math.isfinite(column.sum().item()):
        return
    bad = ~column.isfinite().reshape(len(column), -1).all(dim=1)
    if bool(bad.any()):
        first = int(torch.nonzero(bad)[0])
        raise MethodError(
            f"{where}: {int(bad.sum())} of {len(column)} rows of '{name}' are not finite (first: row {first})"
        )
