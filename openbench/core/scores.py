"""Per-sample scores of one run: what metrics read, and what is kept so that new metrics need no model."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.request import Role


@dataclass(frozen=True)
class SplitScores:
    """Scores of one split in manifest order.

    Args:
        name: the data set's name in the benchmark, e.g. `tin`.
        role: the split's role.
        scores: (n,) float32, larger = more OOD.
        labels: (n,) int64 class index, −1 where the image has no ID class.
        predictions: (n,) int64, argmax of the logits; −1 where the network does not tell the benchmark's classes apart.
    """

    name: str
    role: Role
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    predictions: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Check that the columns belong together."""
        if not len(self.scores) == len(self.labels) == len(self.predictions):
            raise ValueError(
                f"SplitScores '{self.name}': {len(self.scores)} scores, {len(self.labels)} labels, "
                f"{len(self.predictions)} predictions — one of each per image expected"
            )

    @property
    def correct(self) -> NDArray[Any] | None:
        """(n,) bool, whether the prediction equals the label; None for OOD roles and where nothing is classified."""
        if not self.role.is_id or (len(self.predictions) and self.predictions.max() < 0):
            return None
        correct: NDArray[Any] = self.predictions == self.labels
        return correct
