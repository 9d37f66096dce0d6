"""Methods as callers name them: by what is typed after `method=`, or as an object, also of a class of their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openbench import paths
from openbench.config.build import build
from openbench.config.overrides import NAME
from openbench.config.shipped import named_for, shipped
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Field, Request
from openbench.errors import ConfigError, check_known, did_you_mean
from openbench.public import TARGET, name_of

_SPACE = "_space_"


@dataclass(frozen=True)
class ChosenMethod:
    """An unfitted method, and what stands for it in a record.

    Args:
        name: what users type, or the class's name in lower case.
        method: unfitted.
        node: its config.
        space: hyper-parameter → values that tuning tries; empty where the hyper-parameters were given.
    """

    name: str
    method: Method
    node: Mapping[str, Any]
    space: Mapping[str, Any]


def chosen_method(given: Any, params: Mapping[str, Any] | None = None, name: str = "") -> ChosenMethod:
    """Return the method that a caller names or passes.

    Args:
        given: a name, as after `method=`; an object of a class that derives from Method; or what `openbench.method`
            returned.
        params: hyper-parameters in place of the defaults; nothing is then tuned.
        name: how it is called in results; empty = the name typed, or of the class in lower case.

    Raises:
        ConfigError: an unknown name or hyper-parameter, a value out of its range, or something else than a method.
    """
    held = getattr(given, "as_method", None)
    if held is not None and not isinstance(given, type):
        given = held()
    if isinstance(given, Method):
        check_known(params or {}, given.params(), type(given).__name__)
        method = type(given)(**{**given.params(), **(params or {})})
        own = named_for(name_of(type(given)), "method") if _ours(given) else type(given).__name__.lower()
        return ChosenMethod(name or own, method, {**as_node(method), NAME: name or own}, {})
    if not isinstance(given, str):
        raise ConfigError(
            f"method — found a {type(given).__name__}{' (a class)' * isinstance(given, type)} — allowed: a name, as "
            "`python -m openbench list method` prints them, or an object of a class that derives from "
            "openbench.core.method.Method"
        )
    node = _node(given)
    node |= {**(params or {}), NAME: name or given}
    method = build(node, f"method '{given}'", Method)
    return ChosenMethod(name or given, method, node, {} if params else node.get(_SPACE) or {})


def as_node(method: Method) -> dict[str, Any]:
    """Return the config node that makes a method; a method among its hyper-parameters is a node itself."""
    values = {key: as_node(v) if isinstance(v, Method) else v for key, v in method.params().items()}
    kind = type(method)
    return {TARGET: f"{kind.__module__}.{kind.__qualname__}", **values}


def beyond_features(method: Method, request: Request) -> list[str]:
    """Return, in words, what a method reads that is neither features, logits, labels nor a head.

    Args:
        method: unfitted.
        request: its own, or that of a part of it.
    """
    found = ["images"] * isinstance(method, LiveMethod)
    found += ["maps of its layers"] * (Field.MAPS in request.fields)
    found += ["mixed images"] * (request.mixing is not None)
    return found + ["input gradients"] * bool(request.perturb or request.second_pass)


def _node(name: str) -> dict[str, Any]:
    """The config of a shipped method."""
    known = sorted(file.stem for file in (paths.config_dir() / "method").glob("*.yaml"))
    found = shipped("method", name) if name in known else None
    if found is None:
        raise ConfigError(
            f"method '{name}' not found in configs/method{did_you_mean(name, known)} — an object of a class "
            "of your own goes wherever a name goes (python -m openbench list method)"
        )
    if not found.get(TARGET):
        raise ConfigError(f"method '{name}' is chosen by the training of a network — name the method itself")
    return found


def _ours(method: Method) -> bool:
    return "." not in name_of(type(method))
