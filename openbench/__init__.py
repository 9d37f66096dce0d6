"""openbench: out-of-distribution detection measured so that the numbers can be trusted.

The names below are what `import openbench as ob` offers; each is loaded when it is first used, so that the import
itself loads neither torch nor pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openbench.api.evaluate import evaluate
    from openbench.api.features import evaluate_features
    from openbench.api.methods import Estimator, method
    from openbench.api.records import load, records
    from openbench.api.result import ModelResults, Result, Results
    from openbench.api.scores import evaluate_scores
    from openbench.core.preprocess import Preprocess
    from openbench.detect.detector import Detector, load_detector
    from openbench.detect.monitor.monitor import Monitor
    from openbench.detect.recommend import recommend

__version__ = "0.1.0"

# Public name → the module that defines it; None: it is a module itself.
_LAZY = {
    "Detector": "openbench.detect.detector",
    "Estimator": "openbench.api.methods",
    "ModelResults": "openbench.api.result",
    "Monitor": "openbench.detect.monitor.monitor",
    "Preprocess": "openbench.core.preprocess",
    "Result": "openbench.api.result",
    "Results": "openbench.api.result",
    "evaluate": "openbench.api.evaluate",
    "evaluate_features": "openbench.api.features",
    "evaluate_scores": "openbench.api.scores",
    "load": "openbench.api.records",
    "load_detector": "openbench.detect.detector",
    "method": "openbench.api.methods",
    "metrics": None,
    "recommend": "openbench.detect.recommend",
    "records": "openbench.api.records",
    "testing": None,
}

__all__ = [
    "Detector",
    "Estimator",
    "ModelResults",
    "Monitor",
    "Preprocess",
    "Result",
    "Results",
    "__version__",
    "evaluate",
    "evaluate_features",
    "evaluate_scores",
    "load",
    "load_detector",
    "method",
    "metrics",
    "recommend",
    "records",
    "testing",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'openbench' has no attribute '{name}' — it offers {', '.join(sorted(_LAZY))}")
    home = _LAZY[name]
    found = import_module(f"openbench.{name}") if home is None else getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
