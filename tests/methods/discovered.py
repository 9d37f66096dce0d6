"""The methods of configs/method, found there, at their defaults and at each choice of their options."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml
from torch import Tensor

from openbench import paths
from openbench.config.build import build, target_of
from openbench.core.features import FeatureSet
from openbench.core.method import Composite, LiveMethod, Method, StreamingMethod
from openbench.errors import NotApplicableError
from openbench.public import public_name

NODES: dict[str, dict[str, Any]] = {
    file.stem: yaml.safe_load(file.read_text(encoding="utf-8"))
    for file in sorted((paths.config_dir() / "method").glob("*.yaml"))
}
# Several configs of one class, e.g. two parts of a double score or one adapter's detectors; what has no own defaults.
PRESETS = {name for name, node in NODES.items() if name.replace("_", "") != public_name(node["_target_"]).lower()}
COMPOSITES = {name for name, node in NODES.items() if issubclass(target_of(node), Composite)}
# What a method can be only once tuning has found numbers for it.
TUNED_ONLY = {("mds_ensemble", "weights", "logistic")}
Variant = tuple[str, dict[str, Any]]
# What trains a network at every fit does so in a fraction of a second: fewer and larger steps, on fewer samples; enough
# of them to tell the planted clusters apart.
SHORTER = {
    "cblof": {"max_train": 200},
    "dagmm": {"epochs": 2, "learning_rate": 1e-2},
    "deep_svdd": {"max_train": 16},
    "opengan": {"epochs": 5, "epoch": 5, "every": 1, "lr": 5e-4, "_space_": {"epoch": [4, 5]}},
}


def node_of(name: str, change: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {**NODES[name], **SHORTER.get(name, {}), **(change or {})}


def choices(hint: Any) -> list[Any]:
    """The values that an annotation enumerates: those of a Literal, True and False for a bool."""
    if hint is bool:
        return [False, True]
    parts = [hint] if get_origin(hint) is Literal else [a for a in get_args(hint) if get_origin(a) is Literal]
    return list(itertools.chain.from_iterable(get_args(part) for part in parts))


def variants() -> list[Variant]:
    """Each method as its yaml has it, then with each discrete option set to each value that it allows.

    Presets are such settings themselves.
    """
    found: list[Variant] = []
    for name, node in NODES.items():
        found.append((name, {}))
        if name in PRESETS:
            continue
        hints = get_type_hints(target_of(node))
        for option in (key for key in node if not key.startswith("_")):
            values = [value for value in choices(hints[option]) if value != node[option]]
            found += [(name, {option: value}) for value in values if (name, option, value) not in TUNED_ONLY]
    return found


def label(variant: Variant) -> str:
    """`kpca[kernel=cosine]`."""
    name, change = variant
    return name + "".join(f"[{key}={value}]" for key, value in change.items())


def reading_columns() -> Iterator[tuple[str, Method]]:
    """Every variant that scores columns by itself, by its label; without those that a library is missing for."""
    for name, change in variants():
        try:
            method = build({**NODES[name], **change}, name, Method)
        except NotApplicableError:
            continue
        if not isinstance(method, LiveMethod | Composite):
            yield label((name, change)), method


def again(method: Method, small: Mapping[str, Any] | None = None) -> Method:
    """A new one of the same parameters, with others for those that it has."""
    params = method.params()
    return type(method)(**params | {key: value for key, value in (small or {}).items() if key in params})


def scores(method: Method, x: FeatureSet) -> Tensor:
    """The scores (n,) of samples; to a streaming method they are a stream."""
    return method.score_next(x, method.memory()) if isinstance(method, StreamingMethod) else method.score(x)
