"""Every metric of scores that the caller has already: arrays in, the numbers of `python -m openbench evaluate` out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openbench.api.arguments import as_array, class_indices, metric_options, named_sets
from openbench.api.result import Result
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.digest import digest
from openbench.engine.provenance import WARNINGS, remarks, turned
from openbench.errors import DataError, check_known
from openbench.metrics.curve import as_scores
from openbench.metrics.suite import MetricOptions, describe, evaluate

Side = ArrayLike | Mapping[str, ArrayLike]
Sets = Mapping[str, ArrayLike]
_ID_KEYS = ("scores", "labels", "predictions", "probabilities")
_SUM = 0.01  # by which a row of probabilities may miss 1, as in files of scores


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
    """Return every metric of OOD scores, larger = more OOD: the numbers of `python -m openbench evaluate`, to the bit.

    Arrays may be numpy's, torch's, JAX's, pandas' or lists. Nothing is written.

    Args:
        id: (n,) scores of ID test; or a mapping with `scores` and, where they are known, `labels` (n,), `predictions`
            (n,) or `probabilities` (n, c), as for the other ID-side sets.
        ood: OOD sets by name, (m,) each, where near and far are not told apart; they count as far.
        near: semantically close OOD sets by name.
        far: distant OOD sets by name.
        csid: covariate-shifted ID sets by name; everything is then reported for the full spectrum, too.
        id_val: of ID validation.
        ood_val: (m,) of OOD validation.
        id_labels: (n,) the true class of each ID test sample, for accuracy and selective risk.
        predictions: (n,) the predicted classes.
        probabilities: (n, c) class probabilities, for prediction sets; without predictions the largest is the answer.
        metrics: options, e.g. `{"replicates": 0}`; None = the defaults.
        name: what the scores are called in tables.

    Raises:
        MetricError: no OOD set, scores that are NaN, empty or not one-dimensional, or options that do not fit.
        DataError: labels, predictions or probabilities that do not belong to the scores.
    """
    options = metric_options(metrics)
    extra = {"labels": id_labels, "predictions": predictions, "probabilities": probabilities}
    given = {key: value for key, value in extra.items() if value is not None}
    sets = [_id_set("id_test", "id_test", _merged(id, given))]
    sets += [] if id_val is None else [_id_set("id_val", "id_val", _merged(id_val, {}))]
    sets += [_id_set(named, "csid", _merged(side, {})) for named, side in named_sets(csid, "csid", "scores")]
    sets += [] if ood_val is None else [SetScores("ood_val", "ood_val", _scores(ood_val, "ood_val"))]
    for role, group, where in (("near", near, "near"), ("far", far, "far"), ("far", ood, "ood")):
        sets += [
            SetScores(named, role, _scores(value, f"{where} '{named}'"))
            for named, value in named_sets(group, where, "scores")
        ]
    return result_of(sets, options, name)


def _merged(side: Side, extra: Mapping[str, ArrayLike]) -> dict[str, Any]:
    return {**side, **extra} if isinstance(side, Mapping) else {"scores": side, **extra}


def _scores(value: ArrayLike, where: str) -> NDArray[np.float64]:
    return as_scores(as_array(value, f"scores of {where}"), f"scores of {where}")


def _id_set(name: str, role: str, given: Mapping[str, Any]) -> SetScores:
    """An ID-side set, with what its labels and predictions say about correctness."""
    where = name if name == role else f"{role} '{name}'"
    check_known(given, _ID_KEYS, where)
    if "scores" not in given:
        raise DataError(f"{where} — found {', '.join(given)} — `scores` is needed")
    scores = _scores(given["scores"], where)
    n = len(scores)
    probabilities = _probabilities(given["probabilities"], n, where) if "probabilities" in given else None
    classes = None if probabilities is None else probabilities.shape[1]
    labels = class_indices(given["labels"], n, f"labels of {where}", classes) if "labels" in given else None
    predicted = class_indices(given["predictions"], n, f"predictions of {where}") if "predictions" in given else None
    if predicted is None and probabilities is not None:
        predicted = probabilities.argmax(axis=1)
    correct = None if labels is None or predicted is None else (labels == predicted).astype(np.float64)
    return SetScores(name, role, scores, correct, labels, probabilities, predictions=predicted)


def _probabilities(value: ArrayLike, n: int, where: str) -> NDArray[np.float64]:
    found = as_array(value, f"probabilities of {where}")
    if found.ndim != 2 or len(found) != n or found.dtype.kind not in "fiu":
        raise DataError(f"probabilities of {where} — found {found.dtype} {found.shape} — allowed: numbers ({n}, c)")
    rows = found.astype(np.float64)
    if not (rows >= 0).all() or not (np.abs(rows.sum(axis=1) - 1) <= _SUM).all():
        raise DataError(
            f"probabilities of {where} — found rows that are negative, NaN or do not sum to 1 — allowed: class "
            "probabilities — pass softmax(logits), not logits"
        )
    return rows


def result_of(sets: Sequence[SetScores], options: MetricOptions, name: str) -> Result:
    """Return every metric of scores; there is no network and no method that openbench knows of.

    Args:
        sets: the scores.
        options: of metrics.
        name: what the scores are called in tables.
    """
    values = evaluate(sets, options)
    said = (*remarks(f"'{name}'", sets).get(WARNINGS, ()), *turned(f"'{name}'", sets, values))
    content = [{key: value for key, value in vars(s).items() if value is not None} for s in sets]
    config = {"metrics": asdict(options)}
    record = ResultRecord(
        run_id=digest({"scores": content, **config}),
        config=config,
        benchmark={"name": name, "digest": digest(content), "pristine": True, "deviations": []},
        backbone={},
        method={"name": name},
        tuned={},
        trials=[],
        metrics=values,
        header=describe(options),
        counts={f"{s.role}/{s.name}": {"n": len(s.scores), "expected": len(s.scores)} for s in sets},
    )
    return Result(record, tuple(sets), warnings=said)
