"""openbench: a benchmark of out-of-distribution (OOD) detection.

    import openbench as ob

    results = ob.evaluate(model, benchmark="cifar10", methods=["msp", "knn"], preprocess=transform)
    print(results)

`evaluate` takes models, `evaluate_features` and `evaluate_scores` arrays; `method` is a method as an estimator;
`records` and `load` read results from disk; `Detector` and `Monitor` are for use after the benchmark. Each name is
loaded when it is first used, so that the import itself loads neither torch nor pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openbench.api.evaluate import evaluate as evaluate
    from openbench.api.features import evaluate_features as evaluate_features
    from openbench.api.methods import Estimator as Estimator, method as method
    from openbench.api.result import (
        ModelResults as ModelResults,
        Result as Result,
        Results as Results,
        load as load,
        records as records,
    )
    from openbench.api.scores import evaluate_scores as evaluate_scores
    from openbench.core.preprocess import Preprocess as Preprocess
    from openbench.detect.detector import Detector as Detector
    from openbench.detect.monitor import Monitor as Monitor
    from openbench.detect.recommend import recommend as recommend
    from openbench.detect.saved import load_detector as load_detector

__version__ = "0.1.0"

# Module → the public names that it defines.
_HOMES = {
    "api.evaluate": ("evaluate",),
    "api.features": ("evaluate_features",),
    "api.methods": ("Estimator", "method"),
    "api.result": ("ModelResults", "Result", "Results", "load", "records"),
    "api.scores": ("evaluate_scores",),
    "core.preprocess": ("Preprocess",),
    "detect.detector": ("Detector",),
    "detect.monitor": ("Monitor",),
    "detect.recommend": ("recommend",),
    "detect.saved": ("load_detector",),
}
_MODULES = ("metrics", "testing")
__all__ = sorted(["__version__", *_MODULES, *(name for names in _HOMES.values() for name in names)])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"openbench.{name}")
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'openbench' has no attribute '{name}' — it has {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(f"openbench.{home}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
