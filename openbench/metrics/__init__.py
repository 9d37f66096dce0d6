"""Pure functions on score arrays: ranking, thresholds, selective risk, conformal, intervals. No torch.

An OOD score is larger for what looks more out-of-distribution, and metrics take ID and OOD scores as two arrays.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openbench.metrics.curve import PooledCurve
    from openbench.metrics.paired import paired_delong
    from openbench.metrics.ranking import auroc, fpr95
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
    "paired_delong",
]
# Loaded when first asked for: tables need openbench.metrics.keys alone, and scipy takes a third of a second.
_HOMES = {"PooledCurve": "curve", "auroc": "ranking", "fpr95": "ranking", "paired_delong": "paired"}


def __getattr__(name: str) -> Any:
    """Import a public name's module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'suite')}"), name)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
