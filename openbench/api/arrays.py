"""Arrays from any library as numpy's: torch's, JAX's, pandas' and memory-mapped ones."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.errors import DataError


def as_array(value: Any, where: str) -> NDArray[Any]:
    """Return an array, without a copy where its library allows that.

    Args:
        value: numpy's, torch's (on any device, with or without gradients), JAX's, pandas', or nested lists.
        where: what it is, for messages.

    Raises:
        DataError: it is not an array of numbers.
    """
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
