"""What a detector says of images."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openbench.detect.features import Scored
from openbench.metrics.conformal.prediction_sets import prediction_sets
from openbench.metrics.curve import Floats

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class Predictions:
    """A row per image, in the order in which they were given; for a single image all arrays have length 1.

    Classes and prediction sets are found when they are asked for: who only wants the decision does not wait for them.

    Args:
        found: scores and logits.
        p_value: (n,) marginal conformal p-value: small = unlike the calibration images.
        p_value_conditional: (n,) the calibration-conditional one; NaN where the calibration is weighted.
        is_ood: (n,) bool, the decision at `alpha`.
        alpha: of the decision.
        class_names: in the order of the logits.
        quantile: the non-conformity that a class of a prediction set does not exceed; None where calibration had no
            labels.
    """

    found: Scored
    p_value: Floats
    p_value_conditional: Floats
    is_ood: NDArray[np.bool_]
    alpha: float
    class_names: tuple[str, ...]
    quantile: float | None

    def __len__(self) -> int:
        return len(self.score)

    @property
    def score(self) -> NDArray[np.float32]:
        """(n,) float32, larger = more OOD."""
        return self.found.scores

    @cached_property
    def label(self) -> NDArray[np.int64]:
        """(n,) int64, the predicted class; −1 where the network has no classifier."""
        return self.found.predicted

    @cached_property
    def label_name(self) -> tuple[str, ...]:
        """(n,) its name; '' where there is none."""
        return tuple(self.class_names[y] if y >= 0 else "" for y in self.label.tolist())

    @cached_property
    def prediction_set(self) -> list[tuple[int, ...]] | None:
        """A tuple of class numbers for each image; None where calibration had no labels."""
        if self.quantile is None:
            return None
        return [tuple(row.nonzero()[0].tolist()) for row in prediction_sets(self.found.misfit, self.quantile)]

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
