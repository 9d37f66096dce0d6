"""The few images of a set whose pixels enter its digest: reading all of them would take as long as a run."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.benchmark import Items
from openbench.errors import DataError

Fingerprint = Callable[[Items], dict[int, NDArray[Any]]]
_COUNT = 32


def fingerprint(items: Items) -> dict[int, NDArray[Any]]:
    """Return evenly spaced images by position, first and last among them.

    Raises:
        DataError: one of them cannot be read.
    """
    return {position: items[position] for position in _positions(items)}


def readable_fingerprint(items: Items) -> dict[int, NDArray[Any]]:
    """Return those of the same images that can be read: for a check, which names the others itself."""
    found = {}
    for position in _positions(items):
        with suppress(DataError):
            found[position] = items[position]
    return found


def _positions(items: Items) -> list[int]:
    spaced = np.linspace(0, len(items) - 1, min(_COUNT, len(items)))
    return [int(position) for position in np.unique(spaced.round().astype(int))]
