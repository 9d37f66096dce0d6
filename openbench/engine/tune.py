"""Search of hyper-parameters by AUROC. A Validation object gives no access to test splits."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, MinLen
from numpy.typing import NDArray

from openbench.config.constraints import Checked, Seed
from openbench.core.benchmark import Benchmark, Split, Validation
from openbench.core.method import Method
from openbench.core.search import Trial, Tuned, best_trial, grid, with_params
from openbench.engine.evaluate import Fitting, Scoring, fit, predictions, score_split
from openbench.errors import MethodError
from openbench.features.changed_images import RECIPES, Recipe
from openbench.metrics.curve import auroc

Report = Callable[[int, int, Trial], None]
Strategy = Literal["validation", "none", "held_out_classes", "synthetic", "oracle", "oracle_per_set"]


@dataclass(frozen=True)
class Tuning(Checked):
    """The way in which hyper-parameters are chosen.

    Args:
        strategy: `validation` searches the method's space on ID val against OOD val; `none` keeps the defaults;
            `held_out_classes` lets folds of the ID classes play OOD, `synthetic` images made of ID val: neither reads
            OOD data; `oracle` searches on the test sets themselves, `oracle_per_set` once for each OOD set on that set:
            bounds, which no leaderboard ranks.
        folds: of `held_out_classes`: parts of the ID classes, each of which is left out once.
        recipes: of `synthetic`: how its images are made.
        seed: of the draws of folds or images.
    """

    named: ClassVar[str] = "tune"

    strategy: Strategy = "validation"
    folds: Annotated[int, Ge(2)] = 5
    recipes: Annotated[Sequence[Recipe], MinLen(1)] = RECIPES
    seed: Seed = 0


@dataclass(frozen=True, eq=False)
class TestSplits:
    """The test splits, on which only the oracles choose: ID test against all OOD test sets together.

    `oracle_per_set` makes a choice for each OOD set, with that set alone.
    """

    __test__ = False  # pytest would take it for a test class

    id_test: Split
    ood_test: tuple[Split, ...]

    @classmethod
    def of(cls, benchmark: Benchmark) -> "TestSplits":
        """Return the test splits of a benchmark."""
        return cls(benchmark.id_test, (*benchmark.near.values(), *benchmark.far.values()))


@dataclass(frozen=True)
class TuneContext:
    """The data and functions that a search may use.

    Args:
        validation: ID val and OOD val; TestSplits for the oracle.
        fitting: the ID splits that `fit` may see.
        scoring: source of the columns, device and batch size.
        report: called after each trial with (done, total, trial).
    """

    validation: Validation | TestSplits
    fitting: Fitting
    scoring: Scoring
    report: Report = lambda done, total, trial: None

    @property
    def on_test(self) -> bool:
        """Whether the sides are test sets, as for the oracles."""
        return isinstance(self.validation, TestSplits)

    def fit(self, method: Method) -> Method:
        """Fit a method on the split that it declares and return it."""
        return fit(method, self.fitting, self.scoring.features, self.scoring.device)

    def scores(self, fitted: Method, splits: Sequence[Split]) -> NDArray[np.float32]:
        """Return the scores (n,) of some splits, joined, by a fitted method."""
        return np.concatenate([score_split(fitted, split, self.scoring) for split in splits])

    def correct(self, split: Split) -> NDArray[np.bool_]:
        """Return whether the network classifies each sample (n,) of an ID split correctly."""
        return predictions(split, self.scoring.features) == split.labels

    def sides(self) -> tuple[Split, tuple[Split, ...]]:
        """Return the ID split and the OOD splits on which settings are compared."""
        if isinstance(self.validation, TestSplits):
            return self.validation.id_test, self.validation.ood_test
        return self.validation.id_val, (self.validation.ood_val,)


def tune(method: Method, space: Mapping[str, Sequence[Any]], *contexts: TuneContext) -> Tuned:
    """Return the setting that the method's own search chooses, or that of the highest AUROC (ties: the first one).

    A setting for which the method is undefined (a subspace larger than the feature space) is recorded as infeasible
    with its reason.

    Args:
        method: unfitted.
        space: hyper-parameter → values to try.
        contexts: one, or several, of which the mean AUROC counts; a search of the method's own takes the first.

    Raises:
        MethodError: no setting of the space is feasible.
    """
    tuned = method.search(space, contexts[0])
    if tuned is not None:
        return tuned
    settings = grid(space, list(method.params()), type(method).__name__)
    found: list[list[dict[str, Any]]] = [[] for _ in settings]
    steps = ((context, index) for context in contexts for index in _by_fit(settings, type(method).read_by_score))
    candidates = _Candidates(method, contexts[0])
    for done, (context, index) in enumerate(steps, start=1):
        if candidates.context is not context:
            candidates = _Candidates(method, context)
        found[index].append(_trial(candidates, settings[index], context))
        context.report(done, len(settings) * len(contexts), {"params": settings[index], **found[index][-1]})
    trials = [{"params": params, **_mean(parts)} for params, parts in zip(settings, found, strict=True)]
    best = best_trial(method, trials)
    fitted = candidates.at_hand(best["params"]) if len(contexts) == 1 else None
    return Tuned(dict(best["params"]), trials, fitted)


def _mean(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean of a setting's trials; infeasible if one of them is."""
    infeasible = next((part for part in parts if "infeasible" in part), None)
    if infeasible or len(parts) == 1:
        return infeasible or parts[0]
    return {"auroc": fmean(part["auroc"] for part in parts)}


def _by_fit(settings: Sequence[Mapping[str, Any]], read_by_score: frozenset[str]) -> list[int]:
    """Return the indices of the settings in their order, but those that share a fit next to one another."""
    fits = [repr({k: v for k, v in params.items() if k not in read_by_score}) for params in settings]
    return sorted(range(len(settings)), key=lambda index: fits.index(fits[index]))


class _Candidates:
    """A method fitted at one setting after the other; fitted again only if `fit` reads a changed parameter."""

    def __init__(self, method: Method, context: TuneContext) -> None:
        self._method, self.context = method, context
        self._last: tuple[dict[str, Any], Method] | None = None

    def __call__(self, params: Mapping[str, Any]) -> Method:
        """Return the method fitted at a setting."""
        fitted = self.at_hand(params)
        if fitted is None:
            # Not two fits at once: one may take gigabytes.
            self._last = None
            unfitted = with_params(self._method, params)
            fitted = self.context.fit(unfitted)
            if type(self._method).read_by_score:
                self._last = self._read_by_fit(unfitted), fitted
        return fitted

    def at_hand(self, params: Mapping[str, Any]) -> Method | None:
        """Return the method at a setting if the last fit serves it, else None."""
        unfitted = with_params(self._method, params)
        if self._last is None or self._read_by_fit(unfitted) != self._last[0]:
            return None
        fitted = copy.copy(self._last[1])
        for name in type(self._method).read_by_score:
            setattr(fitted, name, getattr(unfitted, name))
        return fitted

    @staticmethod
    def _read_by_fit(method: Method) -> dict[str, Any]:
        return {name: value for name, value in method.params().items() if name not in type(method).read_by_score}


def _trial(candidates: _Candidates, params: Mapping[str, Any], context: TuneContext) -> dict[str, Any]:
    try:
        candidate = candidates(params)
        id_split, ood_splits = context.sides()
        inside = context.scores(candidate, (id_split,))
        outside = [context.scores(candidate, (split,)) for split in ood_splits]
    except MethodError as error:
        return {"infeasible": str(error)}
    trial: dict[str, Any] = {"auroc": auroc(inside, np.concatenate(outside))}
    if len(ood_splits) > 1:
        trial["sets"] = {split.name: auroc(inside, scores) for split, scores in zip(ood_splits, outside, strict=True)}
    return trial
