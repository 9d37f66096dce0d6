"""What a method reads of the splits of a benchmark, with all the settings that are searched."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from openbench.core.composite import leaves
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Mixing, Request, Role
from openbench.core.search import grid, with_params
from openbench.errors import MethodError


def settings_of(method: Method, space: Mapping[str, Any]) -> list[Method]:
    """Return a method at each setting of a space, unfitted; without those that it refuses, which tuning leaves out."""
    found = []
    for params in grid(space, list(method.params())):
        with suppress(MethodError):
            found.append(with_params(method, params))
    return found


def mixings_of(method: Method, space: Mapping[str, Any], role: Role) -> list[Mixing]:
    """Return how the images of a split are mixed for fitting, at all settings."""
    found = (leaf.request for setting in (method, *settings_of(method, space)) for leaf in leaves(setting))
    return list(dict.fromkeys(r.mixing for r in found if r.mixing is not None and r.fit_on == role))


def requests_of(method: Method, space: Mapping[str, Any], role: Role) -> list[Request]:
    """Return what a split is read with: clean columns for fitting, every searched perturbation on validation splits."""
    if role == Role.ID_TRAIN:
        fitted = [leaf.request for leaf in leaves(method)]
        return [request.clean for request in fitted if request.fit_on == role]
    if role == Role.OOD_TRAIN:
        return []
    settings = settings_of(method, space if role in (Role.ID_VAL, Role.OOD_VAL) else {})
    found = (leaf for setting in settings for leaf in leaves(setting))
    return list(dict.fromkeys(leaf.request.unmixed for leaf in found if not isinstance(leaf, LiveMethod)))
