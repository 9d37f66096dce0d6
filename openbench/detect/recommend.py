"""Recommendations from records: the methods of a benchmark that may be the best, within limits on cost and needs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from openbench import paths
from openbench.config.constraints import Positive, check_value
from openbench.config.folders import shipped
from openbench.config.overrides import NAME
from openbench.core.method import Method
from openbench.engine.compatibility import NEEDS, Requirements
from openbench.engine.prepare import build_method
from openbench.errors import ConfigError, OpenbenchError, RecordError, check_known, did_you_mean, listed
from openbench.results.leaderboard.ranking import Board, Row, boards_in
from openbench.results.leaderboard.separable import ranges_of
from openbench.results.records.settings import NONE
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import PUBLISHED, ScoreStore
from openbench.results.tables.render import Column, Table
from openbench.results.tables.views import GROUPS

_MB = 1.048576  # of a MiB
_LISTED = 12  # methods in a table or a note
_COLUMNS = Column.of(
    *("method", "hyper-parameters", ("near AUROC ↑", "percent"), ("far AUROC ↑", "percent")),
    *("ranks near", "far", ("ms per image", "number"), ("process (MB)", "number"), "needs"),
)
_COSTS = (
    "ms per image: besides the network's own pass, on the machine of the record; – where the passes of gradients were "
    "not timed. Process: its peak memory, Python and PyTorch included, and in a sweep the runs before it."
)
_RANKS = (
    "Ranks that each may have, by paired tests on the same images (family-wise error 5 %): near among the {} compared, "
    "far among those that may be the best by near AUROC. Too little data to separate two methods does not make them "
    "equally good."
)


@dataclass(frozen=True)
class Recommendation:
    """The methods to choose from on one network; its text gives the reason.

    A method is a mapping: `method`, `settings`, AUROCs, `ranks` that it may have, `ms_per_image` (None if not all of it
    was timed), `process_mb`, `needs` (None if unknown), `runs`, and `why` it is beyond the limits.

    Args:
        about: benchmark, network and training.
        deviations: of the benchmark from its definition.
        best: methods that are not separable from the best; the first has the highest AUROC.
        compared: number of methods compared on the same images.
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
        if not self.best:
            return f"{self.title}: no method is within the limits"
        first, *others = self.best
        why = "the only method within the limits" if self.out else "the only method with records"
        if self.compared:
            among = f"the highest AUROC of the {len(self.best)} that" if others else "the only one that"
            why = f"{among} may be the best, of {self.compared} compared"
        elif self.untested:
            why = "the highest AUROC, but not tested against the others"
        ms = first["ms_per_image"]
        time = "its extra passes were not timed" if ms is None else f"{ms:.3g} ms per image"
        return f"{self.title}: take {first['method']}: {why}; {time} besides the network's pass, needs {_needs(first)}"

    @property
    def title(self) -> str:
        """Benchmark, network and training."""
        return " · ".join(self.about)

    def tables(self) -> list[Table]:
        """Return the methods that may be the best, and those beyond the limits with the reason."""
        tables = []
        notes = [_RANKS.format(self.compared)] * bool(self.compared) + [_COSTS]
        if self.untested:
            names = listed((method["method"] for method in self.untested), _LISTED, last=", and ")
            notes.append(f"Not tested, as scores on the same images are not published: {names} (openbench publish)")
        if self.deviations:
            notes.append(f"Not the benchmark as defined: {'; '.join(self.deviations)}")
        if self.best:
            rows = tuple(map(_cells, self.best))
            tables.append(Table(f"Not separable from the best · {self.title}", _COLUMNS, rows, notes=tuple(notes)))
        if self.out:
            columns = (_COLUMNS[0], _COLUMNS[2], Column("why not"))
            rows = tuple((method["method"], method.get("near_auroc"), method["why"]) for method in self.out[:_LISTED])
            rest = (f"and {len(self.out) - _LISTED} more",) * (len(self.out) > _LISTED)
            tables.append(Table(f"Beyond the limits · {self.title}", columns, rows, notes=rest))
        return tables

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = vars(self) | {"words": str(self), "take": self.best[0]["method"] if self.best else None}
        for group in ("best", "untested", "out"):  # of an estimate its value
            values[group] = [{key: getattr(v, "value", v) for key, v in method.items()} for method in values[group]]
        return values


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
) -> list[Recommendation]:
    """Return the method to take on each network that a benchmark was run on, from its records; `str` gives the reason.

    Methods within the limits are compared by `rank_ranges`, paired tests on the same images and networks with the
    family-wise error rate 5 %: first by near AUROC, then those that may be the best by far AUROC. A method may pass
    because there is too little data to separate it from the best.

    Args:
        benchmark: its name, e.g. `cifar10`.
        latency_ms: largest number of milliseconds per image, besides the network's own pass.
        memory_mb: largest peak memory of the process that scored, in 10⁶ bytes.
        without: what you do not have, of `training data`, `outliers`, `gradients`, `text`.
        backbone: this network only.
        training: trained this way only.
        folder: a results folder; None = OPENBENCH_RESULTS, else `./results`.
        on_error: receives the error of each file that is not a record; None = the first one is raised at the end.

    Raises:
        ConfigError: no such records, or a limit that is not allowed.
        RecordError: a file among the records is not one.
    """
    check_value(latency_ms, Positive | None, "recommend.latency_ms")
    check_value(memory_mb, Positive | None, "recommend.memory_mb")
    check_known(without, NEEDS, "recommend.without")
    results = paths.results_dir() if folder is None else Path(folder).expanduser()
    errors: list[RecordError] = []
    boards = [board for board in boards_in(RecordStore(results), on_error or errors.append) if not board.full_spectrum]
    _check_name("benchmark", benchmark, {board.benchmark for board in boards}, f"'{results}'")
    chosen = [board for board in boards if board.benchmark == benchmark]
    limits = {"latency_ms": latency_ms, "memory_mb": memory_mb, "without": without}
    advice, only = list[Recommendation](), {"backbone": backbone, "training": training}
    store = ScoreStore(results / PUBLISHED)
    for board in chosen:
        for about, rows in _by_network(board, only).items():
            advice.append(_recommendation(replace(board, ranked=tuple(rows)), about, limits, store))
    if not advice:
        reasons = sorted({reason for board in chosen for row in board.unranked for reason in row.reasons})
        raise ConfigError(f"no record of benchmark '{benchmark}' counts: {'; '.join(reasons)}")
    if errors:
        raise errors[0]
    return advice


def _check_name(key: str, name: str, names: Iterable[str], where: str) -> None:
    if name not in (known := sorted(names)):
        hint = did_you_mean(name, known) or f" — available: {', '.join(known) or 'none'}"
        raise ConfigError(f"{key} '{name}' has no records in {where}{hint}")


def method_of(name: str, params: Mapping[str, Any]) -> Method | None:
    """Return a shipped method, unfitted; None if there is none of that name, or it cannot be built here.

    Args:
        name: what users type after `method=`.
        params: its hyper-parameters; parts that are methods are as in the config.
    """
    node = shipped("method", name)
    if node is None:
        return None
    known = {key: value for key, value in params.items() if key in node and not isinstance(node[key], Mapping)}
    try:
        return build_method({**node, **known, NAME: name}).method
    except OpenbenchError:  # e.g. it needs a library that is not installed
        return None


def _by_network(board: Board, only: Mapping[str, str]) -> dict[tuple[str, ...], list[Row]]:
    """Return the rows that count of each network and training, best first."""
    # A row whose only fault is that the benchmark deviates, e.g. without a data set, counts too.
    alone = (row for row in board.unranked if len(row.reasons) == 1)
    deviating = (row for row in alone if not all(run.pristine for run in row.members))
    rows = sorted((*board.ranked, *deviating), key=lambda row: row.order)
    for key, name in only.items():
        if name:
            _check_name(key, name, {getattr(row, key) for row in rows}, f"benchmark '{board.benchmark}'")
            rows = [row for row in rows if getattr(row, key) == name]
    networks: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        extra = [f"{key} {getattr(row, key)}" for key in ("augment", "outliers") if getattr(row, key) != NONE]
        networks.setdefault((row.backbone, row.training, *extra), []).append(row)
    return networks


def _recommendation(
    board: Board, about: tuple[str, ...], limits: Mapping[str, Any], scores: ScoreStore
) -> Recommendation:
    """Return the rows of a network that may be the best: first by near AUROC, then by far AUROC among those."""
    methods = {row.runs: _method(row, **limits) for row in board.ranked}
    allowed = [row for row in board.ranked if not methods[row.runs]["why"]]

    def ranges(rows: Sequence[Row], groups: Sequence[str]) -> Mapping[Any, Any]:
        present = {role for row in rows for run in row.members for role in run.members}
        return ranges_of(replace(board, ranked=tuple(rows)), scores, groups) if present & set(groups) else {}

    near = ranges(allowed, GROUPS)
    best = [row for row in allowed if row.runs in near and near[row.runs].best == 1]
    far = ranges(best, ("far",))
    best = [row for row in best if row.runs not in far or far[row.runs].best == 1]
    if not near:  # a single method needs no test; without scores there is only the order of the table
        best = allowed[:1]
    for runs, method in methods.items():
        pair = {"near": near.get(runs), "far": far.get(runs)}
        method["ranks"] = {group: [ranks.best, ranks.worst] if ranks else None for group, ranks in pair.items()}
    deviations = tuple(sorted({text for row in board.ranked for run in row.members for text in run.deviations}))
    chosen, out = tuple(methods[row.runs] for row in best), tuple(m for m in methods.values() if m["why"])
    untested = tuple(methods[row.runs] for row in allowed if row.runs not in near and row not in best)
    return Recommendation((board.benchmark, *about), deviations, chosen, len(near), untested, out)


def _method(row: Row, latency_ms: float | None, memory_mb: float | None, without: Sequence[str]) -> dict[str, Any]:
    """Return a row as a method of a recommendation, with the reasons that it is beyond the limits."""
    method = method_of(row.method, row.members[0].params)
    needs = None if method is None else Requirements(method).needs
    # Gradients take passes of their own, which a cache may have saved.
    passes = ("ms", "pass_ms") if needs is None or "gradients" in needs else ("ms",)
    timed = [[getattr(run, cost) for cost in passes] for run in row.members]
    times = [sum(parts) for parts in timed if None not in parts]
    peaks = [run.mib for run in row.members if run.mib is not None]
    ms, mb = fmean(times) if times else None, min(peaks) * _MB if peaks else None
    why = ["its needs are not known"] * (needs is None and bool(without))
    why += [f"needs {need}" for need in needs or () if need in without]
    if latency_ms is not None and (ms is None or ms > latency_ms):
        why.append("its time is not measured" if ms is None else f"{ms:.3g} ms per image")
    if memory_mb is not None and (mb is None or mb > memory_mb):
        why.append("its memory is not measured" if mb is None else f"{mb:,.0f} MB")
    scores = {key.replace(" ", "_"): value for key, value in row.values.items()}
    costs = {"ms_per_image": ms, "process_mb": mb, "needs": needs}
    return {"method": row.method, "settings": row.settings, **scores, **costs, "runs": row.runs, "why": ", ".join(why)}


def _cells(method: Mapping[str, Any]) -> tuple[Any, ...]:
    scores = [method.get(f"{group}_auroc") for group in GROUPS]
    ranks = ["–".join(map(str, dict.fromkeys(pair))) if pair else None for pair in method["ranks"].values()]
    ms, mb = method["ms_per_image"], method["process_mb"]
    costs = [None if ms is None else float(f"{ms:.3g}"), None if mb is None else float(round(mb))]
    return (method["method"], method["settings"], *scores, *ranks, *costs, _needs(method))


def _needs(method: Mapping[str, Any]) -> str:
    if method["needs"] is None:
        return "unknown"
    words = ("gradients of the input" if need == "gradients" else need for need in method["needs"])
    return ", ".join(words) or "nothing more"
