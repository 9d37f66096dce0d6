"""Two results on the same images: how much their AUROCs differ, with interval and p value, by set and group."""

from typing import TYPE_CHECKING, Any

import numpy as np

from openbench.core.scores import SetScores
from openbench.errors import CacheError, DataError
from openbench.metrics.intervals import paired_delong
from openbench.results.tables.views import GROUPS

if TYPE_CHECKING:
    from pandas import DataFrame

    from openbench.api.result import Result

_COMPARED = ("id_test", *GROUPS)
_COUNTED = ("n_id", "n_ood")


def compared(first: "Result", second: "Result", level: float = 0.95) -> "DataFrame":
    """Return the paired comparison of two results: rows in the order of tables, near, its sets, far, its sets.

    Args:
        first: the difference is its AUROC minus the other's.
        second: on the same images.
        level: coverage of the intervals, in (0, 1).

    Raises:
        CacheError: the scores of one were not kept.
        DataError: the two were not scored on the same images.
        MetricError: level out of range.
    """
    import pandas as pd

    if not hasattr(second, "record"):
        raise DataError(
            f"compare — found a {type(second).__name__} — a Result expected: results['knn'].compare(results['msp'])"
        )
    pairs = _pairs(first, second)
    ids = next(pair for pair in pairs if pair[0].role == "id_test")
    rows = []
    for group in GROUPS:
        members = sorted((pair for pair in pairs if pair[0].role == group), key=lambda pair: pair[0].name)
        if members:
            rows.append({"set": group, "role": "mean", **_row(ids, members, level)})
            rows += [{"set": pair[0].name, "role": group, **_row(ids, [pair], level)} for pair in members]
    found = pd.DataFrame(rows).astype({"set": "str", "role": "str", **dict.fromkeys(_COUNTED, "Int64")})
    named = [f"{result.record.method.get('name')} ({result.record.run_id})" for result in (first, second)]
    found.attrs |= {"first": named[0], "second": named[1], "level": level, "test": "DeLong, paired, two-sided"}
    return found


_Pair = tuple[SetScores, SetScores]


def _row(ids: _Pair, members: list[_Pair], level: float) -> dict[str, Any]:
    sides = [(ids[at].scores, [pair[at].scores for pair in members]) for at in (0, 1)]
    found = paired_delong(sides[0], sides[1], level)
    return {
        "auroc": found.first,
        "other_auroc": found.second,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "p": found.p,
        "n_id": len(ids[0].scores),
        "n_ood": sum(len(pair[0].scores) for pair in members),
    }


def _pairs(first: "Result", second: "Result") -> list[_Pair]:
    """The scores of both, set by set, once it is known that the images are the same."""
    kept = [{(s.role, s.name): s for s in scores_of(result) if s.role in _COMPARED} for result in (first, second)]
    _check_benchmarks(first, second)
    lacking = sorted(f"{role}/{name}" for role, name in kept[0].keys() ^ kept[1].keys())
    if lacking:
        raise DataError(f"the results have different sets — only one of them has {', '.join(lacking)} — {_SAME}")
    pairs = [(kept[0][key], kept[1][key]) for key in kept[0]]
    for one, other in pairs:
        _check_set(one, other)
    return pairs


_SAME = "compare results on the same images in the same order"


def scores_of(result: "Result") -> tuple[SetScores, ...]:
    """Return the scores of a result.

    Raises:
        CacheError: they were not kept, or each OOD set has ID scores of its own.
    """
    named = f"result of method '{result.record.method.get('name')}' (run {result.record.run_id})"
    if not result.scores:
        raise CacheError(f"{named} has no scores per image — they were not kept — repeat the run to compute them")
    if sum(s.role == "id_test" for s in result.scores) != 1:
        raise CacheError(
            f"{named} has {sum(s.role == 'id_test' for s in result.scores)} sets of ID test scores — one is needed"
        )
    return result.scores


def _check_benchmarks(first: "Result", second: "Result") -> None:
    """Refuse results of benchmarks whose lists of images differ; arrays from elsewhere come without lists."""
    # The digest of arrays covers their values: the same images through two networks have two digests.
    listed = ["id" in (result.record.config.get("benchmark") or {}) for result in (first, second)]
    benchmarks = [result.record.benchmark for result in (first, second)]
    if all(listed) and benchmarks[0].get("digest") != benchmarks[1].get("digest"):
        found = " and ".join(f"{b.get('name')} (digest {b.get('digest')})" for b in benchmarks)
        raise DataError(f"the results are of benchmarks with other images — found {found} — {_SAME}")


def _check_set(one: SetScores, other: SetScores) -> None:
    where = f"{one.role}/{one.name}"
    if len(one.scores) != len(other.scores):
        raise DataError(f"{where} has {len(one.scores)} and {len(other.scores)} images — {_SAME}")
    if one.labels is not None and other.labels is not None and not np.array_equal(one.labels, other.labels):
        differing = int((np.asarray(one.labels) != np.asarray(other.labels)).sum())
        raise DataError(f"{where}: {differing} of {len(one.scores)} images have other labels — {_SAME}")
