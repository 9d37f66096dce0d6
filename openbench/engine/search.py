"""Which hyper-parameter settings are tried, and in which order."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from openbench.errors import ConfigError, did_you_mean


def grid(space: Mapping[str, Sequence[Any]], parameters: Sequence[str], where: str = "method") -> list[dict[str, Any]]:
    """Return the Cartesian product of a space; the first list varies fastest, as in OpenOOD's search.

    Args:
        space: hyper-parameter → values to try.
        parameters: the method's hyper-parameters.
        where: the method's name, for messages.

    Raises:
        ConfigError: the space names something that is no hyper-parameter, or a list that is empty.
    """
    for name, values in space.items():
        if name not in parameters:
            raise ConfigError(
                f"{where}: `_space_` names '{name}', which is no hyper-parameter{did_you_mean(name, parameters)} "
                f"— allowed: {', '.join(parameters)}"
            )
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise ConfigError(f"{where}: `_space_.{name}` must be a list of at least one value — found {values!r}")
    names = list(space)
    slowest_first = itertools.product(*(space[name] for name in reversed(names)))
    return [dict(zip(names, reversed(values), strict=True)) for values in slowest_first]
