"""The methods of a benchmark that may be the best, within limits on cost and needs; from records and their scores."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openbench.config.constraints import Checked, Positive
from openbench.core.record import ResultRecord
from openbench.core.request import Role
from openbench.errors import ConfigError, RecordError, check_known, did_you_mean
from openbench.metrics.rank_ranges import RankRange
from openbench.results.leaderboard.ranking import Board, Row, boards
from openbench.results.leaderboard.runs import Run, cost_of
from openbench.results.leaderboard.separable import ranges_of
from openbench.results.records.settings import NONE
from openbench.results.records.store import RecordStore
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.views import GROUPS

NEEDS = ("training data", "outliers", "gradients", "text")
GRADIENTS = "gradients"
OF_TEXT = ("MCM", "GLMCM", "ZeroShot")  # classes of methods; the classifier of their papers is made of text
FAR = "far"
_MB = 1.048576  # of a MiB

# What a method needs, of NEEDS, given its name and hyper-parameters; None if that is not known.
NeedsOf = Callable[[str, Mapping[str, Any]], tuple[str, ...] | None]
# Likewise what it has learnt in 10⁶ bytes, given also what it is fitted on: `train`, `val`, `width`, `classes`.
LearntOf = Callable[[str, Mapping[str, Any], Mapping[str, float | None]], float | None]
OnLost = Callable[[RecordError], None]


@dataclass(frozen=True)
class Facts:
    """What is known of methods beside their records.

    Args:
        needs: what each needs.
        learnt: how much each learns.
    """

    needs: NeedsOf
    learnt: LearntOf


@dataclass(frozen=True)
class Limits(Checked):
    """What a method may cost and need.

    Args:
        latency_ms: milliseconds per image for scoring, besides the network's own pass; None = any.
        memory_mb: what the method has learnt, besides the network, in 10⁶ bytes; None = any.
        without: what the user does not have, of NEEDS.
        backbone: name of the network; empty = any.
        training: how it was trained; empty = any.

    Raises:
        ConfigError: a value that is not allowed.
    """

    named = "recommend"

    latency_ms: Positive | None = None
    memory_mb: Positive | None = None
    without: tuple[str, ...] = ()
    backbone: str = ""
    training: str = ""

    def __post_init__(self) -> None:
        """Refuse needs that are not known."""
        check_known(self.without, NEEDS, "recommend.without")

    def against(self, candidate: "Candidate") -> str:
        """Return why a candidate is out, in words; empty if it is not."""
        found = []
        if self.without and candidate.needs is None:
            found.append("what it needs is not known")
        found += [f"needs {need}" for need in candidate.needs or () if need in self.without]
        if self.latency_ms is not None:
            if candidate.ms is None:
                found.append("its time is not measured")
            elif candidate.ms > self.latency_ms:
                found.append(f"{candidate.ms:.3g} ms per image")
        if self.memory_mb is not None and not found:  # which is not measured of what is out already
            if candidate.learnt_mb is None:
                found.append("what it learns is not measured")
            elif candidate.learnt_mb > self.memory_mb:
                found.append(f"{candidate.learnt_mb:,.3g} MB")
        return ", ".join(found)


@dataclass(frozen=True)
class Candidate:
    """A method with its hyper-parameters on one network.

    Args:
        row: of the leaderboard.
        ms: milliseconds per image, mean over runs; None if the record does not time all of it.
        mb: peak memory of the process in 10⁶ bytes, the least of its runs; None if it is not measured.
        learnt_mb: what it has learnt, in 10⁶ bytes: a bank, a covariance; None if it is not measured.
        needs: of NEEDS; None if that is not known.
        near: the ranks that it may have among those compared, by near AUROC, or far AUROC where no set is near; None
            if it could not be compared.
        far: likewise by far AUROC, among those that may be the best by near AUROC.
        out: why it is not considered; empty if it is.
    """

    row: Row
    ms: float | None
    mb: float | None
    learnt_mb: float | None
    needs: tuple[str, ...] | None
    near: RankRange | None = None
    far: RankRange | None = None
    out: str = ""


@dataclass(frozen=True)
class Advice:
    """What to take on one network.

    Args:
        about: benchmark, network and training.
        deviations: where the benchmark is not as defined.
        best: candidates that are not separable from the best; the first one, with the highest AUROC, is to be taken.
        near: how many were not separable from the best by near AUROC, before far AUROC was looked at.
        compared: how many were compared on the same images.
        untested: within the limits, but without published scores, so that no test can compare them.
        out: beyond the limits.
    """

    about: tuple[str, ...]
    deviations: tuple[str, ...]
    best: tuple[Candidate, ...]
    near: int
    compared: int
    untested: tuple[Candidate, ...]
    out: tuple[Candidate, ...]

    def __str__(self) -> str:
        from openbench.detect.recommend.words import in_words

        return in_words(self)


def recommended(results: Path, benchmark: str, limits: Limits, facts: Facts, lost: OnLost) -> list[Advice]:
    """Return what to take on each network that a benchmark was run on.

    Methods within the limits are compared by `rank_ranges`, paired tests on the same images and networks with the
    family-wise error rate 5 %: first by near AUROC, then those that may be the best by far AUROC. A method may pass
    because there is too little data to tell it from the best: that nothing speaks against it does not make it as good.

    Args:
        results: the folder with `records` and `scores`.
        benchmark: its name.
        limits: on cost and needs.
        facts: what is known of methods.
        lost: receives the error of each file that is not a record.

    Raises:
        ConfigError: no records of that benchmark, network or training.
        RecordError: no such folder.
    """
    if not results.is_dir():
        raise RecordError(
            f"results folder '{results}' not found — give one with --results DIR or OPENBENCH_RESULTS; "
            "`python -m openbench run` makes it"
        )
    costs: dict[str, Mapping[str, float | None]] = {}
    found = [board for board in boards(_read(results, costs, lost)) if not board.full_spectrum]
    chosen = [board for board in found if board.benchmark == benchmark]
    if not chosen:
        names = sorted({board.benchmark for board in found})
        raise ConfigError(
            f"benchmark '{benchmark}' has no records in '{results}'{did_you_mean(benchmark, names)} — available: "
            f"{', '.join(names) or 'none'} — python -m openbench run -m +benchmark={benchmark} 'method=glob(*)'"
        )
    advice = []
    for board in chosen:
        for about, rows in _networks(board, limits).items():
            candidates = [_candidate(row, costs, facts, limits) for row in rows]
            advice.append(_advice(about, board, candidates, limits, ScoreStore(results / PUBLISHED)))
    if not advice:
        reasons = sorted({reason for board in chosen for row in board.unranked for reason in row.reasons})
        raise ConfigError(f"no record of benchmark '{benchmark}' counts: {'; '.join(reasons)}")
    return advice


def _read(results: Path, costs: dict[str, Mapping[str, float | None]], lost: OnLost) -> Iterator[ResultRecord]:
    for record in RecordStore(results).readable(lost):
        costs[record.run_id] = cost_of(record) | {"pass_ms": _pass_ms(record)} | _shape(record)
        yield record


def _shape(record: ResultRecord) -> dict[str, float | None]:
    """What the method of a record was fitted on."""
    images = {
        key: sum(count["n"] for name, count in record.counts.items() if name.startswith(f"{role}/"))
        for key, role in (("train", Role.ID_TRAIN), ("val", Role.ID_VAL))
    }
    return {**images, "width": record.backbone.get("feature_dim"), "classes": record.backbone.get("num_classes")}


def _pass_ms(record: ResultRecord) -> float | None:
    """Milliseconds of one pass of the network as the run made it; None if all that it needed was cached."""
    seconds, passes = record.provenance.get("seconds"), record.provenance.get("passes")
    spent = seconds.get("features") if isinstance(seconds, Mapping) else None
    if not isinstance(spent, float | int) or not isinstance(passes, int) or passes < 1:
        return None
    return 1000 * spent / passes


def _networks(board: Board, limits: Limits) -> dict[tuple[str, ...], list[Row]]:
    """Network and training → its rows that count, best first.

    Raises:
        ConfigError: the limits name one that there is not.
    """
    rows = sorted((*board.ranked, *(row for row in board.unranked if _only_deviates(row))), key=lambda row: row.order)
    for key in ("backbone", "training"):
        wanted, there = getattr(limits, key), sorted({str(getattr(row, key)) for row in rows})
        if wanted and wanted not in there:
            raise ConfigError(
                f"{key} '{wanted}' has no records on benchmark '{board.benchmark}'{did_you_mean(wanted, there)} — "
                f"available: {', '.join(there) or 'none'}"
            )
        rows = [row for row in rows if not wanted or getattr(row, key) == wanted]
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        parts = {"augment": row.augment, "outliers": row.outliers}
        extra = [f"{key} {value}" for key, value in parts.items() if value != NONE]
        found.setdefault((row.backbone, row.training, *extra), []).append(row)
    return found


def _only_deviates(row: Row) -> bool:
    """Whether nothing speaks against a row but that the benchmark is not as defined, e.g. for want of a data set."""
    return len(row.reasons) == 1 and not all(run.pristine for run in row.members)


def _candidate(row: Row, costs: Mapping[str, Mapping[str, float | None]], facts: Facts, limits: Limits) -> Candidate:
    run = row.members[0]
    needs = facts.needs(row.method, run.params)
    times = [_time(run, costs[run.run_id], needs) for run in row.members]
    known = [ms for ms in times if ms is not None]
    peaks = [peak for run in row.members if (peak := costs[run.run_id]["mib"]) is not None]
    found = Candidate(
        row,
        sum(known) / len(known) if known else None,
        min(peaks) * _MB if peaks else None,
        None,
        needs,
    )
    if replace(limits, memory_mb=None).against(found):
        return found
    shape = {key: costs[run.run_id][key] for key in ("train", "val", "width", "classes")}
    return replace(found, learnt_mb=facts.learnt(row.method, run.params, shape))


def _time(run: Run, costs: Mapping[str, float | None], needs: Sequence[str] | None) -> float | None:
    """Milliseconds per image; a method that takes gradients needs passes of its own, which a cache may have saved."""
    ms, pass_ms = costs["ms"], costs["pass_ms"]
    if needs is not None and GRADIENTS not in needs:
        return ms
    return None if ms is None or pass_ms is None else ms + pass_ms


def _advice(
    about: tuple[str, ...], board: Board, candidates: Iterable[Candidate], limits: Limits, scores: ScoreStore
) -> Advice:
    judged = [replace(candidate, out=limits.against(candidate)) for candidate in candidates]
    allowed = [candidate for candidate in judged if not candidate.out]
    near = _ranges(board, allowed, scores, GROUPS)
    allowed = [replace(candidate, near=near.get(candidate.row.runs)) for candidate in allowed]
    compared = [candidate for candidate in allowed if candidate.near is not None]
    best = [candidate for candidate in compared if candidate.near is not None and candidate.near.best == 1]
    near_best, far = len(best), _ranges(board, best, scores, (FAR,))
    best = [replace(candidate, far=far.get(candidate.row.runs)) for candidate in best]
    best = [candidate for candidate in best if candidate.far is None or candidate.far.best == 1]
    if not compared:  # one method alone needs no test; of several without scores the table's first is all there is
        best = allowed[:1]
    taken = {candidate.row.runs for candidate in best}
    return Advice(
        about=(board.benchmark, *about),
        deviations=tuple(sorted({text for c in judged for run in c.row.members for text in run.deviations})),
        best=tuple(best),
        near=near_best,
        compared=len(compared),
        untested=tuple(c for c in allowed if c.near is None and c.row.runs not in taken),
        out=tuple(c for c in judged if c.out),
    )


def _ranges(
    board: Board, candidates: Sequence[Candidate], scores: ScoreStore, groups: Sequence[str]
) -> Mapping[tuple[str, ...], RankRange]:
    """The ranks that candidates may have; empty where there are no such sets, or fewer than two to compare."""
    rows = tuple(candidate.row for candidate in candidates)
    present = {role for row in rows for run in row.members for role in run.members}
    return ranges_of(replace(board, ranked=rows), scores, groups) if present & set(groups) else {}
