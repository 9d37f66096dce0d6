"""Reading the CIFAR pickles without running what a pickle can hold."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from openbench.errors import DataError

# What Python-2 era pickles of dicts, lists, bytes and numpy arrays name, and nothing else.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"): ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"): ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"): ("numpy", "ndarray"),
    ("numpy", "dtype"): ("numpy", "dtype"),
    ("_codecs", "encode"): ("_codecs", "encode"),
}

_MALFORMED = (
    pickle.UnpicklingError,
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
    LookupError,
    AssertionError,
)


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(*_ALLOWED[module, name])


def load_pickle(path: Path) -> dict[str, Any]:
    """Return the mapping in a pickle that holds dicts, lists, text, numbers and numeric arrays only.

    Raises:
        DataError: the file is cut off, is not a pickle, is not a mapping, or names anything that could run code.
    """
    try:
        content = _Restricted(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except _MALFORMED as error:
        raise DataError(
            f"pickle '{path}' refused — {error or type(error).__name__} — only dicts, lists, text, numbers and arrays "
            "are allowed; get the original file again"
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"pickle '{path}': found a {type(content).__name__} — a dict expected")
    return content


def pixel_rows(content: dict[str, Any], path: Path, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return `content["data"]` reshaped to (n, *shape) without a copy.

    Raises:
        DataError: `data` is not a uint8 array with that many values a row.
    """
    data = content.get("data")
    width = int(np.prod(shape))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != width:
        found = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(f"pickle '{path}': `data` is {found} — uint8 (n, {width}) expected")
    return data.reshape(-1, *shape)
