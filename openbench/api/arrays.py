"""Arrays from any library as numpy's: torch's, JAX's, pandas' and memory-mapped ones."""

import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openbench.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from openbench.core.features import Head

ArrayLike = Any  # an array of any library: what `as_array` takes
HEADS = "(W, b) with W (c, d) and b (c,) or None, a torch.nn.Linear, or a fitted linear model of scikit-learn"


def as_array(value: Any, where: str) -> NDArray[Any]:
    """Return an array, without a copy where its library allows that.

    Args:
        value: numpy's, torch's (on any device, with or without gradients), JAX's, pandas', or nested lists.
        where: what it is, for messages.

    Raises:
        DataError: it is not an array of numbers, or some are masked.
    """
    refuse_sparse(value, where)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        masked = int(np.ma.getmaskarray(value).sum())
        raise DataError(
            f"{where} — found a masked array with {masked} of {value.size} numbers masked — "
            "allowed: numbers — leave out what is masked: value.compressed()"
        )
    torch = sys.modules.get("torch")  # whoever passes a tensor has imported it
    if torch is not None and isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        return np.asarray(tensor.float() if tensor.dtype == torch.bfloat16 else tensor)
    try:
        found = value if isinstance(value, np.ndarray) else np.asarray(value)
    except (ValueError, TypeError) as error:
        found, reason = np.empty(0, dtype=object), str(error)
    else:
        reason = f"a {type(value).__name__} of {found.dtype}"
    if found.dtype.kind not in "biuf" and found.dtype.name != "bfloat16":
        raise DataError(f"{where} — found {reason} — allowed: an array of numbers (numpy, torch, JAX, or a list)")
    return found.astype(np.float32) if found.dtype.name == "bfloat16" else found


def refuse_sparse(value: Any, where: str) -> None:
    """Refuse a sparse tensor of torch, which has no rows to slice.

    Raises:
        DataError: it is one.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout != torch.strided:
        raise DataError(f"{where} — found a sparse tensor — allowed: an array of numbers — pass value.to_dense()")


def as_features(value: Any, where: str) -> "Tensor":
    """Return rows of numbers as a float32 tensor on the CPU, without a copy where they are float32 already.

    Args:
        value: (n, k), as for `as_array`.
        where: what it is, for messages.

    Raises:
        DataError: another shape, or numbers that float32 does not hold: NaN, infinite or too large.
    """
    import torch

    found = as_array(value, where)
    if found.ndim != 2 or 0 in found.shape:
        raise DataError(f"{where} — found shape {found.shape} — allowed: (n, k), a row for each sample")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(found, dtype=np.float32)
    refuse_not_finite(rows, where)
    with warnings.catch_warnings():
        # Methods do not write to their arguments, so a read-only array need not be copied.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(rows)


def refuse_not_finite(rows: NDArray[np.float32], where: str, first: int = 0) -> None:
    """Check rows (n, k) for NaN and infinity.

    Args:
        rows: in float32, where numbers beyond 3.4e38 are infinite.
        where: what they are, for messages.
        first: the number of the first of them.

    Raises:
        DataError: there is one.
    """
    with np.errstate(invalid="ignore"):
        if np.isfinite(rows.sum(dtype=np.float64)):
            return
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise DataError(
            f"{where} — found NaN or infinity in {int(bad.sum())} of {len(rows)} rows, the first in row "
            f"{first + int(bad.argmax())} — allowed: numbers that float32 holds — look at what computed them"
        )


def as_labels(value: Any, n: int, where: str = "y") -> "Tensor":
    """Return class indices (n,) int64.

    Args:
        value: (n,) whole numbers ≥ 0, as for `as_array`.
        n: how many there must be.
        where: what they are, for messages.

    Raises:
        DataError: another shape, or values that are not class indices.
    """
    import torch

    found = as_array(value, where)
    whole = found.dtype.kind in "iub" or (
        found.dtype.kind == "f" and bool((np.isfinite(found) & (found == np.round(found))).all())
    )
    if found.shape != (n,) or not whole or (n and found.min() < 0):
        shown = f"{found.dtype} of shape {found.shape}" + (f" from {found.min()}" if found.size else "")
        raise DataError(f"{where} — found {shown} — allowed: ({n},) whole numbers ≥ 0, the class of each row")
    return torch.from_numpy(found.astype(np.int64))


def as_head(value: Any, d: int | None = None, allowed: str = HEADS) -> "Head":
    """Return a linear classifier z = W f + b.

    Args:
        value: (W, b) with W (c, d) and b (c,) or None; a torch.nn.Linear; or a fitted linear model with `coef_` and
            `intercept_`, as scikit-learn's.
        d: the number of features; None = any.
        allowed: what may be given, for messages.

    Raises:
        DataError: something else, or shapes that do not fit.
    """
    import torch

    from openbench.core.features import Head, fitted_pair

    pair = fitted_pair(value)
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"head — found a {type(value).__name__} — allowed: {allowed}")
    weight = as_features(pair[0], "head: W")
    rows, columns = weight.shape
    if d is not None and columns != d:
        turned = " — pass W.T" if rows == d else ""
        raise DataError(f"head: W — found shape {(rows, columns)} — allowed: (c, {d}), a row for each class{turned}")
    if pair[1] is None:
        return Head(weight, torch.zeros(rows))
    bias = as_features(as_array(pair[1], "head: b").reshape(1, -1), "head: b")[0]
    if len(bias) != rows:
        raise DataError(f"head: b — found shape {tuple(bias.shape)} — allowed: ({rows},), one for each row of W")
    return Head(weight, bias)


def head_of(given: Any) -> "str | Head | None":
    """Return the classifier of a model: the name of its module as it is, arrays or a fitted one as a head.

    Raises:
        DataError: something else, or shapes that do not fit.
    """
    return (
        given if given is None or isinstance(given, str) else as_head(given, allowed=f"the name of a module, {HEADS}")
    )


def are_whole(values: NDArray[Any]) -> bool:
    """Whether all numbers are whole and finite, of whatever type."""
    return values.dtype.kind in "iub" or (
        values.dtype.kind == "f" and bool((np.isfinite(values) & (values == np.round(values))).all())
    )
