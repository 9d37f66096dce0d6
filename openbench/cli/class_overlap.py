"""Class overlap: how many OOD classes of a benchmark the weights of a network were trained on, for leaderboards."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from openbench import paths
from openbench.config.shipped import names
from openbench.core.benchmark import canonical
from openbench.data.weights import Weights, released_weights
from openbench.errors import OpenbenchError
from openbench.public import TARGET, public
from openbench.storage.yaml_file import read_yaml

# What of a backbone's node tells which weights it has, whatever its name.
_TELLS = (TARGET, "model", "weights", "pretrained", "checkpoint", "sha256")
_UNKNOWN = "not known"


def class_overlap(benchmark: str, backbone: Mapping[str, Any]) -> str:
    """Return how many OOD classes were among the labels that a network learnt before, e.g. `12 of 160`, or `none`.

    Near and far sets count together; how many of them name no classes is said too. `not known` for weights that are
    not of openbench's list, such as your own checkpoint. Empty where the benchmark's lists cannot be read.

    Args:
        benchmark: its name, as records have it.
        backbone: the node of a network that came with weights, as records have it: its weights count, not its name.
    """
    return _overlap(benchmark, json.dumps(_weights_of(backbone)))


@lru_cache(maxsize=256)
def _overlap(benchmark: str, node: str) -> str:
    listed = _ood_classes(benchmark)
    classes = {canonical(name): name for own in listed for name in own}
    if not classes:
        return ""
    weights = _released().get(node)
    found = _UNKNOWN if weights is None else weights.pretraining.seen(tuple(classes.values()))
    if found.startswith(_UNKNOWN):
        return _UNKNOWN
    nameless = sum(not own for own in listed)
    more = f" ({nameless} of {len(listed)} sets name no classes)" if nameless else ""
    return f"{found.partition(':')[0]}{more}"


def _weights_of(backbone: Mapping[str, Any]) -> dict[str, Any]:
    """What tells the weights of a network, or those that its training started from."""
    start = backbone.get("start")
    node = public(start if isinstance(start, Mapping) else backbone)
    return {key: node[key] for key in _TELLS if node.get(key) is not None}


@lru_cache(maxsize=1)
def _released() -> Mapping[str, Weights]:
    """The released weights, by what tells them."""
    folder = paths.config_dir() / "backbone"
    nodes = {name: read_yaml(folder / f"{name}.yaml") for name in released_weights()}
    return {json.dumps(_weights_of(node)): released_weights()[name] for name, node in nodes.items()}


@lru_cache(maxsize=64)
def _ood_classes(benchmark: str) -> tuple[tuple[str, ...], ...]:
    """The classes that each near and far set of a shipped benchmark names; some name none. Empty if unreadable."""
    from openbench.compose.composed import composed
    from openbench.data.benchmark_config import BenchmarkConfig
    from openbench.data.dataset import SetConfig

    if benchmark not in names("benchmark"):
        return ()
    try:
        node = composed("run", [f"+benchmark={benchmark}"]).config["benchmark"]
        sets = [entry for entry in BenchmarkConfig.parse(node).sets if entry.path.startswith(("near.", "far."))]
        listings = [SetConfig.from_node(entry.node, f"benchmark.{entry.path}").listing() for entry in sets]
    except OpenbenchError:
        return ()
    return tuple(tuple(listing.class_names()) for listing in listings)
