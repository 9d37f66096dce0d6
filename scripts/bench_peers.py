"""Other libraries' methods on the arrays of `bench_methods.py`: what each is timed against.

pytorch-ood and PyOD come with the project's `test` extra; oodeel is used where it is installed. None does more work
than it needs: no step on the input, no network, batches without a loader, the whole test set at once where batches cost
more. Settings are those of the method beside them.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from openbench._compat import prepare_torchvision
from openbench.core.features import Head

BATCH = 4096  # rows scored at a time
VALIDATION = 50_000  # at most so many samples are fitted on as ID validation
Step = Callable[[], object]


def peers(name: str, data: Any) -> dict[str, tuple[Step, Step]]:
    """Return fit and score of every library installed that has the method `name`, by the library's name."""
    found = {}
    for library, made in (("pytorch-ood", _pytorch_ood), ("oodeel", _oodeel), ("PyOD", _pyod)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of their imports
            steps = made(name, data)
        if steps is not None:
            found[library] = steps
    return found


def _imported(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None


def _in_batches(score: Callable[[Tensor], Any], column: Tensor) -> Step:
    return lambda: [score(rows) for rows in torch.split(column, BATCH)]


def _nothing() -> None:
    """Fit a method that has nothing to fit."""


def _linear(head: Head) -> nn.Linear:
    layer = nn.Linear(head.weight.shape[1], head.num_classes)
    layer.load_state_dict({"weight": head.weight, "bias": head.bias})
    return layer.requires_grad_(False)


def _pytorch_ood(name: str, data: Any) -> tuple[Step, Step] | None:
    prepare_torchvision()
    theirs = _imported("pytorch_ood.detector")
    if theirs is None:
        return None
    train, test, head = data.train, data.test, _linear(data.head)
    on_logits = {"energy": "EnergyBased", "gen": "GEN", "msp": "MaxSoftmax", "mls": "MaxLogit"}
    if name in on_logits:
        return _nothing, _in_batches(getattr(theirs, on_logits[name]).score, test.logits)
    fitted_on_logits = {
        "klm": lambda: theirs.KLMatching(None),
        "openmax": lambda: theirs.OpenMax(None, tailsize=20, alpha=3),
        "temp_scaling": lambda: theirs.TemperatureScaling(None),
    }
    if name in fitted_on_logits:
        rows = train if name == "openmax" else train[:VALIDATION]
        detector = fitted_on_logits[name]()
        return (
            lambda: detector.fit_logits(rows.logits, rows.labels),
            _in_batches(detector.predict_logits, test.logits),
        )
    on_features = {
        "dice": lambda: theirs.DICE(None, data.head.weight, data.head.bias, p=0.9),
        "fdbd": lambda: theirs.fDBD(None, head),
        "knn": lambda: theirs.KNN(None, k=50),
        "lts": lambda: theirs.LTS(None, head),
        "mcm": lambda: theirs.MCM(None, data.head.weight),
        "mds": lambda: theirs.Mahalanobis(None),
        "nci": lambda: theirs.NCI(None, head, alpha=1e-4),
        "rmds": lambda: theirs.RMD(None),
        "she": lambda: theirs.SHE(None, data.head),
        "vim": lambda: theirs.ViM(None, d=256, w=data.head.weight, b=data.head.bias),
    }
    if name in on_features:
        detector = on_features[name]()
        fit = _nothing if name in ("lts", "mcm") else lambda: detector.fit_features(train.features, train.labels)
        return fit, _in_batches(detector.predict_features, test.features)
    after_pooling = nn.Sequential(nn.Flatten(), head)
    on_maps = {
        "ash": lambda: theirs.ASH(None, after_pooling, variant="ash-b", percentile=0.9),
        "react": lambda: theirs.ReAct(None, after_pooling, percentile=0.9),
        "scale": lambda: theirs.SCALE(None, after_pooling, percentile=0.85),
    }
    if name in on_maps:
        detector = on_maps[name]()
        fit = (
            (lambda: detector.fit_feature_maps(train.features[:, :, None, None], train.labels))
            if name == "react"
            else _nothing
        )
        return fit, _in_batches(detector.predict_feature_maps, test.features[:, :, None, None])
    return None


def _oodeel(name: str, data: Any) -> tuple[Step, Step] | None:
    theirs = _imported("oodeel.methods")
    made: dict[str, Callable[[], Any]] = {} if theirs is None else {
        "knn": lambda: theirs.DKNN(nearest=50),
        "mds": lambda: theirs.Mahalanobis(eps=0),
        "rmds": lambda: theirs.RMDS(eps=0),
        "she": lambda: theirs.SHE(eps=0),
        "vim": lambda: theirs.VIM(princ_dims=256),
    }  # fmt: skip
    if name not in made:
        return None
    detector, rows = made[name](), TensorDataset(data.train.features, data.train.labels)
    # Rows of a batch at once: its own loader would read them one by one.
    loader = DataLoader(rows, sampler=BatchSampler(SequentialSampler(rows), BATCH, False), batch_size=None)
    model = nn.Sequential(OrderedDict(features=nn.Identity(), head=_linear(data.head)))
    return (
        lambda: detector.fit(model, loader, feature_layers_id=["features"]),
        _in_batches(detector.score, data.test.features),
    )


def _pyod(name: str, data: Any) -> tuple[Step, Step] | None:
    theirs = _imported("pyod.models")
    if theirs is None or name not in ("copod", "ecod"):
        return None
    detector = getattr(import_module(f"pyod.models.{name}"), name.upper())()
    return (
        lambda: detector.fit(data.train.features.numpy()),
        lambda: detector.decision_function(data.test.features.numpy()),
    )
