"""Search of hyper-parameters: settings of a space, the data that a search may use, and its outcome."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from openbench.core.benchmark import Split
from openbench.core.method import Method
from openbench.errors import ConfigError, MethodError, did_you_mean

Trial = dict[str, Any]
M = TypeVar("M", bound=Method)


@dataclass(frozen=True)
class Tuned:
    """The outcome of a search.

    Args:
        params: the best setting; empty if nothing was tuned.
        trials: every setting with its validation AUROC, or why it is infeasible.
        fitted: the method with the best setting, if the search has it already.
    """

    params: dict[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    fitted: Method | None = field(default=None, compare=False, repr=False)


class SearchContext(Protocol):
    """The data that a search may use: splits to fit on, and the two sides on which settings are compared."""

    @property
    def report(self) -> Callable[[int, int, Trial], None]:
        """The function to call after each trial with (done, total, trial)."""

    @property
    def on_test(self) -> bool:
        """Whether the sides are test sets, as for the oracles, rather than validation."""

    def sides(self) -> tuple[Split, tuple[Split, ...]]:
        """The ID split and the OOD splits that settings are compared on."""

    def fit(self, method: Method) -> Method:
        """Fit a method on the split that it declares and return it."""

    def scores(self, fitted: Method, splits: Sequence[Split]) -> NDArray[np.float32]:
        """The scores (n,) of some splits, joined, by a fitted method."""

    def correct(self, split: Split) -> NDArray[np.bool_]:
        """Whether the network's answer to each sample (n,) of an ID split is right."""


@dataclass(frozen=True)
class ChosenMethod:
    """An unfitted method with its config.

    Args:
        name: what users type, or the class's name in lower case.
        method: unfitted.
        node: its config.
        space: hyper-parameter → values that tuning tries; empty where the hyper-parameters were given.
    """

    name: str
    method: Method
    node: Mapping[str, Any]
    space: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @cached_property
    def settings(self) -> tuple[Method, ...]:
        """The method with its default hyper-parameters, then at each setting of its space."""
        return (self.method, *settings_of(self.method, self.space))


def with_params(method: M, params: Mapping[str, Any]) -> M:
    """Return a fresh, unfitted method with some hyper-parameters replaced."""
    return type(method)(**{**method.params(), **params})


def grid(space: Mapping[str, Sequence[Any]], parameters: Sequence[str], where: str = "method") -> list[dict[str, Any]]:
    """Return the Cartesian product of a space; the first list varies fastest, as in OpenOOD's search.

    Args:
        space: hyper-parameter → values to try.
        parameters: the method's hyper-parameters.
        where: the method's name, for messages.

    Raises:
        ConfigError: the space names something that is not a hyper-parameter, or a list that is empty.
    """
    for name, values in space.items():
        if name not in parameters:
            raise ConfigError(
                f"{where}: `_space_` names '{name}', which is not a hyper-parameter{did_you_mean(name, parameters)} "
                f"— allowed: {', '.join(parameters)}"
            )
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise ConfigError(f"{where}: `_space_.{name}` must be a list of at least one value — found {values!r}")
    names = list(space)
    slowest_first = itertools.product(*(space[name] for name in reversed(names)))
    return [dict(zip(names, reversed(values), strict=True)) for values in slowest_first]


def settings_of(method: Method, space: Mapping[str, Any]) -> list[Method]:
    """Return a method at each setting of a space, unfitted; without those that it refuses, which tuning leaves out."""
    if not space:
        return [method]
    settings = []
    for params in grid(space, list(method.params())):
        with suppress(MethodError):
            settings.append(with_params(method, params))
    return settings


def best_trial(method: Method, trials: Sequence[Trial]) -> Trial:
    """Return the trial of the highest AUROC (ties: the first tried).

    Raises:
        MethodError: no setting is feasible.
    """
    feasible = [t for t in trials if "auroc" in t]
    if not feasible:
        raise MethodError(f"{type(method).__name__}: no setting in `_space_` is feasible: {trials[0]['infeasible']}")
    return max(feasible, key=lambda t: t["auroc"])  # max keeps the first of equals
