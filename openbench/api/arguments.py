"""Arguments of a call: names, overrides, numbers, and arrays of any library."""

import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openbench.config.build import from_node
from openbench.config.constraints import check_value
from openbench.core.names import PART, WORDS, is_part, is_words
from openbench.errors import ConfigError, DataError
from openbench.metrics.suite import MetricOptions

if TYPE_CHECKING:
    from torch import Tensor

    from openbench.core.features import Head


# Keys of overrides for which there is an argument.
_ARGUMENTS = ("benchmark", "method", "backbone", "tune", "seed", "runtime")
_RUNTIME = tuple(f"runtime.{key}" for key in ("device", "batch_size", "progress", "cache", "results"))


def check_model_name(name: object, key: str = "name") -> None:
    """Check that a name can be part of the path of a record.

    Raises:
        ConfigError: it cannot.
    """
    if not is_part(name):
        raise ConfigError(f"{key} {name!r} — allowed: {PART}")


def words_of(overrides: Any) -> list[str]:
    """Return overrides as a list.

    Raises:
        ConfigError: not a list of texts, or an override for which there is an argument.
    """
    check_value(overrides, list[str], "overrides")
    for text in overrides:
        key = text.lstrip("+~").partition("=")[0]
        if key in (*_ARGUMENTS, *_RUNTIME):
            raise ConfigError(f"overrides has '{text}' — use the argument of the call for it")
    return list(overrides)


def check_reaches(overrides: list[str], node: str, what: str) -> None:
    """Refuse overrides of a node where the caller passes an object instead.

    Args:
        overrides: of the call.
        node: `backbone` or `method`.
        what: the object, in words.

    Raises:
        ConfigError: there is one.
    """
    for text in overrides:
        if text.lstrip("+~").startswith(f"{node}."):
            raise ConfigError(f"overrides has '{text}', but {what} — change the object itself")


def metric_options(options: Any) -> MetricOptions:
    """Return the options of metrics; None = the defaults.

    Raises:
        ConfigError: neither options nor a mapping of them, or an unknown one.
    """
    if isinstance(options, MetricOptions):
        return options
    check_value(options, Mapping | None, "metrics")
    return from_node(MetricOptions, options or {}, "metrics")


def path_of(given: Any, key: str) -> Path:
    """Return an argument that is a path, `~` expanded.

    Raises:
        ConfigError: it is not a path.
    """
    check_value(given, Path, key)
    return Path(given).expanduser()


def plain(value: Any) -> Any:
    """Return a path or a torch device as text and a number of numpy as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) or type(value).__name__ == "device" else value


ArrayLike = Any  # an array of any library: what `as_array` takes


def as_array(value: Any, where: str) -> NDArray[Any]:
    """Return an array, without a copy where its library allows that.

    Args:
        value: numpy's, torch's (on any device, with or without gradients), JAX's, pandas', or nested lists.
        where: its name in messages.

    Raises:
        DataError: it is not an array of numbers, or some are masked.
    """
    if np.ma.is_masked(value):
        raise DataError(f"{where} has masked numbers — pass value.compressed()")
    torch = sys.modules.get("torch")  # a caller that passes a tensor has imported it
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where} is not an array of numbers (numpy, torch, JAX, or a list): {error}") from error
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        kind = f"a {type(value).__name__} of {array.dtype}"
        raise DataError(f"{where} is {kind} — allowed: an array of numbers (numpy, torch, JAX, or a list)")
    return array


def as_features(value: Any, where: str) -> "Tensor":
    """Return rows of numbers as a float32 tensor on the CPU, without a copy where they are float32 already.

    Args:
        value: (n, k), as for `as_array`.
        where: its name in messages.

    Raises:
        DataError: another shape, or numbers beyond float32: NaN, infinite or too large.
    """
    import torch

    array = as_array(value, where)
    if array.ndim != 2 or 0 in array.shape:
        raise DataError(f"{where} has shape {array.shape} — allowed: (n, k), a row for each sample")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(array, dtype=np.float32)
    refuse_not_finite(rows, where)
    with warnings.catch_warnings():
        # Methods do not write to their arguments, so a read-only array need not be copied.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(rows)


def refuse_not_finite(rows: NDArray[np.float32], where: str, first: int = 0) -> None:
    """Check rows for NaN and infinity.

    Args:
        rows: (n, k) float32, where numbers beyond 3.4e38 are infinite.
        where: their name in messages.
        first: index of the first row, for messages.

    Raises:
        DataError: there is one.
    """
    with np.errstate(invalid="ignore"):
        if np.isfinite(rows.sum(dtype=np.float64)):
            return
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        n, at = int(bad.sum()), first + int(bad.argmax())
        raise DataError(f"{where} has NaN or infinity in {n} of {len(rows)} rows, the first in row {at}")


def class_indices(value: Any, n: int, where: str, classes: int | None = None) -> NDArray[np.int64]:
    """Return class indices (n,).

    Args:
        value: (n,) whole numbers ≥ 0, as for `as_array`.
        n: expected length.
        where: their name in messages.
        classes: number of classes; None = any.

    Raises:
        DataError: another shape, or values that are not class indices.
    """
    array = as_array(value, where)
    whole = array.dtype.kind in "iub" or bool((np.isfinite(array) & (array == np.round(array))).all())
    inside = not array.size or (array.min() >= 0 and (classes is None or array.max() < classes))
    if array.shape != (n,) or not whole or not inside:
        values = f"{array.dtype} of shape {array.shape}" + (f", {array.min()} to {array.max()}" if array.size else "")
        allowed = "whole numbers ≥ 0" if classes is None else f"whole numbers from 0 to {classes - 1}"
        raise DataError(f"{where}: {values} — allowed: ({n},) {allowed}, the class of each row")
    return array.astype(np.int64)


def named_sets(sets: Any, where: str, example: str) -> Iterator[tuple[str, Any]]:
    """Yield sets by name.

    Args:
        sets: a mapping from names to arrays; None = no set.
        where: the argument, for messages.
        example: an array in messages.

    Raises:
        DataError: not a mapping, or a name that tables cannot show.
    """
    if sets is not None and not isinstance(sets, Mapping):
        raise DataError(f"{where} is a {type(sets).__name__} — pass sets by name: {where}={{'svhn': {example}}}")
    for name, value in (sets or {}).items():
        if not is_words(name):
            raise DataError(f"{where} has the set name {name!r} — allowed: {WORDS}")
        yield name, value


def as_head(value: Any, d: int | None = None, others: str = "") -> "Head":
    """Return a linear classifier z = W f + b.

    Args:
        value: (W, b) with W (c, d) and b (c,) or None; a torch.nn.Linear; or a fitted linear model with `coef_` and
            `intercept_`, as scikit-learn's.
        d: number of features; None = any.
        others: what the caller allows besides, for messages.

    Raises:
        DataError: something else, or shapes that do not fit.
    """
    import torch

    from openbench.core.features import Head, fitted_pair

    pair = fitted_pair(value)
    if hasattr(value, "dual_coef_") and len(getattr(value, "classes_", ())) > 2:
        raise DataError(f"head: {type(value).__name__} has a row for each pair of classes — give a LinearSVC")
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        allowed = "(W, b) with W (c, d) and b (c,) or None, a torch.nn.Linear, or a fitted linear model of scikit-learn"
        raise DataError(f"head is a {type(value).__name__} — allowed: {others}{allowed}")
    weight = as_features(pair[0], "head: W")
    rows, columns = weight.shape
    if d is not None and columns != d:
        turned = "; pass W.T" if rows == d else ""
        raise DataError(f"head: W has shape {(rows, columns)} — allowed: (c, {d}), a row for each class{turned}")
    if pair[1] is None:
        return Head(weight, torch.zeros(rows))
    bias = as_features(as_array(pair[1], "head: b").reshape(1, -1), "head: b")[0]
    if len(bias) != rows:
        raise DataError(f"head: b has shape {tuple(bias.shape)} — allowed: ({rows},), one for each row of W")
    return Head(weight, bias)


def head_of(given: Any) -> "str | Head | None":
    """Return the argument `head` for a model: the name of a module as it is, else a linear classifier.

    Raises:
        DataError: something else, or shapes that do not fit.
    """
    return given if given is None or isinstance(given, str) else as_head(given, others="the name of a module, ")
