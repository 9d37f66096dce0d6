"""Choosing hyper-parameters by validation AUROC. Given a Validation, no test split can be reached from here."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from openbench.checked import Checked
from openbench.core.benchmark import Benchmark, Split, Validation
from openbench.core.method import Method
from openbench.engine.evaluate import FeatureSource, Fitting, fit, score_split, with_params
from openbench.engine.search import grid
from openbench.errors import MethodError
from openbench.metrics.ranking import auroc

Strategy = Literal["validation", "none", "oracle", "oracle_per_set"]


@dataclass(frozen=True)
class Tuning(Checked):
    """How hyper-parameters are chosen.

    Args:
        strategy: `validation` searches the method's space on ID val against OOD val; `none` keeps the defaults;
            `oracle` searches on the test sets themselves, `oracle_per_set` once for each OOD set on that set: bounds,
            which no leaderboard ranks.
    """

    named: ClassVar[str] = "tune"

    strategy: Strategy = "validation"


@dataclass(frozen=True)
class Tuned:
    """The outcome of a search.

    Args:
        params: the best setting; empty if nothing was tuned.
        trials: every setting with its validation AUROC, or why it is infeasible.
        fitted: the method with the best setting, if the search came by it without a further fit.
    """

    params: dict[str, Any] = field(default_factory=dict)
    trials: list[dict[str, Any]] = field(default_factory=list)
    fitted: Method | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class TestSplits:
    """What the oracles, and nothing else, choose on: ID test against all OOD test sets together.

    `oracle_per_set` makes a choice for each OOD set, with that set alone.
    """

    __test__ = False  # no test class, whatever pytest makes of the name

    id_test: Split
    ood_test: tuple[Split, ...]

    @classmethod
    def of(cls, benchmark: Benchmark) -> "TestSplits":
        """The test splits of a benchmark."""
        return cls(benchmark.id_test, (*benchmark.near.values(), *benchmark.far.values()))


@dataclass(frozen=True)
class TuneContext:
    """What a search may touch.

    Args:
        validation: ID val and OOD val; TestSplits for the oracle.
        fitting: the ID splits that `fit` may see.
        features: where columns come from.
        device: where scores are computed.
        batch: rows per call of `score`.
        report: called after each trial with (done, total, trial).
    """

    validation: Validation | TestSplits
    fitting: Fitting
    features: FeatureSource
    device: torch.device
    batch: int
    report: Callable[[int, int, dict[str, Any]], None] = lambda done, total, trial: None

    def sides(self) -> tuple[Split, tuple[Split, ...]]:
        """The ID split and the OOD splits that settings are compared on."""
        if isinstance(self.validation, TestSplits):
            return self.validation.id_test, self.validation.ood_test
        return self.validation.id_val, (self.validation.ood_val,)


def tune(method: Method, space: Mapping[str, Sequence[Any]], context: TuneContext) -> Tuned:
    """Return the setting with the highest validation AUROC (ties: the first tried) and all trials.

    A setting for which the method is undefined (a subspace larger than the feature space) is recorded as infeasible
    with its reason and not chosen.

    Raises:
        MethodError: no setting of the space is feasible.
    """
    settings = grid(space, list(method.params()), type(method).__name__)
    trials: list[dict[str, Any]] = [{} for _ in settings]
    candidates = _Candidates(method, context)
    for done, index in enumerate(_by_fit(settings, type(method).read_by_score), start=1):
        trials[index] = {"params": settings[index], **_trial(candidates, settings[index], context)}
        context.report(done, len(settings), trials[index])
    best = best_trial(method, trials)
    return Tuned(dict(best["params"]), trials, candidates.at_hand(best["params"]))


def best_trial(method: Method, trials: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the trial of the highest AUROC (ties: the first tried).

    Raises:
        MethodError: no setting is feasible.
    """
    feasible = [t for t in trials if "auroc" in t]
    if not feasible:
        raise MethodError(
            f"{type(method).__name__}: none of the {len(trials)} settings in `_space_` is feasible — "
            f"first reason: {trials[0]['infeasible']} — change `_space_` or run with tune=none"
        )
    return max(feasible, key=lambda t: t["auroc"])  # max keeps the first of equals


def _by_fit(settings: Sequence[Mapping[str, Any]], read_by_score: frozenset[str]) -> list[int]:
    """Indices of the settings, those that one fit serves side by side and otherwise in their order."""
    groups: dict[str, list[int]] = {}
    for index, params in enumerate(settings):
        read_by_fit = {name: value for name, value in params.items() if name not in read_by_score}
        groups.setdefault(repr(read_by_fit), []).append(index)
    return [index for group in groups.values() for index in group]


class _Candidates:
    """A method fitted at one setting after the other; anew only where `fit` reads what has changed."""

    def __init__(self, method: Method, context: TuneContext) -> None:
        self._method, self._context = method, context
        self._last: tuple[dict[str, Any], Method] | None = None

    def __call__(self, params: Mapping[str, Any]) -> Method:
        """Return the method fitted at a setting."""
        found = self.at_hand(params)
        if found is None:
            # Not two fits at once: one may hold gigabytes.
            self._last = None
            fresh = with_params(self._method, params)
            found = fit(fresh, self._context.fitting, self._context.features, self._context.device)
            if type(self._method).read_by_score:
                self._last = self._read_by_fit(fresh), found
        return found

    def at_hand(self, params: Mapping[str, Any]) -> Method | None:
        """Return the method at a setting if the last fit serves it, else None."""
        wanted = with_params(self._method, params)
        if self._last is None or self._read_by_fit(wanted) != self._last[0]:
            return None
        found = copy.copy(self._last[1])
        for name in type(self._method).read_by_score:
            setattr(found, name, getattr(wanted, name))
        return found

    @staticmethod
    def _read_by_fit(method: Method) -> dict[str, Any]:
        return {name: value for name, value in method.params().items() if name not in type(method).read_by_score}


def _trial(candidates: _Candidates, params: Mapping[str, Any], context: TuneContext) -> dict[str, Any]:
    try:
        candidate = candidates(params)
        id_split, ood_splits = context.sides()
        id_scores, *ood_scores = (
            score_split(candidate, split, context.features, (context.device, context.batch))
            for split in (id_split, *ood_splits)
        )
    except MethodError as error:
        return {"infeasible": str(error)}
    return {"auroc": auroc(id_scores, np.concatenate(ood_scores))}
