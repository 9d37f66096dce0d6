"""Metrics of OOD scores that the caller has computed: the numbers of `python -m openbench evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.api.arguments import as_array, class_indices, metric_options, named_sets
from openbench.api.result import Result
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.digest import digest
from openbench.engine.provenance import score_warnings, sign_warning
from openbench.errors import DataError, check_known
from openbench.metrics.curve import as_scores
from openbench.metrics.suite import MetricOptions, describe, evaluate

Side = ArrayLike | Mapping[str, ArrayLike]
Sets = Mapping[str, ArrayLike]
_ID_KEYS = ("scores", "labels", "predictions", "probabilities")
_SUM = 0.01  # tolerance of the sum of a row of probabilities, as in files of scores


def evaluate_scores(
    id: Side,
    ood: Sets | None = None,
    *,
    near: Sets | None = None,
    far: Sets | None = None,
    csid: Mapping[str, Side] | None = None,
    id_val: Side | None = None,
    ood_val: ArrayLike | None = None,
    id_labels: ArrayLike | None = None,
    predictions: ArrayLike | None = None,
    probabilities: ArrayLike | None = None,
    metrics: MetricOptions | Mapping[str, Any] | None = None,
    name: str = "scores",
) -> Result:
    """Return every metric of OOD scores (larger = more OOD), as `python -m openbench evaluate` computes them.

    Arrays may be numpy's, torch's, JAX's, pandas' or lists. Nothing is written.

    Example:
        result = ob.evaluate_scores(id_scores, far={"svhn": svhn_scores})
        result.metrics["svhn"]["auroc"]

    Args:
        id: (n,) scores of ID test; or a mapping with `scores` and, if known, `labels` (n,), `predictions` (n,) or
            `probabilities` (n, c), as for the other ID sets.
        ood: OOD sets by name, (m,) each, if near and far are not distinguished; they count as far.
        near: semantically close OOD sets by name.
        far: distant OOD sets by name.
        csid: covariate-shifted ID sets by name; metrics are then also reported for the full spectrum.
        id_val: (n,) scores of ID validation, or a mapping.
        ood_val: (m,) scores of OOD validation.
        id_labels: (n,) the true class of each ID test sample, for accuracy and selective risk.
        predictions: (n,) the predicted classes.
        probabilities: (n, c) class probabilities, for prediction sets; they also give predictions if none are passed.
        metrics: options, e.g. `{"replicates": 0}`; None = the defaults.
        name: of the scores in tables.

    Raises:
        MetricError: no OOD set, scores that are NaN, empty or not one-dimensional, or options that do not fit.
        DataError: labels, predictions or probabilities that do not fit the scores.
    """
    options = metric_options(metrics)
    extra = {"labels": id_labels, "predictions": predictions, "probabilities": probabilities}
    known = {key: value for key, value in extra.items() if value is not None}
    sets = [_id_set("id_test", "id_test", id, known)]
    sets += [] if id_val is None else [_id_set("id_val", "id_val", id_val)]
    sets += [_id_set(set_name, "csid", side) for set_name, side in named_sets(csid, "csid", "scores")]
    sets += [] if ood_val is None else [SetScores("ood_val", "ood_val", _scores(ood_val, "ood_val"))]
    for role, group, where in (("near", near, "near"), ("far", far, "far"), ("far", ood, "ood")):
        sets += [
            SetScores(set_name, role, _scores(value, f"{where} '{set_name}'"))
            for set_name, value in named_sets(group, where, "scores")
        ]
    return result_of(sets, options, name)


def _scores(value: ArrayLike, where: str) -> NDArray[np.float64]:
    return as_scores(as_array(value, f"scores of {where}"), f"scores of {where}")


def _id_set(name: str, role: str, side: Side, extra: Mapping[str, ArrayLike] = MappingProxyType({})) -> SetScores:
    """An ID set, with the correctness of its predictions if labels are known."""
    where = name if name == role else f"{role} '{name}'"
    columns: dict[str, Any] = {**side, **extra} if isinstance(side, Mapping) else {"scores": side, **extra}
    check_known(columns, _ID_KEYS, where)
    if "scores" not in columns:
        raise DataError(f"{where} has {', '.join(columns)} — `scores` is needed")
    scores = _scores(columns["scores"], where)
    n = len(scores)
    probabilities = _probabilities(columns["probabilities"], n, where) if "probabilities" in columns else None
    classes = None if probabilities is None else probabilities.shape[1]
    labels, predictions = (
        class_indices(columns[key], n, f"{key} of {where}", c) if key in columns else None
        for key, c in (("labels", classes), ("predictions", None))
    )
    if predictions is None and probabilities is not None:
        predictions = probabilities.argmax(axis=1)
    correct = None if labels is None or predictions is None else (labels == predictions).astype(np.float64)
    return SetScores(name, role, scores, correct, labels, probabilities, predictions=predictions)


def _probabilities(value: ArrayLike, n: int, where: str) -> NDArray[np.float64]:
    rows = as_array(value, f"probabilities of {where}").astype(np.float64)
    if rows.ndim != 2 or len(rows) != n:
        raise DataError(f"probabilities of {where} have shape {rows.shape} — allowed: ({n}, c)")
    if not (rows >= 0).all() or not (np.abs(rows.sum(axis=1) - 1) <= _SUM).all():
        raise DataError(f"probabilities of {where} are negative, NaN or do not sum to 1 — pass softmax(logits)")
    return rows


def result_of(sets: Sequence[SetScores], options: MetricOptions, name: str) -> Result:
    """Return every metric of scores as a result without network and method.

    Args:
        sets: the scores.
        options: of metrics.
        name: of the scores in tables.
    """
    values = evaluate(sets, options)
    warnings = (*score_warnings(f"'{name}'", sets), *sign_warning(f"'{name}'", sets, values))
    content = [{key: value for key, value in vars(s).items() if value is not None} for s in sets]
    config = {"metrics": asdict(options)}
    run_id, header, method = digest({"scores": content, **config}), describe(options), {"name": name}
    benchmark = {"name": name, "digest": digest(content), "pristine": True, "deviations": []}
    counts = {f"{s.role}/{s.name}": {"n": len(s.scores), "expected": len(s.scores)} for s in sets}
    record = ResultRecord(run_id, config, benchmark, {}, method, {}, [], values, header, counts)
    return Result(record, tuple(sets), warnings=warnings)
