"""All metrics of one run: from the scores of its sets to {set or group: {key: value}}, family by family."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np

from openbench.core.names import ATTACKED, FULL_SPECTRUM
from openbench.core.scores import SetScores
from openbench.digest import digest
from openbench.errors import MetricError, not_found
from openbench.metrics.calibration import calibration
from openbench.metrics.conformal import prediction_sets
from openbench.metrics.conformal.corrections import correction_table
from openbench.metrics.conformal.p_values import conformal_auroc, conformal_fpr95, discoveries
from openbench.metrics.curve import Floats, PooledCurve, as_scores
from openbench.metrics.intervals import ConfidenceInterval, bootstrap, delong, group_delong_variance, normal_interval
from openbench.metrics.keys import higher_is_better, rate_label
from openbench.metrics.options import FAMILIES, MetricOptions, describe
from openbench.metrics.selective import risk
from openbench.metrics.threshold import (
    balanced_threshold,
    choose_scale,
    threshold_areas,
    threshold_stability,
    tnr_threshold,
)

Values = dict[str, float | int | str]
__all__ = [
    "FAMILIES",
    "ROLES",
    "MetricOptions",
    "SetScores",
    "describe",
    "evaluate",
    "fixed_thresholds",
    "group_means",
    "higher_is_better",
]
GROUPS: tuple[str, ...] = ("near", "far")
_ATTACKED = tuple(f"{group}_attacked" for group in GROUPS)
ROLES: tuple[str, ...] = ("id_test", "id_val", "csid", "ood_val", *GROUPS, *_ATTACKED)
_RESERVED = (*GROUPS, "id")
_CACHED = 8  # sources of prediction sets
_set_values: dict[str, Mapping[str, float | int | str]] = {}  # values of the latest sources, by their digest


@dataclass(frozen=True, eq=False)
class Setting:
    """One ID side, ID test or ID test ∪ csID, and what else all its pairs have in common.

    Args:
        options: operating points.
        scores: (n,) of the ID side, checked.
        losses: (n,) 1 − correct, or None if correctness is unknown.
        ordered: (n,) the scores, ascending.
        cumulated: (n+1,) cumulated losses in that order, or None.
        benchmark: score sets that fix the `benchmark` scaling: the ID side and every OOD test set.
        validation: score sets that fix the `validation` scaling; may be empty.
        id_val: ID validation scores, on which the Benjamini–Hochberg selection is calibrated; may be None.
        thresholds: `95tnr` and, with validation splits, `val`.
        table: conformal correction for this n; None without the conformal family.
    """

    options: MetricOptions
    scores: Floats
    losses: Floats | None
    ordered: Floats
    cumulated: Floats | None
    benchmark: tuple[Floats, ...]
    validation: tuple[Floats, ...]
    id_val: Floats | None
    thresholds: Mapping[str, float]
    table: Floats | None

    def pair(self, ood: Floats, name: str = "") -> "Pair":
        """Return the pair with checked OOD scores."""
        return Pair(ood, PooledCurve.of_sorted_id(self.ordered, ood), name)


@dataclass(frozen=True, eq=False)
class Pair:
    """One OOD set against the ID side; without a name, pooled sets."""

    ood: Floats
    curve: PooledCurve
    name: str = ""


def ranking_family(pair: Pair, setting: Setting) -> Values:
    """Return the ranking metrics of a pair."""
    threshold = pair.curve.best_f1.threshold  # JSON and tables cannot hold infinity
    return {**pair.curve.ranking(), "f1_threshold": threshold if np.isfinite(threshold) else risk.UNABLE}


def threshold_family(pair: Pair, setting: Setting) -> Values:
    """Return AUTC, AUFPR, AUFNR and the error rates at fixed thresholds."""
    o = setting.options
    try:
        scale = choose_scale(o.autc_scaling, (setting.scores, pair.ood), setting.benchmark, setting.validation)
        values: Values = {**threshold_areas(setting.scores, pair.ood, scale, o.autc_weight)._asdict()}
    except MetricError:
        # Constant or infinite scores: AUTC is undefined, the other metrics are not.
        values = dict.fromkeys(("autc", "aufpr", "aufnr"), risk.UNABLE)
    for name, threshold in {"test": balanced_threshold(pair.curve), **setting.thresholds}.items():
        values[f"fpr@{name}"], values[f"fnr@{name}"] = pair.curve.rates(pair.curve.at(threshold))
    return values


def selective_family(pair: Pair, setting: Setting) -> Values:
    """Return the reject-option metrics of a pair; nothing if ID correctness is unknown."""
    if setting.cumulated is None:
        return {}
    o, curve = setting.options, risk.SelectiveCurve(pair.curve, setting.cumulated)
    constraints: dict[str, risk.Constraint] = {
        f"risk@prec{o.precision:g},rec{o.recall:g}": risk.PrecisionRecall(o.precision, o.recall, o.prior)
    }
    # Pooled sets have no common rate where rates are given by set.
    if (most := o.fpr_of(pair.name)) is not None:
        constraints = {f"risk@tpr{o.tpr:g},fpr{o.fpr_label}": risk.TprFpr(o.tpr, most), **constraints}
    points = {key: risk.least_risk(curve, constraint) for key, constraint in constraints.items()}
    costs = (o.cost_reject_id, o.cost_accept_ood, o.cost_reject_ood)
    return {
        **{key: point if isinstance(point, str) else point.value for key, point in points.items()},
        "cost": risk.least_cost(curve, *costs, o.prior).value,
        "oscr": risk.oscr(curve),
        "oscr_selective": risk.oscr_selective(curve),
        **{f"ccr@fpr{rate_label(fpr)}": risk.ccr_at_fpr(curve, fpr) for fpr in o.ccr_fprs},
    }


def conformal_family(pair: Pair, setting: Setting) -> Values:
    """Return conformal AUROC and FPR@95, and with ID validation the Benjamini–Hochberg selection."""
    if setting.table is None:
        return {}
    values: Values = {
        "conformal_auroc": conformal_auroc(pair.curve, setting.table),
        "conformal_fpr95": conformal_fpr95(pair.curve, setting.table),
    }
    if setting.id_val is not None and setting.options.fdr is not None:
        alarms, hits = discoveries(pair.curve, setting.id_val, setting.options.fdr)
        label = rate_label(setting.options.fdr)
        values[f"bh_power@{label}"] = hits / pair.curve.m
        values[f"bh_fdp@{label}"] = alarms / max(1, alarms + hits)
    return values


def _intervals(curves: Sequence[PooledCurve], of_auroc: ConfidenceInterval, options: MetricOptions) -> Values:
    """Return `_low` and `_high` for AUROC and the bootstrapped keys, of one set or the mean over several."""
    intervals, o = {"auroc": of_auroc}, options
    if o.replicates and o.bootstrap_metrics:
        intervals |= bootstrap(curves, o.bootstrap_metrics, o.replicates, o.seed, o.confidence)
    return {f"{key}_{end}": value for key, ci in intervals.items() for end, value in ci._asdict().items()}


PAIR_FAMILIES: dict[str, Callable[[Pair, Setting], Values]] = {
    "ranking": ranking_family,
    "threshold": threshold_family,
    "selective": selective_family,
    "conformal": conformal_family,
    "intervals": lambda pair, s: _intervals([pair.curve], delong(pair.curve, s.options.confidence), s.options),
}


def evaluate_pair(pair: Pair, setting: Setting, *, skip: str = "") -> Values:
    """Return the chosen families of one pair but for one that is left out, with the number of its OOD scores."""
    values: Values = {"n_ood": pair.ood.size}
    for family, compute in PAIR_FAMILIES.items():
        if family in setting.options.families and family != skip:
            values |= compute(pair, setting)
    return values


def evaluate(
    sets: Sequence[SetScores], options: MetricOptions | None = None
) -> dict[str, dict[str, float | int | str]]:
    """Return {set or group: {key: value}}: every near and far set, their groups, and `id` for ID-only values.

    Groups have the unweighted mean over their sets and, under `pooled_` keys, the values of the pooled sets. With csID
    sets everything is repeated under `full_spectrum/…`, with ID test ∪ csID as the ID side; with attacked sets all
    but `id` is repeated under `attacked/…`, and `attacked/id` has the accuracy on attacked ID images. Numbers are in
    [0, 1], except thresholds, sizes and counts; an infeasible value is the string `unable`; values that the sets do not
    give (`@val` without validation splits, risks without correctness) are absent.

    Args:
        sets: scores of one run; exactly one `id_test`, at least one `near` or `far`.
        options: families and operating points; None for the defaults.

    Raises:
        MetricError: invalid scores, roles or names, or options that do not fit the sets.
    """
    options = options or MetricOptions()
    by_role = _checked(sets)
    options.check_sets(s.name for group in GROUPS for s in by_role[group])
    scaled = "threshold" in options.families and options.autc_scaling == "validation"
    if scaled and not (by_role["id_val"] or by_role["ood_val"]):
        choose_scale("validation", (), (), ())  # raises: the sets are at fault, so this comes before any work
    results = _evaluate_side(by_role, (*by_role["id_test"],), options)
    if by_role["csid"]:
        side = (*by_role["id_test"], *by_role["csid"])
        wide = _evaluate_side(by_role, side, options)
        results |= {f"{FULL_SPECTRUM}{name}": values for name, values in wide.items()}
    if any(by_role[role] for role in _ATTACKED):
        moved = by_role | {group: by_role[role] for group, role in zip(GROUPS, _ATTACKED, strict=True)}
        values = _evaluate_side(moved, (*by_role["id_test"],), options) | {"id": _accuracy(moved["near"])}
        results |= {f"{ATTACKED}{name}": of_set for name, of_set in values.items() if of_set}
    return results


def _accuracy(sets: Sequence[SetScores]) -> Values:
    """Return the accuracy on attacked ID images; nothing without any."""
    losses = _losses(sets)
    return {} if losses is None or not losses.size else {"n_id": losses.size, "accuracy": float(1.0 - losses.mean())}


def _checked(sets: Sequence[SetScores]) -> dict[str, list[SetScores]]:
    """Return the sets by role; ambiguous names and roles are refused."""
    by_role: dict[str, list[SetScores]] = {role: [] for role in ROLES}
    seen: dict[str, str] = {}
    for s in sets:
        other = seen.setdefault(" ".join(unicodedata.normalize("NFC", s.name).split()), s.name)
        if other != s.name:
            raise MetricError(f"set names {other!a} and {s.name!a} look alike — spell the name of a set in one way")
        if s.role not in by_role:
            raise MetricError(not_found(f"role '{s.role}' of set '{s.name}'", s.role, ROLES))
        as_scores(s.scores, f"scores of {s.role} set '{s.name}'")
        by_role[s.role].append(s)
    if len(by_role["id_test"]) != 1 or not (by_role["near"] or by_role["far"]):
        names = ", ".join(f"{s.role} '{s.name}'" for s in sets) or "nothing"
        raise MetricError(f"a run needs exactly one id_test set and at least one near or far set — found {names}")
    for roles in (GROUPS, _ATTACKED):
        used = [s.name for role in roles for s in by_role[role]]
        for at, name in enumerate(used):
            if name in _RESERVED or name.startswith((FULL_SPECTRUM, ATTACKED)):
                raise MetricError(f"set name '{name}' is taken by a group of results — rename the set")
            if name in used[:at]:
                raise MetricError(f"set name '{name}' is used twice among near and far sets")
    return by_role


def _floats(s: SetScores) -> Floats:
    return np.asarray(s.scores, dtype=np.float64)


def _losses(side: Iterable[SetScores]) -> Floats | None:
    """Return (n,) 1 − correct of the joined sets; None unless every set has it."""
    parts: list[Floats] = []
    for s in side:
        if s.correct is None:
            return None
        correct = np.asarray(s.correct, dtype=np.float64)
        if correct.shape != np.shape(s.scores) or not np.isin(correct, (0.0, 1.0)).all():
            raise MetricError(f"`correct` of set '{s.name}' must be 0 or 1, one per score ({correct.shape})")
        parts.append(1.0 - correct)
    return np.concatenate(parts)


def _setting(by_role: dict[str, list[SetScores]], side: tuple[SetScores, ...], options: MetricOptions) -> Setting:
    """Return the common part of all pairs with one ID side."""
    scores, losses = np.concatenate([_floats(s) for s in side]), _losses(side)
    order = np.argsort(scores)
    id_val, ood_val = ([_floats(s) for s in by_role[role]] for role in ("id_val", "ood_val"))
    conformal = "conformal" in options.families
    return Setting(
        options=options,
        scores=scores,
        losses=losses,
        ordered=scores[order],
        cumulated=None if losses is None else risk.running_loss(scores, losses, order),
        benchmark=(scores, *(_floats(s) for group in GROUPS for s in by_role[group])),
        validation=(*id_val, *ood_val),
        id_val=np.concatenate(id_val) if id_val else None,
        thresholds=_fixed_thresholds(scores[order], id_val, ood_val),
        table=correction_table(scores.size, options.delta, options.correction) if conformal else None,
    )


def fixed_thresholds(sets: Sequence[SetScores]) -> dict[str, float]:
    """Return the thresholds, the same for every OOD set, at which `fpr@NAME` and `fnr@NAME` are read.

    `95tnr` is the smallest that accepts 95 % of ID test; `val`, present where both validation sets are, is where FPR
    and FNR on validation are nearest to equal. A score above the threshold is flagged.

    Args:
        sets: as for `evaluate`.

    Raises:
        MetricError: as `evaluate`.
    """
    by_role = _checked(sets)
    id_val, ood_val = ([_floats(s) for s in by_role[role]] for role in ("id_val", "ood_val"))
    return _fixed_thresholds(np.sort(_floats(by_role["id_test"][0])), id_val, ood_val)


def _fixed_thresholds(ordered: Floats, id_val: list[Floats], ood_val: list[Floats]) -> dict[str, float]:
    thresholds = {"95tnr": tnr_threshold(ordered)}
    if id_val and ood_val:
        thresholds["val"] = balanced_threshold(PooledCurve.of(np.concatenate(id_val), np.concatenate(ood_val)))
    return thresholds


def _evaluate_side(
    by_role: dict[str, list[SetScores]], side: tuple[SetScores, ...], options: MetricOptions
) -> dict[str, Values]:
    setting = _setting(by_role, side, options)
    results: dict[str, Values] = {}
    f1_thresholds: list[float] = []
    for group in GROUPS:
        if not by_role[group]:
            continue
        pairs = {s.name: setting.pair(_floats(s), s.name) for s in by_role[group]}
        members = {name: evaluate_pair(pair, setting) for name, pair in pairs.items()}
        f1_thresholds += [pair.curve.best_f1.threshold for pair in pairs.values()]
        results |= members
        results[group] = _group_values(list(pairs.values()), list(members.values()), setting)
    results["id"] = _id_values(by_role, side, setting) | _stability(f1_thresholds, setting)
    return results


def group_means(members: Sequence[Mapping[str, float | int | str]]) -> Values:
    """Return the numbers of sets and of their images, and the means over the sets; `unable` if one of them is.

    Args:
        members: the values of each set.
    """
    means: Values = {"n_sets": len(members), "n_ood": sum(int(member["n_ood"]) for member in members)}
    for key in members[0]:
        if not key.startswith(("n_", "pooled_", "f1_threshold")) and not key.endswith(("_low", "_high")):
            column = [member[key] for member in members]
            means[key] = risk.UNABLE if risk.UNABLE in column else float(np.mean(np.asarray(column, dtype=np.float64)))
    return means


def _group_values(pairs: list[Pair], members: list[Values], setting: Setting) -> Values:
    """Return the means over a group's sets, their intervals, and the values of the pooled sets."""
    values = group_means(members)
    if "intervals" in setting.options.families:
        by_name = sorted(pairs, key=lambda pair: pair.name)  # draws do not depend on the order of the sets
        curves = [pair.curve for pair in by_name]
        mean = float(np.mean([curve.auroc() for curve in curves]))
        of_auroc = normal_interval(mean, group_delong_variance(curves), setting.options.confidence)
        values |= _intervals(curves, of_auroc, setting.options)
    pooled = setting.pair(np.concatenate([pair.ood for pair in pairs]))
    together = evaluate_pair(pooled, setting, skip="intervals")
    return values | {f"pooled_{key}": value for key, value in together.items() if key != "n_ood"}


def _id_values(by_role: dict[str, list[SetScores]], side: tuple[SetScores, ...], setting: Setting) -> Values:
    """Return the values of the ID side alone."""
    scores, losses = setting.scores, setting.losses
    values: Values = {"n_id": scores.size}
    if losses is not None:
        values["accuracy"] = float(1.0 - losses.mean())
        if "selective" in setting.options.families:
            values["aurc"], values["e-aurc"] = risk.aurc(scores, losses), risk.excess_aurc(scores, losses)
            values["augrc"] = risk.augrc(scores, losses)
    val_losses = _losses(by_role["id_val"]) if by_role["id_val"] else None
    if val_losses is not None:
        values["id_val_accuracy"] = float(1.0 - val_losses.mean())
    if "prediction_sets" in setting.options.families:
        values |= _prediction_set_values(by_role["id_val"], side, setting.options)
        values |= _calibration_values(side, setting.options)
    return values


def _stability(thresholds: list[float], setting: Setting) -> Values:
    """Return the spread of the best-F1 threshold over OOD sets."""
    if "threshold" not in setting.options.families:
        return {}
    try:
        spread = threshold_stability(thresholds, setting.scores)
    except MetricError:
        return {"f1_threshold_std": risk.UNABLE, "f1_threshold_range": risk.UNABLE}
    return {"f1_threshold_std": spread.std, "f1_threshold_range": spread.range}


def _prediction_set_values(calibration: list[SetScores], side: tuple[SetScores, ...], options: MetricOptions) -> Values:
    """Return the metrics of each kind of prediction set that both sides have the columns for.

    Sets are calibrated on ID validation. Without csID there are also means and deviations over random splits of ID
    validation and test. The values are cached: the methods of a sweep share class probabilities.
    """
    values: Values = {}
    own = ("class_scores", "class_probabilities") if prediction_sets.OWN in options.set_kinds else ()
    for source in ("probabilities", *own):
        parts = [_joined(sets, source) for sets in (calibration, side)]
        if parts[0] is None or parts[1] is None:
            continue
        size, (columns, labels) = len(parts[0][1]), (np.concatenate(both) for both in zip(*parts, strict=True))
        key = digest([source, columns, (labels.dtype.str, labels.tolist()), size, len(side), options], 64)
        kinds = _kinds(source, columns, labels, options)
        values |= _cached(key, partial(_set_metrics, kinds, size, len(side), options))
    return values


def _cached(key: str, compute: Callable[[], Mapping[str, float | int | str]]) -> Mapping[str, float | int | str]:
    """Values that depend on class probabilities, which the methods of a sweep share."""
    cached = _set_values.get(key)
    if cached is None:
        cached = compute()
        for oldest in list(_set_values)[: 1 - _CACHED]:
            _set_values.pop(oldest, None)  # another thread may have removed it
        _set_values[key] = cached
    return cached


def _calibration_values(side: tuple[SetScores, ...], options: MetricOptions) -> Mapping[str, float | int | str]:
    """Return ECE, Brier score and negative log-likelihood of the ID side; nothing without class probabilities."""
    joined = _joined(side, "probabilities")
    if joined is None or joined[1].min() < 0:
        return {}
    (p, labels), replicates = joined, options.replicates if "intervals" in options.families else 0
    key = digest(["calibration", p, labels.tolist(), options.confidence, replicates, options.seed], 64)
    return _cached(key, partial(calibration, p, labels, options.confidence, replicates, options.seed))


def _set_metrics(
    kinds: Iterable[tuple[str, prediction_sets.SortedClasses]], size: int, id_sets: int, options: MetricOptions
) -> Mapping[str, float | int | str]:
    """Return the set metrics of each kind.

    Args:
        kinds: pairs of the name in keys, and the scores of calibration and test rows.
        size: number of calibration rows, which come first.
        id_sets: number of sets that the others belong to.
        options: levels, splits, seed.
    """
    values: Values = {}
    for key, classes in kinds:
        split = prediction_sets.given_split(size, classes.labels.size - size, options.seed)
        for alpha, report in zip(options.alphas, classes.reports(split, options.alphas), strict=True):
            values |= {f"{key}_{name}@{alpha:g}": value for name, value in report._asdict().items()}
        if options.set_splits and id_sets == 1:
            reports = prediction_sets.over_splits(classes, size, options.alphas, options.set_splits, options.seed)
            values["n_set_splits"] = options.set_splits
            for alpha, summary in zip(options.alphas, reports, strict=True):
                values |= {f"{key}_{name}@{alpha:g}": value for name, value in summary._asdict().items()}
    return MappingProxyType(values)


def _kinds(
    source: str, columns: np.ndarray, labels: np.ndarray, options: MetricOptions
) -> Iterator[tuple[str, prediction_sets.SortedClasses]]:
    """Yield for each kind its name in keys, and its scores from the columns (n, c) of a source."""
    if source == "class_scores":
        yield prediction_sets.OWN, prediction_sets.SortedClasses.of_scores(columns, labels)
        return
    chosen = [kind for kind in options.set_kinds if kind != prediction_sets.OWN]
    misfits = [prediction_sets.Nonconformity(kind, options.raps_penalty, options.raps_k_reg) for kind in chosen]
    prefix = f"{prediction_sets.OWN}_" if source == "class_probabilities" else ""
    made = prediction_sets.SortedClasses.of_probabilities(columns, labels, misfits)
    for kind, classes in zip(chosen, made, strict=True):
        yield prefix + kind, classes


def _joined(sets: Sequence[SetScores], column: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a column (n, c) and the labels (n,) of the joined sets; None unless every set has both."""
    columns = [_column(s, column) for s in sets]
    if not sets or any(rows is None or s.labels is None for rows, s in zip(columns, sets, strict=True)):
        return None
    rows = [np.asarray(rows, dtype=np.float64) for rows in columns]
    return np.concatenate(rows), np.concatenate([np.asarray(s.labels) for s in sets])


def _column(s: SetScores, column: str) -> np.ndarray | None:
    if column == "class_probabilities" and s.class_probabilities is None and s.class_scores is not None:
        return prediction_sets.probabilities_from(s.class_scores)
    values: np.ndarray | None = getattr(s, column)
    return values
