"""Per-sample scores of one set; new metrics need no model."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openbench.core.request import Role


@dataclass(frozen=True, eq=False)
class SetScores:
    """One set of one run, or of a file of scores.

    Args:
        name: the data set's name in the benchmark, e.g. `tin`.
        role: `id_test`, `id_val`, `csid`, `ood_val`, `near`, `far`, `near_attacked` or `far_attacked`.
        scores: (n,) larger = more OOD.
        correct: (n,) 0/1, whether the prediction is right; for ID-side sets, None if unknown.
        labels: (n,) integers, the true class, −1 where there is none; needed on `id_val` and `id_test` for prediction
            sets.
        probabilities: (n, c) class probabilities; likewise.
        class_scores: (n, c) the method's own score s(x, y) of each class, larger = worse fit; likewise.
        class_probabilities: (n, c) these scores as probabilities; None = softmax(−s).
        predictions: (n,) integers, argmax of the logits; −1 where the network does not classify into the benchmark's
            classes; None if unknown.
        images: (n,) their names, as a file of scores gives them; None if unknown.
    """

    name: str
    role: str
    scores: np.ndarray
    correct: np.ndarray | None = None
    labels: np.ndarray | None = None
    probabilities: np.ndarray | None = None
    class_scores: np.ndarray | None = None
    class_probabilities: np.ndarray | None = None
    predictions: np.ndarray | None = None
    images: tuple[str, ...] | None = None

    @classmethod
    def of_split(
        cls, name: str, role: Role, scores: NDArray[Any], labels: NDArray[Any], predictions: NDArray[Any]
    ) -> "SetScores":
        """Return the scores of a split; on ID sides, labels and predictions say which predictions are correct.

        Args:
            name: the data set's name in the benchmark.
            role: the split's role.
            scores: (n,) float32.
            labels: (n,) int64, −1 where the image has no ID class, or where it is not known.
            predictions: (n,) int64; all −1 where nothing is classified; `correct` is then None, as it is where an
                ID side's labels are not known.
        """
        answered = (role.is_id or role == Role.NEAR_ATTACKED) and not any(
            len(known) and known.max() < 0 for known in (predictions, labels)
        )
        correct = predictions == labels if answered else None
        return cls(name, role, scores, correct, labels, predictions=predictions)
