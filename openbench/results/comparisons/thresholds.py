"""Thresholds of methods on several groups of ID and OOD data, such as the pairs of a collection."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from openbench.core.record import ResultRecord
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import RecordError, did_you_mean
from openbench.metrics.curve import Floats, PooledCurve
from openbench.metrics.threshold import shared_thresholds
from openbench.results.comparisons.runs import OnLost, RowKey, refuse, scored_rows
from openbench.results.records.settings import hyper_parameters, is_per_set
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.published import PaperFigures
from openbench.results.tables.render import Cell, Column, Table

Pairs = Mapping[str, tuple[Floats, Floats]]
Sides = tuple[NDArray[np.float32], NDArray[np.float32]]
_GRADNORM = "gradnorm"
_HEADER = (
    "OOD sets of a group pooled, OOD positive, group means unweighted · F1 at the group's best threshold; "
    "others: best of the other groups' thresholds; single: one threshold for all · FPR@95: OOD positive; AUPR by "
    "trapezoid · relative: in deviations of the ID score"
)


@dataclass(frozen=True)
class GroupedScores:
    """One method on several groups.

    Args:
        method: its name.
        about: hyper-parameters, training, backbone and seed, as far as they are known.
        groups: ID and OOD scores by the group's name.
        case: the collection that the groups belong to, e.g. `rebench_case1`; empty for benchmarks of their own.
        of: how many groups the collection has, None if there is no collection.
        training: how the backbone was trained.
    """

    method: str
    about: str
    groups: Pairs
    case: str = ""
    of: int | None = None
    training: str = ""

    @property
    def in_paper(self) -> tuple[str, str, str]:
        """Its key in the re-benchmark's figures, which divide GradNorm by the number of classes."""
        sums = self.method == _GRADNORM and "mean=True" not in self.about
        return self.case, self.training, "" if sums else self.method


def scored_runs(
    records: Iterable[ResultRecord], scores: ScoreStore, prefixes: Sequence[str], on_lost: OnLost = refuse
) -> list[GroupedScores]:
    """Return the runs on benchmarks whose names begin with a prefix, one entry per collection and method, in order.

    For GradNorm both variants are returned, the norm and the norm divided by the number of classes, whichever was run.
    Runs in which each OOD set has its own scores of the ID side (`tune=oracle_per_set`) are left out: a shared
    threshold needs shared scores.

    Args:
        records: any.
        scores: where their scores are.
        prefixes: e.g. `rebench_case1`.
        on_lost: receives an error for each run whose scores cannot be read; the tables are made of the others.

    Raises:
        RecordError: a prefix that no record's benchmark has, or two runs that one row cannot hold.
        CacheError: none of the runs has its scores any more.
    """
    records = [record for record in records if not is_per_set(record)]
    names = sorted({str(record.benchmark.get("name")) for record in records})
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in names):
            raise RecordError(
                f"no record of a benchmark '{prefix}…'{did_you_mean(prefix, names)}, found {len(names)} benchmarks"
                f"{': ' + ', '.join(names[:5]) if names else ''} — run it first, or give files of scores"
            )
    chosen = [record for record in records if str(record.benchmark.get("name")).startswith(tuple(prefixes))]
    read = scored_rows(chosen, lambda row, record: _sides(scores.read(record.run_id)), on_lost)
    versions = Counter((row, record.benchmark.get("name")) for row, record, _ in read)
    groups: dict[tuple[str, RowKey], dict[str, Sides]] = {}
    sizes: dict[str, int | None] = {}
    for row, record, sides in read:
        case, name, digest = _case(record), record.benchmark.get("name"), str(record.benchmark.get("digest"))
        # Versions of one benchmark (other images, dropped sets) are named by digest.
        group = str(name) if versions[row, name] == 1 else f"{name} ({digest[:8]})"
        sizes.setdefault(case, _number_of_groups(record) if case else None)
        groups.setdefault((case, row), {})[group] = sides
        if row.method == _GRADNORM and "mean" in record.method["params"] and record.backbone.get("num_classes"):
            other, rescaled = _other_gradnorm(row, record, sides)
            groups.setdefault((case, other), {}).setdefault(group, rescaled)
    methods = []
    for (case, row), of_row in groups.items():
        pairs = {
            name: (ids.astype(np.float64), oods.astype(np.float64)) for name, (ids, oods) in sorted(of_row.items())
        }
        methods.append(GroupedScores(row.method, row.about, pairs, case, sizes[case], row.training))
    return sorted(methods, key=lambda scored: (scored.case, scored.method, scored.about))


def summary_tables(methods: Sequence[GroupedScores], figures: PaperFigures) -> list[Table]:
    """Return the summary of each collection, followed by a comparison with the paper's figures where it has any.

    Args:
        methods: at least one group each.
        figures: from `rebench_figures`.
    """
    tables = []
    for case in dict.fromkeys(scored.case for scored in methods):
        members = [scored for scored in methods if scored.case == case]
        tables.append(summary_table(members))
        if any(scored.in_paper in figures for scored in members):
            tables.append(_next_to_paper(members, figures))
    return tables


def summary_table(methods: Sequence[GroupedScores]) -> Table:
    """Return one row per method: means over its groups, and how far its best threshold moves.

    Args:
        methods: of one collection, at least one group each.

    Raises:
        MetricError: scores of which no finite best threshold exists.
    """
    columns = (
        *Column.of("method", "run", ("groups", "count")),
        *(Column(t, "percent") for t in ("F1 ↑", "others F1 ↑", "single F1 ↑", "AUROC ↑", "FPR@95 ↓", "AUPR-out ↑")),
        *(Column(f"threshold {t}", "number") for t in ("variance", "std", "range", "relative std ↓")),
    )
    rows = []
    for scored in methods:
        shared = shared_thresholds(scored.groups)
        f1, (own, *areas) = list(shared.groups.values()), _means(scored).values()
        others = [group.others for group in f1 if group.others is not None]
        means = float(np.mean(others)) if others else None, float(np.mean([group.single for group in f1]))
        spread = (shared.variance, shared.std, shared.range, shared.relative_std)
        rows.append((scored.method, scored.about, len(f1), own, *means, *areas, *spread))
    case = methods[0].case
    title = f"thresholds over groups{f' · {case}' if case else ''}"
    return Table(title, columns, tuple(rows), _HEADER, _lacking(methods))


def group_table(scored: GroupedScores) -> Table:
    """Return one row per group of a method: its own threshold, and the best of the other groups' thresholds.

    Args:
        scored: at least one group.
    """
    shared = shared_thresholds(scored.groups)
    columns = Column.of("group", ("threshold", "number"), ("F1 ↑", "percent"), ("others' threshold", "number"))
    columns += Column.of(("others F1 ↑", "percent"), ("single F1 ↑", "percent"))
    found = shared.groups.items()
    rows = tuple((name, g.threshold, g.own, g.others_threshold, g.others, g.single) for name, g in found)
    title = f"{f'{scored.case} · ' if scored.case else ''}{scored.method}{f' ({scored.about})' if scored.about else ''}"
    return Table(f"{title} · single threshold {shared.single_threshold:.4g}", columns, rows, _HEADER)


def _case(record: ResultRecord) -> str:
    """The collection that a benchmark is a group of; empty if there is none."""
    name, group = str(record.benchmark.get("name")), (record.config.get("benchmark") or {}).get("group")
    return name.removesuffix(f"_{group}") if group and name.endswith(f"_{group}") else ""


def _number_of_groups(record: ResultRecord) -> int | None:
    """How many groups a record's collection has."""
    collection = (record.config.get("benchmark") or {}).get("collection")
    if not isinstance(collection, Mapping):
        return None
    n, inside = len(collection["declared"]), int(collection["id"])
    return comb(n, inside) * comb(n - inside, int(collection["ood"]))


def _other_gradnorm(row: RowKey, record: ResultRecord, sides: Sides) -> tuple[RowKey, Sides]:
    """The row and the scores of the variant of GradNorm that was not run: they differ by the number of classes."""
    params, classes = record.method["params"], np.float32(record.backbone["num_classes"])
    first, second = (side * classes if params["mean"] else side / classes for side in sides)
    return row._replace(params=hyper_parameters({**params, "mean": not params["mean"]})), (first, second)


def _next_to_paper(methods: Sequence[GroupedScores], figures: PaperFigures) -> Table:
    """Means over groups next to the paper's."""
    names = ("F1 ↑", "paper", "AUROC ↑", "paper", "FPR@95 ↓", "paper", "AUPR-out ↑", "paper")
    columns = Column.of("method", "run", ("groups", "count"), *((name, "percent") for name in names))
    rows = []
    for scored in methods:
        printed = figures.get(scored.in_paper, {})
        cells: list[Cell] = [scored.method, scored.about, len(scored.groups)]
        for key, value in _means(scored).items():
            cells += [value, printed.get(key)]
        rows.append(tuple(cells))
    notes = ("paper: Re-benchmarking OOD detection (OpenReview VkPuKTKH2Gx), tables 1 to 3, printed to two digits.",)
    return Table(f"{methods[0].case} beside the paper", columns, tuple(rows), notes=(*notes, *_lacking(methods)))


def _means(scored: GroupedScores) -> dict[str, float]:
    """Means over groups by the names of the paper's figures."""
    curves = (PooledCurve.of(*pair) for pair in scored.groups.values())
    numbers = [(one.best_f1.f1, one.auroc(), one.fpr_at_tpr(), one.aupr_out.trapezoid) for one in curves]
    means = (float(np.mean(values)) for values in zip(*numbers, strict=True))
    return dict(zip(("f1", "auroc", "fpr95", "aupr"), means, strict=True))


def _lacking(methods: Sequence[GroupedScores]) -> tuple[str, ...]:
    """A note where a row has fewer groups than its collection."""
    of = methods[0].of
    lacking = of is not None and any(len(scored.groups) < of for scored in methods)
    return (f"{methods[0].case} has {of} groups; rows with fewer are means over those that were run.",) * lacking


def _sides(splits: Sequence[SetScores]) -> Sides:
    """(n,) and (m,) float32 scores of ID test, and of all near and far sets."""
    first, second = (
        np.concatenate([split.scores for split in splits if split.role in roles])
        for roles in ((Role.ID_TEST,), (Role.NEAR, Role.FAR))
    )
    return first, second
