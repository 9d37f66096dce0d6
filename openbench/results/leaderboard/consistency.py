"""Consistency of a record: its id follows from its config, its means and counts from its sets."""

from collections.abc import Iterator
from math import fsum
from typing import Any

from openbench.core.names import FULL_SPECTRUM
from openbench.core.record import ResultRecord, RunIdentity
from openbench.results.tables.views import GROUPS

# Means are recomputed in double precision; only the order of additions may differ.
_ROUNDING = 1e-9
_UNABLE = "unable"
# What boards are made of: each set must have it.
_NEEDED = ("auroc", "fpr95")
_SHOWN = 3
_TESTED = ("id_test/", "id_val/", "csid/", "ood_val/", "near/", "far/")


def inconsistencies(record: ResultRecord) -> tuple[str, ...]:
    """Return what in a record does not follow from the rest of it, in words; empty if everything does.

    These are recomputed: the run id; for near and far on both ID sides, every key that is the mean over the sets
    (`unable` if any set is); from how many images numbers are; and, if the record calls the benchmark as defined,
    whether its sets are complete. Other numbers of single sets and of pooled sets cannot be recomputed.

    Args:
        record: as read from its file.
    """
    made_by = RunIdentity.of(record).run_id
    wrong_id = f"run id {record.run_id} does not follow from what was run, which gives {made_by}"
    problems = [wrong_id] * (made_by != record.run_id)
    for side in ("", FULL_SPECTRUM):
        for group in GROUPS:
            if side + group in record.metrics:
                problems += _first_few(list(_wrong_means(record, side, group)))
    return (*problems, *_first_few(list(_wrong_counts(record))), *_not_whole(record))


def _wrong_means(record: ResultRecord, side: str, group: str) -> Iterator[str]:
    name = side + group
    names = [key.partition("/")[2] for key in record.counts if key.startswith(f"{group}/")]
    members = [record.metrics[side + n] for n in names if side + n in record.metrics]
    missing = [n for n in names if side + n not in record.metrics]
    if missing or not names:
        yield f"{name} has no sets to follow from" + f": numbers of {', '.join(missing)} are missing" * bool(missing)
        return
    for key, value in record.metrics[name].items():
        expected = _expected(key, members)
        if expected is None and key in _NEEDED:
            yield f"{name}.{key} does not follow from its sets: some of them lack it"
        if expected is not None and not _agree(value, expected):
            yield f"{name}.{key} does not follow from its sets ({_short(value)} recorded, {_short(expected)} computed)"


def _wrong_counts(record: ResultRecord) -> Iterator[str]:
    """Counts of images that differ from the counts of the sets."""
    counts = {key: count["n"] for key, count in record.counts.items()}
    id_test, csid = (sum(n for key, n in counts.items() if key.startswith(role)) for role in ("id_test/", "csid/"))
    expected = {("id", "n_id"): id_test, (f"{FULL_SPECTRUM}id", "n_id"): id_test + csid}
    for key, n in counts.items():
        role, _, name = key.partition("/")
        if role in GROUPS:
            expected |= {(side + name, "n_ood"): n for side in ("", FULL_SPECTRUM)}
    for (name, key), n in expected.items():
        value = record.metrics.get(name, {}).get(key, n)
        if n and value != n:
            yield f"{name}.{key} is not the number of images in its sets ({_short(value)} recorded, {n} counted)"


def _not_whole(record: ResultRecord) -> Iterator[str]:
    """Test and validation sets that lack images although the benchmark is recorded to be as defined."""
    tested = {key: count for key, count in record.counts.items() if key.startswith(_TESTED)}
    part = [f"{key} ({n['n']} of {n['expected']})" for key, n in tested.items() if n["n"] < n["expected"]]
    if part and record.benchmark.get("pristine") is True:
        yield f"benchmark.pristine does not follow from its sets, which lack images: {', '.join(part[:_SHOWN])}"


def _expected(key: str, members: list[dict[str, Any]]) -> float | str | None:
    """What a group's key must be; None for what is not a mean over the sets, or is not known for each of them."""
    if key == "n_sets":
        return len(members)
    if key.startswith("pooled_") or key.endswith(("_low", "_high")):
        return None
    values: list[Any] = [member.get(key) for member in members]
    if None in values:
        return None
    if _UNABLE in values:
        return _UNABLE
    try:
        total = fsum(values)
    except TypeError:
        return None
    return total if key == "n_ood" else total / len(values)


def _agree(value: float | str, expected: float | str) -> bool:
    if isinstance(value, str) or isinstance(expected, str):
        return value == expected
    return abs(value - expected) <= _ROUNDING * max(1.0, abs(expected))


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _first_few(problems: list[str]) -> list[str]:
    """The first few of many alike."""
    if (more := len(problems) - _SHOWN) <= 0:
        return problems
    return [*problems[:_SHOWN], f"{problems[0].partition('.')[0]}: {more} more numbers do not either"]
