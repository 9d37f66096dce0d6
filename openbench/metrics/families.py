"""Each family of metrics as a function of one pair and what the benchmark fixes for all pairs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from openbench.errors import MetricError
from openbench.metrics import curve_ranking
from openbench.metrics.conformal.p_values import conformal_auroc, conformal_fpr95, discoveries
from openbench.metrics.curve import Floats, PooledCurve
from openbench.metrics.intervals import bootstrap_keys, delong
from openbench.metrics.keys import rate_label
from openbench.metrics.options import MetricOptions
from openbench.metrics.selective.risk import (
    UNABLE,
    Costs,
    OperatingPoint,
    PrecisionRecall,
    SelectiveCurve,
    TprFpr,
    ccr_at_fpr,
    least_cost,
    least_risk,
    oscr,
    oscr_selective,
    running_loss,
)
from openbench.metrics.threshold import balanced_threshold, choose_scale, error_rates, threshold_areas

Values = dict[str, float | int | str]


@dataclass(frozen=True, eq=False)
class IdSide:
    """The ID side of every pair: ID test, or ID test ∪ csID.

    Args:
        scores: (n,) checked.
        ordered: (n,) the same, ascending.
        cumulated: (n+1,) cumulated losses in that order, or None if correctness is unknown.
    """

    scores: Floats
    ordered: Floats
    cumulated: Floats | None

    @classmethod
    def of(cls, scores: Floats, losses: Floats | None) -> "IdSide":
        """Sort checked scores once, with their losses where these are known."""
        if losses is None:
            return cls(scores, np.sort(scores), None)
        order = np.argsort(scores)
        return cls(scores, scores[order], running_loss(scores, losses, order))


@dataclass(frozen=True, eq=False)
class Setting:
    """What all pairs of a benchmark have in common.

    Args:
        options: operating points.
        id_side: the ID scores.
        benchmark: score sets that fix the `benchmark` scaling: the ID side and every OOD test set.
        validation: score sets that fix the `validation` scaling; may be empty.
        id_val: ID validation scores, calibration of the Benjamini–Hochberg selection; may be None.
        thresholds: `95tnr` and, with validation splits, `val`.
        table: conformal correction for this n, or None if that family is off.
    """

    options: MetricOptions
    id_side: IdSide
    benchmark: tuple[Floats, ...]
    validation: tuple[Floats, ...]
    id_val: Floats | None
    thresholds: Mapping[str, float]
    table: Floats | None


@dataclass(frozen=True, eq=False)
class Pair:
    """One OOD set against the ID side; without a name, pooled sets."""

    ood: Floats
    curve: PooledCurve
    name: str = ""

    @classmethod
    def of(cls, id_side: IdSide, ood: Floats, name: str = "") -> "Pair":
        """Sort the OOD side and merge it with the ID side, which is sorted already."""
        return cls(ood, PooledCurve.of_sorted_id(id_side.ordered, ood), name)


def finite_or_unable(value: float) -> float | str:
    """Return the value, or `unable` where it is infinite: JSON and tables cannot hold infinity."""
    return float(value) if np.isfinite(value) else UNABLE


def ranking_family(pair: Pair, setting: Setting) -> Values:
    """Return the ranking metrics of a pair."""
    values: Values = dict(curve_ranking.ranking(pair.curve))
    values["f1_threshold"] = finite_or_unable(float(values["f1_threshold"]))
    return values


def threshold_family(pair: Pair, setting: Setting) -> Values:
    """Return AUTC, AUFPR, AUFNR and the error rates at fixed thresholds."""
    o, values = setting.options, dict[str, float | int | str]()
    try:
        sources = ((setting.id_side.scores, pair.ood), setting.benchmark, setting.validation)
        scale = choose_scale(o.autc_scaling, *sources)
        areas = threshold_areas(setting.id_side.scores, pair.ood, scale, o.autc_weight)
        values.update(areas._asdict())
    except MetricError:
        # Constant or infinite scores: AUTC is undefined, the other metrics are not.
        values.update(dict.fromkeys(("autc", "aufpr", "aufnr"), UNABLE))
    for name, threshold in {"test": balanced_threshold(pair.curve), **setting.thresholds}.items():
        rates = error_rates(pair.curve, threshold)
        values[f"fpr@{name}"], values[f"fnr@{name}"] = rates.fpr, rates.fnr
    return values


def _value(found: OperatingPoint | str) -> float | str:
    return found if isinstance(found, str) else found.value


def selective_family(pair: Pair, setting: Setting) -> Values:
    """Return the reject-option metrics of a pair; nothing if ID correctness is unknown."""
    if setting.id_side.cumulated is None:
        return {}
    o, curve = setting.options, SelectiveCurve(pair.curve, setting.id_side.cumulated)
    most = o.fpr_of(pair.name)
    # Pooled sets have no common rate where rates are given by set.
    bounded = None if most is None else least_risk(curve, TprFpr(o.tpr, most))
    precise = least_risk(curve, PrecisionRecall(o.precision, o.recall, o.prior))
    costs = Costs(o.cost_reject_id, o.cost_accept_ood, o.cost_reject_ood, o.prior)
    risk = {} if bounded is None else {f"risk@tpr{o.tpr:g},fpr{o.fpr_label}": _value(bounded)}
    return {
        **risk,
        f"risk@prec{o.precision:g},rec{o.recall:g}": _value(precise),
        "cost": least_cost(curve, costs).value,
        "oscr": oscr(curve),
        "oscr_selective": oscr_selective(curve),
        **{f"ccr@fpr{rate_label(fpr)}": ccr_at_fpr(curve, fpr) for fpr in o.ccr_fprs},
    }


def conformal_family(pair: Pair, setting: Setting) -> Values:
    """Return the conformal AUROC and FPR@95, and with ID validation the Benjamini–Hochberg selection."""
    if setting.table is None:
        return {}
    values: Values = {
        "conformal_auroc": conformal_auroc(pair.curve, setting.table),
        "conformal_fpr95": conformal_fpr95(pair.curve, setting.table),
    }
    if setting.id_val is not None and setting.options.fdr is not None:
        alarms, found = discoveries(pair.curve, setting.id_val, setting.options.fdr)
        label = rate_label(setting.options.fdr)
        values[f"bh_power@{label}"] = found / pair.curve.m
        values[f"bh_fdp@{label}"] = alarms / max(1, alarms + found)
    return values


def interval_family(pair: Pair, setting: Setting) -> Values:
    """Return `_low` and `_high` for AUROC (DeLong) and the bootstrapped keys."""
    o = setting.options
    intervals = {"auroc": delong(pair.curve, o.confidence)}
    if o.replicates and o.bootstrap_metrics:
        intervals |= bootstrap_keys(pair.curve, o.bootstrap_metrics, o.replicates, o.seed, o.confidence)
    return {f"{key}_{end}": value for key, ci in intervals.items() for end, value in ci._asdict().items()}


PAIR_FAMILIES: dict[str, Callable[[Pair, Setting], Values]] = {
    "ranking": ranking_family,
    "threshold": threshold_family,
    "selective": selective_family,
    "conformal": conformal_family,
    "intervals": interval_family,
}


def evaluate_pair(pair: Pair, setting: Setting, *, skip: tuple[str, ...] = ()) -> Values:
    """Return the chosen families of one pair, with the number of its OOD scores.

    Args:
        pair: the OOD set against the ID side.
        setting: what is common to all pairs.
        skip: families left out although they are chosen.
    """
    chosen = (family for family in PAIR_FAMILIES if family in setting.options.families and family not in skip)
    values: Values = {"n_ood": pair.ood.size}
    for compute in map(PAIR_FAMILIES.__getitem__, chosen):
        values.update(compute(pair, setting))
    return values
