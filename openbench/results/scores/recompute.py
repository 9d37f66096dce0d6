"""Recomputation of a record's metrics from its stored scores: no image, no network, about a second."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import OpenbenchError, RecordError
from openbench.metrics.options import MetricOptions
from openbench.metrics.suite import evaluate
from openbench.results.records.compare import RecordComparison, ValueDifference, compare
from openbench.results.records.settings import given_of, is_per_set
from openbench.results.scores.stored import scores_digest

SCORED = ("id_test/", "id_val/", "csid/", "ood_val/", "near/", "far/")  # roles whose images have scores
# Metrics of prediction sets and of calibration, which are made of class probabilities.
_NEEDS_CLASSES = re.compile(
    r"(score|(score_)?(lac|aps|raps))_\w+@.+|n_set_splits|(ece(_equal_mass|_debiased)?|brier|nll)(_low|_high)?"
)


@dataclass(frozen=True)
class Recomputed:
    """The metrics of a record's scores, compared with the recorded ones.

    Args:
        comparison: of every metric that scores, labels and predictions give.
        numbers: how many metrics were computed.
        without: how many of the record's metrics need more than scores: class probabilities, for prediction sets.
        added: {set or group: {key: value}} of what the record does not have, because openbench measures more by now.
    """

    comparison: RecordComparison
    numbers: int
    without: int
    added: Mapping[str, Mapping[str, float | int | str]]

    @property
    def agrees(self) -> bool:
        """Whether every number that was computed is that of the record."""
        return not self.different

    @property
    def different(self) -> tuple[ValueDifference, ...]:
        """Numbers that differ: the same scores give the same numbers on every processor."""
        return (*self.comparison.differ, *self.comparison.moved)

    def __str__(self) -> str:
        left = f" · {self.without} need class probabilities, which were not stored" if self.without else ""
        new = [f"{of}.{key} {value:.4g}" for of, values in self.added.items() for key, value in values.items()]
        return f"{self.comparison}{left}" + f" · not in the record: {', '.join(new)}" * bool(new)


def recompute(record: ResultRecord, sets: Sequence[SetScores]) -> Recomputed:
    """Return the metrics of a record's scores, compared with the recorded ones.

    Args:
        record: of one run.
        sets: its scores.

    Raises:
        RecordError: the record's metrics cannot be computed from one file of scores, sets or images differ, it states
            numbers that its scores do not give, or its options are not valid.
        MetricError: the scores give no metrics.
    """
    if is_per_set(record):
        raise RecordError(
            f"record {record.run_id} has ID scores for each OOD set, which are not published — compute it from its "
            f"images: python -m openbench verify --images {record.run_id}"
        )
    counts = {f"{s.role}/{s.name}": len(s.scores) for s in sets}
    for key in sorted(counts.keys() | {key for key in record.counts if key.startswith(SCORED)}):
        n, stated = counts.get(key, 0), record.counts.get(key, {}).get("n", 0)
        if stated != n:
            raise RecordError(f"record {record.run_id} counts {stated} images in {key}, its scores {n}")
    if given_of(record) not in ("", scores_digest(sets)):
        raise RecordError(f"record {record.run_id}: the scores beside it are not those that were given")
    computed = evaluate(sets, options_of(record))
    by_class = any(s.probabilities is not None for s in sets)
    old, new, added = (dict[str, dict[str, Any]]() for _ in range(3))
    for name, values in record.metrics.items():
        found = computed.get(name, {})
        for key in (key for key in values if key not in found):
            if by_class or not _NEEDS_CLASSES.fullmatch(key):
                what = f"{name}.{key}, which its scores and its options do not give"
                raise RecordError(f"record {record.run_id} states {what}")
        if shared := [key for key in found if key in values]:
            old[name], new[name] = ({key: of[key] for key in shared} for of in (values, found))
        if more := {key: value for key, value in found.items() if key not in values}:
            added[name] = more
    numbers = sum(map(len, old.values()))
    without = sum(map(len, record.metrics.values())) - numbers
    return Recomputed(compare(replace(record, metrics=old), replace(record, metrics=new)), numbers, without, added)


def options_of(record: ResultRecord) -> MetricOptions:
    """Return the metric options that a record was made with.

    Raises:
        RecordError: they are not valid.
    """
    known, node = {option.name for option in fields(MetricOptions)}, record.config.get("metrics") or {}
    options = {key: value for key, value in node.items() if key in known}
    try:
        return MetricOptions(**options)
    except (OpenbenchError, TypeError) as error:
        raise RecordError(f"record {record.run_id}: its options of metrics are not valid — {error}") from error
