"""`openbench.recommend`: which method to take, as data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.core.composite import leaves
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Role
from openbench.detect.recommend.choose import OF_TEXT, Advice, Facts, Limits, recommended
from openbench.engine.api import build_method
from openbench.errors import OpenbenchError, RecordError


def recommend(
    benchmark: str,
    *,
    latency_ms: float | None = None,
    memory_mb: float | None = None,
    without: Sequence[str] = (),
    backbone: str = "",
    training: str = "",
    folder: str | Path | None = None,
) -> list[Advice]:
    """Return which method to take on each network that a benchmark was run on, from its records; `str` says why.

    Args:
        benchmark: its name, e.g. `cifar10`.
        latency_ms: at most so many milliseconds per image, besides the network's own pass.
        memory_mb: at most so many 10⁶ bytes of what the method has learnt, besides the network.
        without: what you do not have, of `training data`, `outliers`, `gradients`, `text`.
        backbone: this network only.
        training: trained this way only.
        folder: a results folder; None = OPENBENCH_RESULTS, else `./results`.

    Raises:
        ConfigError: no such records, or a limit that is not allowed.
        RecordError: no such folder, or a file among the records that is not one.
    """
    lost: list[RecordError] = []
    limits = Limits(latency_ms, memory_mb, tuple(without), backbone, training)
    found = recommended(
        paths.results_dir() if folder is None else Path(folder).expanduser(),
        benchmark,
        limits,
        Facts(needs_of, learnt_of),
        lost.append,
    )
    if lost:
        raise lost[0]
    return found


def needs_of(name: str, params: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return what a method needs, from its objects; None if it is not shipped with openbench.

    Args:
        name: what users type after `method=`.
        params: its hyper-parameters.
    """
    method = method_of(name, params)
    if method is None:
        return None
    parts = list(leaves(method))
    requests = [part.request for part in parts]
    wanted = {
        "training data": any(request.fit_on == Role.ID_TRAIN for request in requests),
        "outliers": any(request.fit_on == Role.OOD_TRAIN for request in requests),
        "gradients": any(request.perturb or request.second_pass for request in requests)
        or any(isinstance(part, LiveMethod) for part in parts),
        "text": any(request.texts for request in requests) or any(type(part).__name__ in OF_TEXT for part in parts),
    }
    return tuple(need for need, asked in wanted.items() if asked)


def method_of(name: str, params: Mapping[str, Any]) -> Method | None:
    """Return a shipped method, unfitted; None if there is none of that name, or it cannot be made here.

    Args:
        name: what users type after `method=`.
        params: its hyper-parameters.
    """
    node = shipped("method", name)
    if node is None:
        return None
    try:
        return build_method({**node, **_known(node, params), NAME: name})[0]
    except OpenbenchError:  # e.g. it needs a library that is not installed
        return None


def learnt_of(name: str, params: Mapping[str, Any], shape: Mapping[str, float | None]) -> float | None:
    """Return what a method keeps when it is fitted, in 10⁶ bytes; None if it is not known.

    Args:
        name: what users type after `method=`.
        params: its hyper-parameters.
        shape: what it is fitted on: `train` and `val` images, `width` of the features, `classes`.
    """
    from openbench.detect.recommend.memory import Shape, learnt_mb  # which loads PyTorch

    known = {key: int(value) for key, value in shape.items() if value is not None}
    return learnt_mb(name, params, Shape(**known)) if len(known) == len(shape) else None


def _known(node: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters that are plain values; parts are as in the config."""
    return {key: value for key, value in params.items() if not isinstance(node.get(key), Mapping) and key in node}
