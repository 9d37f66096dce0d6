"""Values that a method cannot have are refused when it is made, by the name of the hyper-parameter."""

from openbench.config.build import target_of
from openbench.errors import MethodError

from .discovered import NODES

# Config → values that its class refuses, each by itself.
WRONG = {
    "adascale_a": [
        {"variant": "b"},
        {"percentiles": [85, 75]},
        {"percentiles": [85]},
        {"percentiles": [0, 100]},
        {"k1": 0},
        {"k2": 101},
        {"weight": -1},
        {"share": 0},
        {"epsilon": -0.1},
        {"samples": 0},
    ],
    "ash": [{"percentile": 100}, {"percentile": -1}, {"variant": "rand"}],
    "cfood": [{"alpha": 0}, {"alpha": 1.1}, {"share": 0.0}, {"share": 2}],
    "cof": [{"k": 0}, {"max_train": 1}],
    "dagmm": [{name: 0} for name in ("components", "latent", "epochs", "batch", "learning_rate")],
    "dice": [{"percentile": -1}, {"percentile": 101}],
    "dropout": [{"passes": 0}, {"probability": 1.0}],
    "gen": [{"gamma": 0}, {"top": 0}],
    "godin": [{"epsilon": -1.0}, {"form": "max"}],
    "gram": [{"layers": []}, {"powers": 11}, {"powers": 0}, {"form": "head"}, {"held_out": 1.0}],
    "iodin": [{"temperature": 0}, {"epsilon": -0.1}, {"scale": "odds"}],
    "knn": [{"k": 0}, {"index": "annoy"}, {"probes": 0}],
    "kpca": [{"kernel": "rbf"}, {"variance": 0.0}, {"variance": 1.0}, {"gamma": 0.0}, {"components": 1}],
    "line": [{"weight_percentile": 100}, {"activation_percentile": -1}, {"clip": 0.0}],
    "lts": [{"percentile": -1}, {"percentile": 100}],
    "mds_ensemble": [{"layers": []}, {"weights": "ridge"}, {"epsilon": -0.1}],
    "nac": [{"bins": 51}, {"bins": 2}, {"full": 0}, {"steepness": 0.0}, {"samples": 0}],
    "nci": [{"alpha": -1.0}],
    "nnguide": [{"k": 0}, {"alpha": 0}, {"bank": "random"}],
    "odin": [{"temperature": 0}, {"epsilon": -0.1}, {"scale": "odds"}],
    "opengan": [{"epochs": 0}, {"every": 0}, {"lr": 0.0}, {"batch_size": 1}, {"latent": 0}],
    "openmax": [{"alpha": 0}, {"tail": 1}],
    "optfs": [{"intervals": 0}, {"form": "msp"}],
    "pro": [{"confidence": "energy"}, {"epsilon": -0.1}, {"steps": -1}, {"steps": 1.5}, {"temperature": 0}],
    "pyod_knn": [{"detector": "SOD"}, {"detector": "KNN", "max_train": 1}],
    "rankfeat": [{"layers": []}, {"temperature": 0}, {"solver": "svds"}, {"iterations": 0}],
    "react": [{"percentile": -1}, {"percentile": 101}, {"percentile": float("nan")}],
    "relation": [{"power": -1}, {"threshold": -0.1}],
    "residual": [{"dim": 0}, {"dim": -3}, {"dim": 2.5}, {"dim": "half"}],
    "scale": [{"percentile": -1}, {"percentile": 100}],
    "she": [{"metric": "dot"}],
    "sngp": [{"factor": -0.1}],
    "sod": [{"k": 0}, {"l": 21}, {"alpha": 1.0}, {"max_train": 1}],
    "temp_scaling": [{"solver": "adam"}],
    "vim": [{"dim": 0}, {"dim": -3}, {"dim": 2.5}, {"dim": "all"}],
    "vra": [{"high": 101}, {"low": -1}, {"low": 95}, {"below": "drop"}],
    "weiper": [
        {"form": "max"},
        {"repeats": 0},
        {"distance": -1.0},
        {"lambda_1": -1.0},
        {"lambda_2": -1.0},
        {"bins": 1},
        {"smoothing": 0},
        {"smoothing_perturbed": 101},
        {"max_train": 0},
    ],
}


def told(name: str, wrong: dict[str, object]) -> str:
    """What a method says to a value."""
    try:
        return f"takes {target_of(NODES[name])(**wrong)}"
    except MethodError as error:
        return str(error)


def test_values_that_a_method_cannot_have_are_refused_by_name():
    said = {f"{name} {wrong}": (told(name, wrong), list(wrong)[-1]) for name, cases in WRONG.items() for wrong in cases}
    assert {case: text for case, (text, key) in said.items() if f".{key}" not in text or "takes" in text} == {}
