"""Risk against coverage on ID alone: how well a score orders the classifier's own mistakes."""

import numpy as np
from numpy.typing import ArrayLike

from openbench.metrics.curve import Floats, as_scores
from openbench.metrics.selective.risk import running_loss


def _mean_prefix_risk(cumulated: Floats) -> float:
    """Return the mean over k = 1 … n of (sum of the first k losses) / k."""
    return float(np.mean(cumulated[1:] / np.arange(1, cumulated.size)))


def aurc(id_scores: ArrayLike, losses: ArrayLike) -> float:
    """Return the area under the risk–coverage curve, (1/n) Σ_k (risk of the k lowest-scored samples).

    A tie contributes its expectation over all orders, so the value does not depend on the order of the samples.

    Args:
        id_scores: (n,) larger = more OOD.
        losses: (n,) e_i ≥ 0, usually 1 − correct.

    Raises:
        MetricError: invalid scores or losses.

    Reference: Geifman and El-Yaniv, NeurIPS 2017, arXiv 1705.08500; Geifman, Uziel, El-Yaniv, ICLR 2019,
        arXiv 1805.08206.
    """
    scores = as_scores(id_scores, "ID scores")
    cumulated = running_loss(scores, losses)
    ordered = np.sort(scores)
    ends = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [ordered.size]])
    # Expected cumulated loss is linear inside a tie.
    return _mean_prefix_risk(np.interp(np.arange(cumulated.size), ends, cumulated[ends]))


def excess_aurc(id_scores: ArrayLike, losses: ArrayLike) -> float:
    """Return AURC minus that of the oracle that rejects the largest losses first.

    Args:
        id_scores: (n,) larger = more OOD.
        losses: (n,) e_i ≥ 0.

    Raises:
        MetricError: invalid scores or losses.
    """
    e = as_scores(losses, "ID losses")
    return aurc(id_scores, e) - aurc(e, e)
