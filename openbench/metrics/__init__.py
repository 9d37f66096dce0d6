"""Metrics as pure functions on score arrays: ranking, thresholds, selective risk, conformal, intervals. No torch.

An OOD score is larger for what looks more out-of-distribution, and metrics take ID and OOD scores as two arrays.
"""

from importlib import import_module
from typing import Any

# Module → its public names. It is imported at their first use: tables need `keys` alone, and scipy takes a third of a
# second.
_MODULES = {
    "conformal.corrections": ("correction_table",),
    "conformal.p_values": ("benjamini_hochberg", "p_values"),
    "curve": (
        *("PooledCurve", "aupr_in", "aupr_out", "auroc"),
        *("detection_error", "fpr95", "fpr_at_tpr", "fpr_at_tpr_id_positive"),
    ),
    "intervals": ("paired_delong",),
    "selective.risk": ("augrc", "aurc", "excess_aurc"),
    "suite": ("MetricOptions", "SetScores", "describe", "evaluate", "higher_is_better"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Return a public name of the package, importing its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *_HOMES})
