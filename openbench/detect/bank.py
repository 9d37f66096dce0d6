"""How a detector keeps a method's bank of training features, and what that changes beside the exact one."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from openbench.core.method import Method
from openbench.core.search import with_params
from openbench.detect.calibration import Calibration, Terms
from openbench.errors import ConfigError
from openbench.metrics.curve import Floats, auroc

Bank = Literal["exact", "float16", "ivf", "ivf_float16"]
_HALF, _LISTS = {"precision": "float16"}, {"index": "ivf"}
# Bank → the hyper-parameters of a method that keeps one.
BANKS: Mapping[Bank, Mapping[str, Any]] = MappingProxyType(
    {"exact": {}, "float16": _HALF, "ivf": _LISTS, "ivf_float16": {**_LISTS, **_HALF}}
)


@dataclass(frozen=True)
class Sides:
    """The scores of one fitted method on the sets by which two are compared, (n,) each.

    Args:
        held_out: of the images that it is calibrated on.
        others: of other ID images.
        ood: of OOD images.
    """

    held_out: Floats
    others: Floats
    ood: Floats


@dataclass(frozen=True)
class Change:
    """What another bank changes, each being calibrated on scores of its own.

    Args:
        bank: that is used.
        auroc: with it, in [0, 1].
        auroc_exact: with the exact one.
        p_value_change: the mean of the absolute differences of p-values.
        p_value_change_largest: the largest of them.
        decisions_changed: the share of images about which the decision differs.
        images: by which p-values and decisions are compared.
    """

    bank: str
    auroc: float
    auroc_exact: float
    p_value_change: float
    p_value_change_largest: float
    decisions_changed: float
    images: int

    def plain(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def with_bank(method: Method, bank: Bank, name: str) -> Method:
    """Return an unfitted method that keeps its training features in another way.

    Args:
        method: unfitted.
        bank: how.
        name: of the method, for messages.

    Raises:
        ConfigError: it keeps no bank, or its config says already how.
    """
    wanted = BANKS[bank]
    if not wanted:
        return method
    given = method.params()
    if not {"index", "precision"} <= set(given):
        raise ConfigError(
            f"bank={bank}: method '{name}' keeps no bank of training features that can be searched so — leave bank "
            "out, or choose method=knn"
        )
    if (given["index"], given["precision"]) != ("exact", "float32"):
        raise ConfigError(
            f"bank={bank}: method.index={given['index']} is given too — leave one of them out; bank also measures "
            "what it changes"
        )
    return with_params(method, dict(wanted))


def change(bank: Bank, exact: Sides, used: Sides, terms: Terms) -> Change:
    """Return what a bank changes.

    Args:
        bank: that is used.
        exact: scores with the exact one.
        used: scores with that one.
        terms: what is promised.
    """
    before, after = (
        Calibration(sides.held_out, terms).judged(np.append(sides.others, sides.ood)) for sides in (exact, used)
    )
    apart = np.abs(after.marginal - before.marginal)
    return Change(
        bank=bank,
        auroc=auroc(used.others, used.ood),
        auroc_exact=auroc(exact.others, exact.ood),
        p_value_change=float(apart.mean()),
        p_value_change_largest=float(apart.max()),
        decisions_changed=float((after.is_ood != before.is_ood).mean()),
        images=apart.size,
    )
