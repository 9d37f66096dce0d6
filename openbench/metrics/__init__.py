"""Pure functions on score arrays: ranking, thresholds, selective risk, conformal, intervals. No torch.

An OOD score is larger for what looks more out-of-distribution, and metrics take ID and OOD scores as two arrays.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openbench.metrics.conformal.corrections import correction_table
    from openbench.metrics.conformal.p_values import benjamini_hochberg, p_values
    from openbench.metrics.curve import (
        PooledCurve,
        aupr_in,
        aupr_out,
        auroc,
        detection_error,
        fpr95,
        fpr_at_tpr,
        fpr_at_tpr_id_positive,
    )
    from openbench.metrics.intervals import paired_delong
    from openbench.metrics.selective.risk import aurc, excess_aurc
    from openbench.metrics.suite import MetricOptions, SetScores, describe, evaluate, higher_is_better

__all__ = [
    "MetricOptions",
    "PooledCurve",
    "SetScores",
    "aupr_in",
    "aupr_out",
    "aurc",
    "auroc",
    "benjamini_hochberg",
    "correction_table",
    "describe",
    "detection_error",
    "evaluate",
    "excess_aurc",
    "fpr95",
    "fpr_at_tpr",
    "fpr_at_tpr_id_positive",
    "higher_is_better",
    "p_values",
    "paired_delong",
]
# Loaded when first asked for: tables need openbench.metrics.keys alone, and scipy takes a third of a second.
_RANKING = (
    "aupr_in",
    "aupr_out",
    "auroc",
    "detection_error",
    "fpr95",
    "fpr_at_tpr",
    "fpr_at_tpr_id_positive",
)
_HOMES = {
    "PooledCurve": "curve",
    **dict.fromkeys(_RANKING, "curve"),
    **dict.fromkeys(("aurc", "excess_aurc"), "selective.risk"),
    **dict.fromkeys(("benjamini_hochberg", "p_values"), "conformal.p_values"),
    "correction_table": "conformal.corrections",
    "paired_delong": "intervals",
}


def __getattr__(name: str) -> Any:
    """Import a public name's module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'suite')}"), name)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
