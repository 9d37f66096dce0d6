"""Recommendations from records: the methods of a benchmark that may be the best, within limits on cost and needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from openbench import paths
from openbench.config.constraints import Positive, check_value
from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.core.composite import leaves
from openbench.core.method import Method
from openbench.engine.compatibility import NEEDS, Requirements
from openbench.engine.prepare import build_method
from openbench.errors import ConfigError, OpenbenchError, RecordError, check_known, did_you_mean
from openbench.metrics.rank_ranges import RankRange
from openbench.results.frame import Run
from openbench.results.leaderboard.ranking import Board, Row, boards_in
from openbench.results.leaderboard.separable import ranges_of
from openbench.results.records.settings import NONE
from openbench.results.records.store import RecordStore
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.render import Column, Estimate, Table
from openbench.results.tables.views import GROUPS

_FAR = "far"
_MB = 1.048576  # of a MiB
Runs = tuple[str, ...]
_SHOWN = 12  # methods that a table or a note lists
_COLUMNS = (
    Column("method"),
    Column("hyper-parameters"),
    Column("near AUROC ↑", "percent"),
    Column("far AUROC ↑", "percent"),
    Column("ranks near"),
    Column("far"),
    Column("ms per image", "number"),
    Column("process (MB)", "number"),
    Column("needs"),
)
_COSTS = (
    "ms per image: besides the network's own pass, on the machine of the record; – where the passes that gradients "
    "take were not timed. Process: its peak memory, Python and PyTorch included, and in a sweep the runs before it."
)
_RANKS = (
    "Ranks that each may have, by paired tests on the same images (family-wise error 5 %): near among the {} compared, "
    "far among those that may be the best by near AUROC. Too little data to tell two methods apart does not make them "
    "equally good."
)


@dataclass(frozen=True)
class Advice:
    """What to take on one network; its text says why.

    A method is a mapping: `method`, `settings`, AUROCs, `ranks` that it may have, `ms_per_image` (None if not all of it
    was timed), `process_mb`, `needs` (None if not known), `runs`, and `why` it is beyond the limits.

    Args:
        about: benchmark, network and training.
        deviations: where the benchmark is not as defined.
        best: methods that are not separable from the best; the first one, with the highest AUROC, is to be taken.
        compared: how many were compared on the same images.
        untested: within the limits, but without published scores, so that no test can compare them.
        out: beyond the limits.
    """

    about: tuple[str, ...]
    deviations: tuple[str, ...]
    best: tuple[Mapping[str, Any], ...]
    compared: int
    untested: tuple[Mapping[str, Any], ...]
    out: tuple[Mapping[str, Any], ...]

    def __str__(self) -> str:
        about = " · ".join(self.about)
        if not self.best:
            times = [one["ms_per_image"] for one in self.out if one["ms_per_image"] is not None]
            least = f"; the least time measured is {min(times):.3g} ms per image" if times else ""
            return f"{about}: no method is within the limits{least}"
        take, *others = self.best
        if self.compared:
            first = f"the highest AUROC of the {len(self.best)} that" if others else "the only one that"
            why = f"{first} may be the best, of {self.compared} compared"
        elif self.untested:
            why = "the highest AUROC, but not tested against the others"
        else:
            why = "the only method within the limits"
        ms = take["ms_per_image"]
        time = "its extra passes were not timed" if ms is None else f"{ms:.3g} ms per image"
        return f"{about}: take {take['method']}: {why}; {time} besides the network's pass, needs {_needs(take)}"

    def tables(self) -> list[Table]:
        """Return the methods that no other is surely better than, and those beyond the limits with the reason."""
        about = " · ".join(self.about)
        notes = [_RANKS.format(self.compared)] * bool(self.compared) + [_COSTS]
        if self.untested:
            names = _listed([one["method"] for one in self.untested])
            notes.append(f"Not tested, as scores on the same images are not published: {names} (openbench publish)")
        if self.deviations:
            notes.append(f"Not the benchmark as defined: {'; '.join(self.deviations)}")
        rows = tuple(
            (
                one["method"],
                one["settings"],
                one.get("near_auroc"),
                one.get("far_auroc"),
                *("–".join(map(str, dict.fromkeys(ranks))) if ranks else None for ranks in one["ranks"].values()),
                None if one["ms_per_image"] is None else float(f"{one['ms_per_image']:.3g}"),
                None if one["process_mb"] is None else float(f"{one['process_mb']:.0f}"),
                _needs(one),
            )
            for one in self.best
        )
        found = [Table(f"Not separable from the best · {about}", _COLUMNS, rows, notes=tuple(notes))] if rows else []
        if self.out:
            columns = (Column("method"), Column("near AUROC ↑", "percent"), Column("why not"))
            beyond = tuple((one["method"], one.get("near_auroc"), one["why"]) for one in self.out[:_SHOWN])
            more = (f"and {len(self.out) - _SHOWN} more",) if len(self.out) > _SHOWN else ()
            found.append(Table(f"Beyond the limits · {about}", columns, beyond, notes=more))
        return found

    def values(self) -> dict[str, Any]:
        """Return it as plain values."""
        lists = {"best": self.best, "untested": self.untested, "out": self.out}
        return {
            "about": list(self.about),
            "words": str(self),
            "take": self.best[0]["method"] if self.best else None,
            "compared": self.compared,
            "deviations": list(self.deviations),
            **{name: [_plain(one) for one in methods] for name, methods in lists.items()},
        }


def recommend(
    benchmark: str,
    *,
    latency_ms: float | None = None,
    memory_mb: float | None = None,
    without: Sequence[str] = (),
    backbone: str = "",
    training: str = "",
    folder: str | Path | None = None,
    on_error: Callable[[RecordError], None] | None = None,
) -> list[Advice]:
    """Return which method to take on each network that a benchmark was run on, from its records; `str` says why.

    Methods within the limits are compared by `rank_ranges`, paired tests on the same images and networks with the
    family-wise error rate 5 %: first by near AUROC, then those that may be the best by far AUROC. A method may pass
    because there is too little data to tell it from the best.

    Args:
        benchmark: its name, e.g. `cifar10`.
        latency_ms: at most so many milliseconds per image, besides the network's own pass.
        memory_mb: at most so many 10⁶ bytes at the peak of the process that scored.
        without: what you do not have, of `training data`, `outliers`, `gradients`, `text`.
        backbone: this network only.
        training: trained this way only.
        folder: a results folder; None = OPENBENCH_RESULTS, else `./results`.
        on_error: receives the error of each file that is not a record; None = the first one is raised at the end.

    Raises:
        ConfigError: no such records, or a limit that is not allowed.
        RecordError: no such folder, or a file among the records that is not one.
    """
    for value, name in ((latency_ms, "latency_ms"), (memory_mb, "memory_mb")):
        check_value(value, Positive | None, f"recommend.{name}")
    check_known(without, NEEDS, "recommend.without")
    results = paths.results_dir() if folder is None else Path(folder).expanduser()
    if not results.is_dir():
        raise RecordError(
            f"results folder '{results}' not found — give one with --results DIR or OPENBENCH_RESULTS; "
            "`python -m openbench run` makes it"
        )
    lost: list[RecordError] = []
    boards = boards_in(RecordStore(results), on_error or lost.append)
    found = [board for board in boards if not board.full_spectrum]
    chosen = [board for board in found if board.benchmark == benchmark]
    if not chosen:
        names = sorted({board.benchmark for board in found})
        raise ConfigError(
            f"benchmark '{benchmark}' has no records in '{results}'{did_you_mean(benchmark, names)} — available: "
            f"{', '.join(names) or 'none'} — python -m openbench run -m +benchmark={benchmark} 'method=glob(*)'"
        )
    advice = []
    for board in chosen:
        for about, rows in _networks(board, {"backbone": backbone, "training": training}).items():
            judged = {row.runs: _judged(row, latency_ms, memory_mb, without) for row in rows}
            advice.append(_advice(about, replace(board, ranked=tuple(rows)), judged, ScoreStore(results / PUBLISHED)))
    if not advice:
        reasons = sorted({reason for board in chosen for row in board.unranked for reason in row.reasons})
        raise ConfigError(f"no record of benchmark '{benchmark}' counts: {'; '.join(reasons)}")
    if lost:
        raise lost[0]
    return advice


def needs_of(name: str, params: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return what a method needs, of NEEDS; None if it is not shipped with openbench.

    Args:
        name: what users type after `method=`.
        params: its hyper-parameters.
    """
    method = method_of(name, params)
    return None if method is None else Requirements.of(leaves(method)).needs


def method_of(name: str, params: Mapping[str, Any]) -> Method | None:
    """Return a shipped method, unfitted; None if there is none of that name, or it cannot be made here.

    Args:
        name: what users type after `method=`.
        params: its hyper-parameters; parts that are methods themselves are as in the config.
    """
    node = shipped("method", name)
    if node is None:
        return None
    known = {key: value for key, value in params.items() if key in node and not isinstance(node[key], Mapping)}
    try:
        return build_method({**node, **known, NAME: name}).method
    except OpenbenchError:  # e.g. it needs a library that is not installed
        return None


def _networks(board: Board, wanted: Mapping[str, str]) -> dict[tuple[str, ...], list[Row]]:
    """Network and training → its rows that count, best first.

    Raises:
        ConfigError: there is no network or training of that name.
    """
    rows = sorted((*board.ranked, *filter(_only_deviates, board.unranked)), key=lambda row: row.order)
    for key, name in wanted.items():
        there = sorted({str(getattr(row, key)) for row in rows})
        if name and name not in there:
            raise ConfigError(
                f"{key} '{name}' has no records on benchmark '{board.benchmark}'{did_you_mean(name, there)} — "
                f"available: {', '.join(there) or 'none'}"
            )
        rows = [row for row in rows if not name or getattr(row, key) == name]
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        parts = {"augment": row.augment, "outliers": row.outliers}
        extra = [f"{key} {value}" for key, value in parts.items() if value != NONE]
        found.setdefault((row.backbone, row.training, *extra), []).append(row)
    return found


def _only_deviates(row: Row) -> bool:
    """Whether nothing speaks against a row but that the benchmark is not as defined, e.g. for want of a data set."""
    return len(row.reasons) == 1 and not all(run.pristine for run in row.members)


def _judged(row: Row, latency_ms: float | None, memory_mb: float | None, without: Sequence[str]) -> dict[str, Any]:
    """A row as a method of an advice, with what speaks against it."""
    needs = needs_of(row.method, row.members[0].params)
    times = [ms for run in row.members if (ms := _time(run, needs)) is not None]
    peaks = [mib for run in row.members if (mib := run.mib) is not None]
    ms, mb = fmean(times) if times else None, min(peaks) * _MB if peaks else None
    out = ["what it needs is not known"] * (needs is None and bool(without))
    out += [f"needs {need}" for need in needs or () if need in without]
    if latency_ms is not None and (ms is None or ms > latency_ms):
        out.append("its time is not measured" if ms is None else f"{ms:.3g} ms per image")
    if memory_mb is not None and (mb is None or mb > memory_mb):
        out.append("its memory is not measured" if mb is None else f"{mb:,.0f} MB")
    return {
        "method": row.method,
        "settings": row.settings,
        **{key.replace(" ", "_"): value for key, value in row.values.items()},
        "ms_per_image": ms,
        "process_mb": mb,
        "needs": needs,
        "runs": row.runs,
        "why": ", ".join(out),
    }


def _time(run: Run, needs: Sequence[str] | None) -> float | None:
    """Milliseconds per image; a method that takes gradients needs passes of its own, which a cache may have saved."""
    ms, of_pass = run.ms, run.pass_ms
    if needs is not None and "gradients" not in needs:
        return ms
    return None if ms is None or of_pass is None else ms + of_pass


def _advice(about: tuple[str, ...], board: Board, judged: Mapping[Runs, dict[str, Any]], scores: ScoreStore) -> Advice:
    """Which of a network's rows may be the best: first by near AUROC, then by far AUROC among those."""
    allowed = [row for row in board.ranked if not judged[row.runs]["why"]]
    near = _ranges(board, allowed, scores, GROUPS)
    best = [row for row in allowed if row.runs in near and near[row.runs].best == 1]
    far = _ranges(board, best, scores, (_FAR,))
    best = [row for row in best if row.runs not in far or far[row.runs].best == 1]
    if not near:  # one method alone needs no test; of several without scores the table's first is all there is
        best = allowed[:1]
    for runs, one in judged.items():
        ranks = {"near": near.get(runs), "far": far.get(runs)}
        one["ranks"] = {group: [found.best, found.worst] if found else None for group, found in ranks.items()}
    return Advice(
        about=(board.benchmark, *about),
        deviations=tuple(sorted({text for row in board.ranked for run in row.members for text in run.deviations})),
        best=tuple(judged[row.runs] for row in best),
        compared=len(near),
        untested=tuple(judged[row.runs] for row in allowed if row.runs not in near and row not in best),
        out=tuple(one for one in judged.values() if one["why"]),
    )


def _ranges(board: Board, rows: Sequence[Row], scores: ScoreStore, groups: Sequence[str]) -> Mapping[Runs, RankRange]:
    """The ranks that rows may have; empty where there are no such sets, or fewer than two to compare."""
    present = {role for row in rows for run in row.members for role in run.members}
    return ranges_of(replace(board, ranked=tuple(rows)), scores, groups) if present & set(groups) else {}


def _needs(one: Mapping[str, Any]) -> str:
    if one["needs"] is None:
        return "unknown"
    words = [f"{need} of the input" if need == "gradients" else need for need in one["needs"]]
    return ", ".join(words) or "nothing more"


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _plain(one: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON."""
    found = {key: value.value if isinstance(value, Estimate) else value for key, value in one.items()}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}
