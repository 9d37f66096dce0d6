"""Pure functions on score arrays: ranking, thresholds, selective risk, conformal, intervals. No torch.

An OOD score is larger for what looks more out-of-distribution, and metrics take ID and OOD scores as two arrays.
"""

from openbench.metrics.curve import PooledCurve
from openbench.metrics.ranking import auroc, fpr95, ranking
from openbench.metrics.suite import MetricOptions, SetScores, describe, evaluate, higher_is_better

__all__ = [
    "MetricOptions",
    "PooledCurve",
    "SetScores",
    "auroc",
    "describe",
    "evaluate",
    "fpr95",
    "higher_is_better",
    "ranking",
]
