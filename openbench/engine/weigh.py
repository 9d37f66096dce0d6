"""Choosing the weight of a double score: the least selective risk, with both parts fitted once for all weights."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from openbench.core.benchmark import Split
from openbench.engine.evaluate import fit, predictions, score_split, with_params
from openbench.engine.tune import TestSplits, TuneContext, Tuned
from openbench.errors import ConfigError, MethodError, did_you_mean
from openbench.methods.double_score import DoubleScore
from openbench.metrics.curve import Floats
from openbench.metrics.double_score import (
    ScorePair,
    Standard,
    best_weighing,
    common_constraint,
    weighings,
)
from openbench.metrics.selective import TprFpr


def weigh(method: DoubleScore, space: Mapping[str, Sequence[Any]], context: TuneContext) -> Tuned:
    """Return the μ of least selective risk (ties: the largest AUROC) and every trial, with threshold and AUROC.

    Args:
        method: unfitted; its `tpr` and `fpr` bound the choice.
        space: values of `mu`.
        context: what the choice may touch.

    Raises:
        ConfigError: the space names anything but `mu`.
        MethodError: no weight meets the bounds.
    """
    if set(space) != {"mu"}:
        raise ConfigError(
            f"DoubleScore: `_space_` names {', '.join(space)} — allowed: mu — give a part's hyper-parameters as values "
            "under risk and ood"
        )
    fitted = fit(with_params(method, {}), context.fitting, context.features, context.device)
    if not isinstance(fitted, DoubleScore):
        raise MethodError(f"{type(fitted).__name__}: fit must return the method itself")
    id_split, ood_splits = context.sides()
    bound = _bound(method, context)
    sets = (_pair(fitted, (id_split,), context), _pair(fitted, ood_splits, context))
    losses = 1.0 - (predictions(id_split, context.features) == id_split.labels)
    constraint = common_constraint(sets, method.tpr) if bound is None else TprFpr(method.tpr, bound)
    (risk_mean, risk_std), (ood_mean, ood_std) = (fitted.units_[name] for name in ("risk", "ood"))
    standard = Standard(risk_mean, risk_std, ood_mean, ood_std)
    found = weighings(sets, losses, standard, constraint, [float(mu) for mu in space["mu"]])
    trials: list[dict[str, Any]] = []
    for weighing in found:
        trial: dict[str, Any] = {"params": {"mu": weighing.mu}}
        if isinstance(weighing.point, str):
            trial["infeasible"] = f"no threshold accepts {constraint.tpr:g} of ID and at most {constraint.fpr:g} of OOD"
        else:
            trial["auroc"] = weighing.auroc
            trial["risk"], trial["threshold"] = weighing.point.value, weighing.point.threshold
        trials.append(trial)
        context.report(len(trials), len(found), trial)
    best = best_weighing(found)
    if isinstance(best, str):
        raise MethodError(
            f"DoubleScore: no weight in `_space_` is feasible on {', '.join(s.name for s in ood_splits)} — "
            f"{trials[0]['infeasible']} — raise method.fpr, lower method.tpr, or set method.fpr=null for a bound that "
            "can be met"
        )
    return Tuned({"mu": best.mu}, trials, _weighed(fitted, best.mu))


def _bound(method: DoubleScore, context: TuneContext) -> float | None:
    """ρ_max of the choice; None where the parts set it.

    Raises:
        ConfigError: rates by OOD set where the choice is not made on one of these sets.
    """
    if not isinstance(method.fpr, Mapping):
        return method.fpr
    _, ood_splits = context.sides()
    names = [split.name for split in ood_splits]
    if not isinstance(context.validation, TestSplits) or len(names) > 1:
        raise ConfigError(
            f"DoubleScore: method.fpr has rates for {', '.join(method.fpr)} — the weight is chosen on "
            f"{' and '.join(names)} — give one rate or null, or choose a weight per set with tune=oracle_per_set"
        )
    if names[0] not in method.fpr:
        raise ConfigError(
            f"DoubleScore: method.fpr has no rate for the OOD set '{names[0]}'{did_you_mean(names[0], method.fpr)} — "
            f"found {', '.join(method.fpr)} — give one for every near and far set"
        )
    return float(method.fpr[names[0]])


def _weighed(fitted: DoubleScore, mu: float) -> DoubleScore:
    """The fitted parts, weighed otherwise."""
    found = copy.copy(fitted)
    found.mu = mu
    return found


def _pair(fitted: DoubleScore, splits: Sequence[Split], context: TuneContext) -> ScorePair:
    """Both parts' scores of some splits, joined."""
    runtime: tuple[torch.device, int] = (context.device, context.batch)

    def joined(name: str) -> Floats:
        part = fitted.fitted_parts[name]
        scores = [score_split(part, split, context.features, runtime) for split in splits]
        return np.concatenate(scores).astype(np.float64)

    return ScorePair(joined("risk"), joined("ood"))
