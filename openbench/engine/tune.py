"""Choosing hyper-parameters by validation AUROC. Test splits cannot be reached from here: it is given a Validation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from openbench.core.benchmark import Validation
from openbench.core.method import Method
from openbench.engine.evaluate import FeatureSource, Fitting, fit, score, with_params
from openbench.engine.search import grid
from openbench.errors import ConfigError, MethodError, did_you_mean
from openbench.metrics.ranking import auroc

Strategy = Literal["validation", "none"]


@dataclass(frozen=True)
class Tuning:
    """How hyper-parameters are chosen.

    Args:
        strategy: `validation` searches the method's space on ID val against OOD val; `none` keeps the defaults.
    """

    strategy: Strategy = "validation"

    def __post_init__(self) -> None:
        """Check the choice."""
        allowed = get_args(Strategy)
        if self.strategy not in allowed:
            hint = did_you_mean(str(self.strategy), allowed)
            raise ConfigError(f"tune.strategy — found {self.strategy!r}{hint} — allowed: {', '.join(allowed)}")


@dataclass(frozen=True)
class Tuned:
    """The outcome: chosen hyper-parameters (empty if nothing was tuned) and every trial."""

    params: dict[str, Any] = field(default_factory=dict)
    trials: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class TuneContext:
    """What a search may touch.

    Args:
        validation: ID val and OOD val.
        fitting: the ID splits that `fit` may see.
        features: where columns come from.
        device: where scores are computed.
        batch: rows per call of `score`.
        report: called after each trial with (done, total, trial).
    """

    validation: Validation
    fitting: Fitting
    features: FeatureSource
    device: torch.device
    batch: int
    report: Callable[[int, int, dict[str, Any]], None] = lambda done, total, trial: None


def tune(method: Method, space: Mapping[str, Sequence[Any]], context: TuneContext) -> Tuned:
    """Return the setting with the highest validation AUROC (ties: the first tried) and all trials.

    A setting for which the method is undefined (a subspace larger than the feature space) is recorded as infeasible
    with its reason and not chosen.

    Raises:
        MethodError: no setting of the space is feasible.
    """
    settings = grid(space, list(method.params()), type(method).__name__)
    trials: list[dict[str, Any]] = []
    for params in settings:
        trials.append({"params": params, **_trial(method, params, context)})
        context.report(len(trials), len(settings), trials[-1])
    feasible = [t for t in trials if "auroc" in t]
    if not feasible:
        raise MethodError(
            f"{type(method).__name__}: none of the {len(trials)} settings in `_space_` is feasible — "
            f"first reason: {trials[0]['infeasible']} — change `_space_` or run with tune=none"
        )
    best = max(feasible, key=lambda t: t["auroc"])  # max keeps the first of equals
    return Tuned(dict(best["params"]), trials)


def _trial(method: Method, params: Mapping[str, Any], context: TuneContext) -> dict[str, Any]:
    try:
        candidate = fit(with_params(method, params), context.fitting, context.features, context.device)
        id_scores, ood_scores = (
            score(
                candidate,
                context.features(split, candidate.request).on(context.device),
                context.batch,
                f"{split.name} ({split.role})",
            )
            for split in (context.validation.id_val, context.validation.ood_val)
        )
    except MethodError as error:
        return {"infeasible": str(error)}
    return {"auroc": auroc(id_scores, ood_scores)}
