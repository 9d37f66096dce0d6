"""Hyper-parameters as tables show them: what was tuned, or set otherwise than the method's config file says."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.digest import digest
from openbench.public import public
from openbench.results.names import is_part

_ALTERNATIVES = 24  # characters in which differing words are listed; more are counted


def hyper_parameters(params: Mapping[str, Any]) -> str:
    """Return hyper-parameters as `k=50, metric=l2`; empty if there are none."""
    return ", ".join(f"{key}={written(params[key])}" for key in sorted(params))


def not_default(node: Mapping[str, Any], params: Mapping[str, Any], tuned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyper-parameters of a run that somebody or something chose.

    The defaults are those of configs/method now: where one has changed since the run, the run's value is shown.

    Args:
        node: the config's method node.
        params: all hyper-parameters, as the record holds them.
        tuned: those chosen on validation.
    """
    default = _file(str(node.get(NAME)))
    given = {key: value for key, value in node.items() if not str(key).startswith("_")}
    chosen = {key for key in given if key not in default or not _same(given[key], default[key])}
    return {key: params.get(key, given.get(key)) for key in sorted(chosen | set(tuned))}


def _same(one: Any, other: Any) -> bool:
    """Whether two values have one digest, as 1 and 1.0 do; of plain ones of one type without computing it."""
    if type(one) is type(other) and isinstance(one, str | bool | int | None):
        return bool(one == other)
    return digest(one) == digest(other)


def over_runs(chosen: Sequence[Mapping[str, Any]]) -> str:
    """Return the hyper-parameters of the runs of one row, e.g. `k=20…100, metric=l2 (3 seeds)`.

    Numbers that differ become a range; words are listed where that is short, and else counted.

    Args:
        chosen: of each run, as `not_default` returns them.
    """
    names = sorted({name for one in chosen for name in one})
    values = {name: [one.get(name) for one in chosen] for name in names}
    differ = any(len({written(v) for v in found}) > 1 for found in values.values())
    text = ", ".join(f"{name}{_merged(found)}" for name, found in values.items())
    return f"{text} ({len(chosen)} seeds)" if differ else text


def written(value: Any) -> str:
    """Return a value as it is shown: numbers short, lists in brackets, mappings in braces."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {written(of)}" for key, of in value.items()) + "}"
    return "[" + ", ".join(map(written, value)) + "]" if isinstance(value, list | tuple) else str(value)


def _merged(values: Sequence[Any]) -> str:
    if all(isinstance(value, float | int) and not isinstance(value, bool) for value in values):
        low, high = written(min(values)), written(max(values))
        return f"={low}" if low == high else f"={low}…{high}"
    texts = sorted({written(value) for value in values})
    listed = "/".join(texts)
    return f"={listed}" if len(texts) == 1 or len(listed) <= _ALTERNATIVES else f": {len(texts)} choices"


@cache
def _file(method: str) -> Mapping[str, Any]:
    """The values of a method's config file; none for a method that openbench does not ship."""
    found = shipped("method", method) if is_part(method) else None
    return public(found or {})  # type: ignore[no-any-return]
