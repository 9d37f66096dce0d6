"""Public checks and toy data for authors of methods, in openbench and elsewhere."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openbench.testing.report import MethodReport, check_method

__all__ = ["MethodReport", "check_method"]


def __getattr__(name: str) -> Any:
    """Import a public name: the checks need torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("openbench.testing.report"), name)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
