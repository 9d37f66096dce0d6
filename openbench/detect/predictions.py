"""What a detector says of images."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openbench.metrics.curve import Floats

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Predictions:
    """A row per image, in the order in which they were given; for a single image all arrays have length 1.

    Args:
        score: (n,) float32, larger = more OOD.
        p_value: (n,) marginal conformal p-value: small = unlike the calibration images.
        p_value_conditional: (n,) the calibration-conditional one; NaN where the calibration is weighted.
        is_ood: (n,) bool, the decision at `alpha`.
        label: (n,) int64, the predicted class; −1 where the network has no classifier.
        label_name: (n,) its name; '' where there is none.
        prediction_set: a tuple of class numbers for each image; None where calibration had no labels.
        alpha: of the decision.
    """

    score: NDArray[np.float32]
    p_value: Floats
    p_value_conditional: Floats
    is_ood: NDArray[np.bool_]
    label: NDArray[np.int64]
    label_name: tuple[str, ...]
    prediction_set: list[tuple[int, ...]] | None
    alpha: float

    def __len__(self) -> int:
        return len(self.score)

    def rows(self) -> list[dict[str, Any]]:
        """Return a mapping per image, of Python's own types: what JSON can hold."""
        return [
            {
                "score": float(self.score[i]),
                "p_value": float(self.p_value[i]),
                "p_value_conditional": None
                if np.isnan(self.p_value_conditional[i])
                else float(self.p_value_conditional[i]),
                "is_ood": bool(self.is_ood[i]),
                "label": int(self.label[i]),
                "label_name": self.label_name[i],
                "prediction_set": None if self.prediction_set is None else list(self.prediction_set[i]),
            }
            for i in range(len(self))
        ]

    def to_pandas(self) -> "DataFrame":
        """Return a row per image; `prediction_set` holds lists of class numbers."""
        import pandas as pd

        return pd.DataFrame(self.rows())
