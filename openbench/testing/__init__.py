"""Public checks and toy data for authors of methods, in openbench and elsewhere."""

from openbench.testing.report import MethodReport, check_method

__all__ = ["MethodReport", "check_method"]
