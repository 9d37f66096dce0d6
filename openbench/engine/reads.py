"""What a method reads of the splits of a benchmark, with all the settings that are searched."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from openbench.core.composite import leaves
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Request, Role
from openbench.core.search import grid, with_params


def requests_of(method: Method, space: Mapping[str, Any], role: Role) -> list[Request]:
    """Return what a split is read with: clean columns for fitting, every searched perturbation on validation splits."""
    if role == Role.ID_TRAIN:
        fitted = [leaf.request for leaf in leaves(method)]
        return [replace(request, perturb=None, corruption=None) for request in fitted if request.fit_on == role]
    if role == Role.OOD_TRAIN:
        return []
    settings = grid(space, list(method.params())) if role in (Role.ID_VAL, Role.OOD_VAL) else [{}]
    found = (leaf for params in settings for leaf in leaves(with_params(method, params)))
    return list(dict.fromkeys(leaf.request for leaf in found if not isinstance(leaf, LiveMethod)))
