"""Comparison of runs: differences in AUROC with intervals, in their configs, and by image; and the rows of methods."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from openbench.core.record import ResultRecord
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import CacheError, DataError, RecordError
from openbench.metrics.curve import share_below
from openbench.metrics.intervals import paired_delong, unpaired_delong
from openbench.results.records.settings import GIVEN, hyper_parameters, leaves, training_of
from openbench.results.tables.render import Cell, Column, Estimate, Table
from openbench.results.tables.views import GROUPS, tuned_on

Keys = Mapping[tuple[str, str], Sequence[str]]
_SAME = "compare runs of one benchmark on the same images in the same order"


@dataclass(frozen=True)
class ScoredRun:
    """A run with its scores.

    Args:
        record: of the run.
        scores: its sets.
        name: a name that no other run has.
    """

    record: ResultRecord
    scores: tuple[SetScores, ...]
    name: str

    @property
    def ordered(self) -> bool:
        """Whether its images are known to be in the order of the benchmark's lists; given scores may not be."""
        node = self.record.config.get(GIVEN)
        return not isinstance(node, Mapping) or node.get("images") == "named"

    def of(self, *roles: str) -> list[SetScores]:
        """Its sets of some roles, by name."""
        return sorted((s for s in self.scores if str(s.role) in roles), key=lambda s: s.name)


def compared(runs: Sequence[tuple[ResultRecord, Sequence[SetScores]]]) -> list[ScoredRun]:
    """Return runs that can be compared, each with a name of its own: the method's, and the run's id where that repeats.

    Raises:
        DataError: their benchmarks, sets or images differ.
    """
    methods = [str(record.method.get("name")) for record, _ in runs]
    named = [
        ScoredRun(record, tuple(scores), name if methods.count(name) == 1 else f"{name} {record.run_id[:6]}")
        for (record, scores), name in zip(runs, methods, strict=True)
    ]
    for other in named[1:]:
        _check_same_images(named[0], other)
    return named


def differences(first: ScoredRun, other: ScoredRun, level: float = 0.95) -> Iterator[dict[str, Any]]:
    """Yield how two runs differ in AUROC: near, its sets, far, its sets.

    Keys: `set`, `role` (`mean` of a group), `auroc`, `other_auroc`, `difference`, the ends `low` and `high` of its
    interval, `p`, `n_id`, `n_ood`. Scores of images that are not named are compared as if they were of other images.

    Args:
        first: the difference is its AUROC minus the other's.
        other: on the same images.
        level: coverage of the intervals.

    Reference: DeLong, DeLong, Clarke-Pearson, Biometrics 44 (1988); see `metrics.paired_delong` for the group's mean.
    """
    (ids_a,), (ids_b,) = first.of(Role.ID_TEST), other.of(Role.ID_TEST)
    test = paired_delong if first.ordered and other.ordered else unpaired_delong
    for group in GROUPS:
        sets = list(zip(first.of(group), other.of(group), strict=True))
        groups = [(group, "mean", sets)] * bool(sets)
        for name, role, pairs in groups + [(pair[0].name, group, [pair]) for pair in sets]:
            one, two = ([pair[side].scores for pair in pairs] for side in (0, 1))
            found = test((ids_a.scores, one), (ids_b.scores, two), level)
            numbers = dict(zip(("auroc", "other_auroc", "difference", "low", "high", "p"), found, strict=True))
            sizes = {"n_id": len(ids_a.scores), "n_ood": sum(map(len, one))}
            yield {"set": name, "role": role, **numbers, **sizes}


def difference_table(first: ScoredRun, other: ScoredRun, level: float = 0.95) -> Table:
    """Return the AUROC of two runs by group and set, the difference with its interval, and p for equal AUROC.

    Args:
        first: the difference is its AUROC minus the other's.
        other: on the same images.
        level: coverage of the intervals.
    """
    columns = Column.of("set", "role", (f"{first.name} ↑", "percent"), (f"{other.name} ↑", "percent"))
    columns += Column.of(("difference [interval]", "percent"), ("p", "number"))
    rows = tuple(
        (
            row["set"] if row["role"] == "mean" else f"  {row['set']}",
            *(row[key] for key in ("role", "auroc", "other_auroc")),
            Estimate(row["difference"], row["low"], row["high"]),
            float(f"{row['p']:.3g}"),
        )
        for row in differences(first, other, level)
    )
    test = "AUROC on the same images: DeLong's paired test"
    if unnamed := " and ".join(run.name for run in (first, other) if not run.ordered):
        test = f"AUROC, unpaired as images of {unnamed} are not named: DeLong's variances, so that intervals are wide"
    note = (
        f"{test}, two-sided, not corrected for the number of rows; {level:.0%} intervals. One network each: other "
        "trainings may differ by more."
    )
    return Table(f"{first.name} against {other.name}", columns, rows, notes=(note,))


def config_table(runs: Sequence[ScoredRun]) -> Table:
    """Return the keys of the configs, and the chosen hyper-parameters, in which runs differ."""
    nodes = [{"config": run.record.config, "chosen": run.record.method.get("params", {})} for run in runs]
    words = [{key: "" if value is None else str(value) for key, value in leaves(node)} for node in nodes]
    keys = sorted({key for of_run in words for key in of_run})
    rows = ((key, *(of_run.get(key, "") for of_run in words)) for key in keys)
    columns = Column.of("key", *(run.name for run in runs))
    return Table("What differs in their configs", columns, tuple(row for row in rows if len(set(row[1:])) > 1))


def disagreement_table(first: ScoredRun, other: ScoredRun, most: int, keys: Keys) -> Table:
    """Return the images whose place among all ID test and OOD images of a set differs most between two runs.

    Args:
        first: the one run.
        other: the other.
        most: images of each set.
        keys: names of the images by role and set, where they are known; else their position is shown.
    """
    rows: list[tuple[Cell, ...]] = []
    (ids_a,), (ids_b,) = first.of(Role.ID_TEST), other.of(Role.ID_TEST)
    for group in GROUPS:
        for one, two in zip(first.of(group), other.of(group), strict=True):
            a, b = _places(ids_a.scores, one.scores), _places(ids_b.scores, two.scores)
            for at in np.argsort(-np.abs(a - b), kind="stable")[:most]:
                s, index = (ids_a, int(at)) if at < len(ids_a.scores) else (one, int(at) - len(ids_a.scores))
                names = keys.get((str(s.role), s.name), ())
                name = names[index] if index < len(names) else f"image {index}"
                rows.append((one.name, str(s.role), name, float(a[at]), float(b[at])))
    larger = (Column(f"{run.name}: larger than", "percent", 1) for run in (first, other))
    columns = (*Column.of("set", "role", "image"), *larger)
    note = "Larger than: the share of the ID test images and of that set whose score is smaller; ties count half."
    return Table("Images on which they disagree most", columns, tuple(rows), notes=(note,))


def _places(ids: np.ndarray, ood: np.ndarray) -> np.ndarray:
    """(n + m,) share of all scores below each score, ties counted ½."""
    values = np.concatenate([ids, ood]).astype(float)
    return share_below(values, values)


def _check_same_images(first: ScoredRun, other: ScoredRun) -> None:
    named = f"runs {first.record.run_id} and {other.record.run_id}"
    benchmarks = [run.record.benchmark for run in (first, other)]
    # The digest of arrays covers their values: the same images through two networks have two digests.
    listed = all("id" in (run.record.config.get("benchmark") or {}) for run in (first, other))
    if listed and benchmarks[0].get("digest") != benchmarks[1].get("digest"):
        described = " and ".join(f"{one.get('name')} (digest {one.get('digest')})" for one in benchmarks)
        raise DataError(f"{named} are of different benchmarks, {described} — {_SAME}")
    sets = [{f"{s.role}/{s.name}": s for s in run.of(Role.ID_TEST, *GROUPS)} for run in (first, other)]
    if lacking := sorted(sets[0].keys() ^ sets[1].keys()):
        raise DataError(f"{named} have different sets: only one has {', '.join(lacking)} — {_SAME}")
    for where, one in sets[0].items():
        two = sets[1][where]
        if len(one.scores) != len(two.scores):
            raise DataError(f"{named}: {where} has {len(one.scores)} and {len(two.scores)} images — {_SAME}")
        labels = [s.labels for s in (one, two) if s.labels is not None and (s.labels >= 0).any()]
        if first.ordered and other.ordered and len(labels) == 2 and not np.array_equal(labels[0], labels[1]):
            differing = int((labels[0] != labels[1]).sum())
            raise DataError(f"{named}: {where}: {differing} of {len(one.scores)} images have other labels — {_SAME}")


# Rows of tables that compare methods: the runs of each, by benchmark.

Scored = TypeVar("Scored")
OnLost = Callable[[CacheError], None]  # receives why the scores of a run cannot be read


def refuse(error: CacheError) -> NoReturn:
    """Raise the error: the table needs the scores of every run."""
    raise error


class RowKey(NamedTuple):
    """What the runs of one row have in common.

    Args:
        method: what users type after `method=`.
        params: its hyper-parameters, or on what data they were chosen.
        training: how the network was trained.
        network: backbone and seed.
    """

    method: str
    params: str
    training: str
    network: str

    @property
    def about(self) -> str:
        """All but the method's name."""
        return " · ".join(part for part in self[1:] if part)


def row_key(record: ResultRecord) -> RowKey:
    """Return the row that a run belongs to."""
    params = hyper_parameters(record.method.get("params", {})) if not record.tuned else f"tuned on {tuned_on(record)}"
    network = f"{record.backbone.get('name')} · seed {record.config.get('seed')}"
    return RowKey(str(record.method.get("name")), params, training_of(record), network)


def scored_rows(
    records: Iterable[ResultRecord], read: Callable[[RowKey, ResultRecord], Scored], on_lost: OnLost
) -> list[tuple[RowKey, ResultRecord, Scored]]:
    """Return every row's record of each benchmark and digest with what `read` makes of its scores, rows in order.

    Of a method's versions the newest is used; of runs that differ in the choice of metrics only, one.

    Args:
        records: any.
        read: raises CacheError where the scores of a run cannot be read.
        on_lost: receives these errors; the other runs are returned.

    Raises:
        RecordError: two runs that one row cannot hold.
        CacheError: none of the runs has its scores any more.
    """
    chosen: dict[tuple[RowKey, str, str], ResultRecord] = {}
    for record in sorted(records, key=lambda r: -int(r.method.get("version", 0))):
        place = (row_key(record), str(record.benchmark.get("name")), str(record.benchmark.get("digest")))
        _check_same_scores(chosen.setdefault(place, record), record)
    found, lost = list[tuple[RowKey, ResultRecord, Scored]](), list[CacheError]()
    for (row, *_), record in sorted(chosen.items(), key=lambda item: item[0]):
        try:
            found.append((row, record, read(row, record)))
        except CacheError as error:
            lost.append(error)
    for reason in lost:
        (on_lost if found else refuse)(reason)
    return found


def _check_same_scores(one: ResultRecord, other: ResultRecord) -> None:
    """Refuse a second run of a row, unless it has the same scores or the method has changed since."""
    # Runs that differ in their choice of metrics only have the same scores: one of them is enough.
    settings = [(r.method.get("params"), r.backbone.get("digest")) for r in (one, other)]
    if settings[0] != settings[1] and one.method.get("version") == other.method.get("version"):
        raise RecordError(
            f"benchmark '{one.benchmark.get('name')}': the runs {one.run_id} and {other.run_id} of method "
            f"'{one.method.get('name')}' differ in the chosen parameters or in the network, but would share a row — "
            "write each sweep to a results folder of its own, and give it as --results"
        )
