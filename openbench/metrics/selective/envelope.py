"""Curves of a double score with the best weight at every operating point: in-sample by nature, a bound."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from openbench.metrics.curve import Floats, PooledCurve, check_rate, least_count
from openbench.metrics.selective.double_score import DEFAULT_MUS, ScorePair, Standard, combine
from openbench.metrics.selective.risk import SelectiveCurve, accuracy_steps


@dataclass(frozen=True, eq=False)
class Envelope:
    """The best that any weight μ of a double score attains, ID positive; μ may differ from point to point.

    Args:
        fpr: (n,) least share of OOD accepted where at least k of n ID inputs are, k = 1 … n.
        precision: (n,) largest share of ID among what is accepted there.
        accuracy: (m,) largest accuracy among the accepted ID while the j-th of m OOD inputs joins, j = 1 … m.
        auroc: area above the least FPR over TPR; ties are accepted in part, as for a single score.
        ap_in: mean precision over recall, step-wise.
        oscr_selective: mean accuracy over FPR.
    """

    fpr: Floats
    precision: Floats
    accuracy: Floats
    auroc: float
    ap_in: float
    oscr_selective: float

    def fpr_at_tpr(self, tpr: float) -> float:
        """Return the least share of OOD accepted where at least `tpr` of ID is."""
        return float(self.fpr[max(1, least_count(check_rate(tpr, "minimal TPR"), self.fpr.size)) - 1])


def envelope(
    sets: tuple[ScorePair, ScorePair], losses: ArrayLike, standard: Standard, mus: Sequence[float] = DEFAULT_MUS
) -> Envelope:
    """Return the envelope over weights of the ROC, precision–recall and accuracy curves of a double score.

    With a single weight its areas are AUROC, average precision (ID positive) and selective OSCR of that score. A rule
    that is fixed beforehand attains at most one point of a curve.

    Args:
        sets: both scores on the ID and on the OOD data.
        losses: (n,) 0/1 e_i of the ID side, 1 − correct.
        standard: the unit of each score.
        mus: the weights, in these units.

    Raises:
        MetricError: invalid scores or losses, or a weight that is negative or infinite.

    Reference: Franc, Prusa, Paplham, "Reject option models comprising out-of-distribution detection", 2023,
        arXiv 2307.05199: AUROC and OSCR of double scores in its table 2.
    """
    found = [_curves(SelectiveCurve.of(*_weighed(sets, standard, mu, losses))) for mu in mus]
    fpr, joining, precision, accuracy = (np.stack(curves) for curves in zip(*found, strict=True))
    best_precision, best_accuracy = precision.max(axis=0), accuracy.max(axis=0)
    return Envelope(
        fpr=fpr.min(axis=0),
        precision=best_precision,
        accuracy=best_accuracy,
        auroc=float(1.0 - joining.min(axis=0).mean()),
        ap_in=float(best_precision.mean()),
        oscr_selective=float(best_accuracy.mean()),
    )


def _weighed(
    sets: tuple[ScorePair, ScorePair], standard: Standard, mu: float, losses: ArrayLike
) -> tuple[Floats, ArrayLike, Floats]:
    ids, ood = (combine(pair, standard, mu) for pair in sets)
    return ids, losses, ood


def _curves(curve: SelectiveCurve) -> tuple[Floats, Floats, Floats, Floats]:
    """FPR once k ID inputs are accepted, mean FPR while the k-th joins, precision (n,), and accuracy (m,)."""
    pair: PooledCurve = curve.pair
    kth = np.arange(1, pair.n + 1)
    entry = np.searchsorted(pair.id_accepted, kth)
    ids, ood = pair.id_accepted, pair.ood_accepted
    # Inside a tie FPR rises linearly with TPR; its mean over the step of one ID input is its value at the middle.
    part = (kth - 0.5 - ids[entry - 1]) / (ids[entry] - ids[entry - 1])
    joining = (ood[entry - 1] + part * (ood[entry] - ood[entry - 1])) / pair.m
    accuracy = np.concatenate([np.repeat(mean, counts) for counts, mean in accuracy_steps(curve)])
    return ood[entry] / pair.m, joining, ids[entry] / (ids[entry] + ood[entry]), accuracy
