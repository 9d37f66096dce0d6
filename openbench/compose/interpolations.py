"""What `${…}` in a config may read, and how much: a node that enters a record reads nothing but the config."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from omegaconf.base import Container as Base
from omegaconf.base import Node

from openbench.errors import ConfigError

# A resolver of any other name reads what is not in the config: oc.env, hydra, now.
_OF_THE_CONFIG = frozenset(
    ("by_data", "oc.create", "oc.decode", "oc.deprecated", "oc.dict.keys", "oc.dict.values", "oc.select")
)
RUNTIME = "runtime"
_MOST = 2_000  # references followed in one node, a long value counting as several
_LONG = 100  # characters of text that count as one


class _RefusedError(Exception):
    """Goes through OmegaConf, which wraps whatever is raised while it resolves."""


@contextmanager
def limited(name: str) -> Iterator[None]:
    """Resolve a node of a config here: what it must not read, and what would not end, is an error.

    OmegaConf has no hook for this, hence its two methods that follow a reference are replaced meanwhile.

    Args:
        name: of the node; only `runtime`, which enters no record, may read the environment.

    Raises:
        ConfigError: it reads the environment, or follows too many references.
    """
    follow, call = Base._resolve_node_interpolation, Base._evaluate_custom_resolver
    followed = 0

    def count(value: Any) -> Any:
        nonlocal followed
        followed += _weight(value)
        if followed > _MOST:
            raise _RefusedError(
                f"{name}: more than {_MOST:,} references `${{…}}` are followed, or fewer to long values — allowed: at "
                "most so many — write the values out"
            )
        return value

    def counted(self: Base, inter_key: str, memo: set[int] | None) -> Node:
        found: Node = count(follow(self, inter_key, memo))
        return found

    def closed(self: Base, key: Any, node: Node, inter_type: str, **rest: Any) -> Any:
        if name != RUNTIME and inter_type not in _OF_THE_CONFIG:
            place = self._get_full_key(key)
            raise _RefusedError(
                f"{place or name}: `${{{inter_type}:…}}` reads what is not in the config, and a record would show it — "
                "allowed: references to other keys; the environment in `runtime` only — write the value itself, or "
                f'type it: {place or name}="$NAME"'
            )
        return count(call(self, key=key, node=node, inter_type=inter_type, **rest))

    Base._resolve_node_interpolation, Base._evaluate_custom_resolver = counted, closed  # type: ignore
    try:
        yield
    except Exception as error:
        refused = _behind(error)
        if isinstance(refused, RecursionError):
            raise ConfigError(
                f"{name}: references `${{…}}` to references to references, too many of them — write the values out"
            ) from None
        if refused is None:
            raise
        raise ConfigError(str(refused)) from None
    finally:
        Base._resolve_node_interpolation, Base._evaluate_custom_resolver = follow, call  # type: ignore


def calls(text: object) -> bool:
    """Whether a text calls a resolver, as `${oc.env:NAME}` does."""
    return isinstance(text, str) and re.search(r"\$\{.*:", text, re.DOTALL) is not None


def _weight(value: Any) -> int:
    """How many references a value counts for."""
    pending, weight = [value], 0
    while pending and weight <= _MOST:
        found = pending.pop()
        content = found._value() if isinstance(found, Node) else found
        weight += 1
        if isinstance(content, dict):
            pending += content.values()
        elif isinstance(content, list):
            pending += content
        elif isinstance(content, str):
            weight += len(content) // _LONG
    return weight


def _behind(error: BaseException | None) -> BaseException | None:
    """The refusal, or the exhausted recursion, behind an error of OmegaConf; None if there is neither."""
    while error is not None and not isinstance(error, _RefusedError | RecursionError):
        error = error.__cause__ or error.__context__
    return error
