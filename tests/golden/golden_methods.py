"""Methods: scores and class scores of every config and choice, and of every class that no config names; streams."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from golden_cases import Case, Entry, classes_of, file_of, named, variants
from golden_inputs import Problem, by_class, fitted, problem, scored, streamed

import openbench.methods
from openbench import paths
from openbench.config.build import build, target_of
from openbench.config.folders import shipped
from openbench.core.method import LiveMethod, Method, StreamingMethod, version_of
from openbench.errors import MethodError
from openbench.methods.cover import OnCorrupted
from openbench.methods.libraries import LibraryDetector
from openbench.methods.maps import LayerMDS, SteppedLayerMDS
from openbench.methods.prompts import MCM

KINDS = ("plain", "signed", "odd")
# Parameters that fit 72 samples, so that something is computed; and few epochs, which keep rounding small.
SMALL: Mapping[str, dict[str, Any]] = {
    "KNN": {"k": 5},
    "OpenGAN": {"epochs": 2, "epoch": 2, "every": 1, "batch_size": 36},
    "DAGMM": {"epochs": 2, "batch": 36},
    "WeiPer": {"repeats": 5, "max_train": 60},
    "NAC": {"bins": 20},
    # A label or the dictionary is full after a few images, and only some images are assigned.
    "AdaNeg": {"share": 0.1, "groups": 2, "scale": 8.0, "gap": 0.1, "length": 3},
    "OODD": {"k1": 3, "k2": 2, "queue": 4},
}
# Detectors that PyOD compiles for ten seconds and more; what is ours about them is the same for all detectors.
COMPILED = ("cblof", "hbos")
# Trained again for every case, for a second each.
TRAINED = ("opengan", "dagmm", "deep_svdd")
# Parts of other methods, which no config names.
UNNAMED: tuple[Method, ...] = (
    LayerMDS("stage2", ["stage1", "stage2"]),
    SteppedLayerMDS("stage2", ["stage1", "stage2"], 0.01),
    OnCorrupted(MCM(), "fog", 2),
)


def classes() -> list[type]:
    """Every method of openbench; not the detectors of other libraries, whose numbers are theirs."""
    return [cls for cls in classes_of(openbench.methods, Method) if not issubclass(cls, LibraryDetector)]


def entries() -> Iterator[Entry]:
    """One entry per class."""
    cases: dict[type, dict[str, Case]] = {cls: {} for cls in classes()}
    names = sorted(file.stem for file in (paths.config_dir() / "method").glob("*.yaml") if file.stem not in COMPILED)
    names = [name for name in names if target_of(shipped("method", name) or {}) is not LibraryDetector]
    streaming = [name for name in names if issubclass(target_of(shipped("method", name) or {}), StreamingMethod)]
    made = {}
    for name in sorted(set(names) - set(streaming)):
        node = shipped("method", name) or {}
        method = build({**node, **SMALL.get(target_of(node).__name__, {})})
        made[name] = method, node.get("_space_") or {}
        cases[type(method)] |= _problems(name, method)
    known = {repr(method) for method, _ in made.values()}
    known |= {repr(build(shipped("method", name) or {})) for name in COMPILED}
    for name, (method, space) in made.items():
        for options in () if name in TRAINED else variants(type(method), method.params(), space):
            # Values that do not go with the others make no method; that is for other tests.
            with suppress(MethodError):
                other = type(method)(**{**method.params(), **options})
                if repr(other) not in known:
                    known.add(repr(other))
                    cases[type(method)][f"{name} {named(options)}"] = _case(other, "plain")
    for method in UNNAMED:
        cases[type(method)] |= _problems(type(method).__name__, method)
    for name in streaming:
        node = shipped("method", name) or {}
        for options in ({}, SMALL[target_of(node).__name__]):
            method = build({**node, **options})
            label = " ".join(filter(None, (name, named(options))))
            cases[type(method)] |= {f"{label} {kind}": _of_stream(method, kind) for kind in KINDS}
    for cls, found in cases.items():
        yield Entry(f"methods/{cls.__qualname__}", file_of(cls), found)


def _problems(name: str, method: Method) -> dict[str, Case]:
    """A method on every problem, and its class scores where it may have such."""
    found = {f"{name} {kind}": _case(method, kind) for kind in (KINDS[:1] if name in TRAINED else KINDS)}
    if type(method).class_scores not in (Method.class_scores, LiveMethod.class_scores):
        found |= {f"{name} {kind} by class": _case(method, kind, of_classes=True) for kind in KINDS}
    return found


def _case(method: Method, kind: str, of_classes: bool = False) -> Case:
    return Case(version_of(method), lambda: _result(type(method)(**method.params()), kind, of_classes))


def _of_stream(method: StreamingMethod[Any], kind: str) -> Case:
    """The scores of a stream of samples."""
    return Case(method.version, lambda: streamed(type(method)(**method.params()), _problem(kind)))


@cache
def _problem(kind: str) -> Problem:
    return problem(kind)


def _result(method: Method, kind: str, of_classes: bool) -> torch.Tensor:
    torch.default_generator.manual_seed(0)  # nothing should draw from the global stream; what does, does from here
    data = _problem(kind)
    ready = fitted(method, data)
    if not of_classes:
        return scored(ready, data.test, data)
    found = by_class(ready, data.test)
    return torch.empty(0) if found is None else found
