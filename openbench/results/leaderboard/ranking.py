"""Records to rows: which are admitted, which seeds belong together, and in what order they stand."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from statistics import fmean
from typing import Any

from openbench.config.overrides import word
from openbench.core.names import FULL_SPECTRUM
from openbench.core.record import ResultRecord
from openbench.results.frame import Keep, Run, run_of, runs, superseded
from openbench.results.records.settings import leaves, over_runs
from openbench.results.records.store import OnError, RecordStore
from openbench.results.tables.render import Column, Estimate, cell_text
from openbench.results.tables.views import GROUPS, deviation, estimate

NOT_RUN = "scores given: nobody here ran the code that made them"
_LEVEL = 0.95
_PRINTED = Column("", "percent")
_BOARD_KEYS = re.compile(r"(auroc|fpr95)(_low|_high)?|accuracy")
_BOARD_NAMES = tuple(side + name for side in ("", FULL_SPECTRUM) for name in (*GROUPS, "id"))


@dataclass(frozen=True)
class Row:
    """One method on one backbone: the mean over its seeds.

    Args:
        method: what users type after `method=`.
        version: of the method.
        training: how the backbone was trained.
        augment: with which augmentation, `none` for crops and flips only.
        outliers: on which outliers, or `none`.
        backbone: its name.
        params: all hyper-parameters; several settings, joined by ` | `, if tuning chose differently per seed.
        settings: hyper-parameters that were tuned or differ from the default, over all seeds, `default` if there are
            none; and other config values in which rows differ that would look the same.
        tuned: `validation`, `no`, or the strategy's name.
        runs: run ids, sorted.
        networks: how many different networks the runs used.
        values: `near auroc`, `far auroc`, `near fpr95`, `far fpr95`, `accuracy`.
        reasons: why it is not ranked; empty if it is.
        members: its runs.
        side: `full_spectrum/` or nothing; what names of sets begin with.
    """

    method: str
    version: int
    training: str
    augment: str
    outliers: str
    backbone: str
    params: str
    settings: str
    tuned: str
    runs: tuple[str, ...]
    networks: int
    values: Mapping[str, Estimate | str | None]
    reasons: tuple[str, ...] = ()
    members: tuple[Run, ...] = ()
    side: str = ""

    @property
    def order(self) -> tuple[Any, ...]:
        """Best near AUROC first, then far AUROC; ties by their names, so that the order never depends on files."""
        scores = [-_number(self.values.get(f"{group} auroc")) for group in GROUPS]
        return (*scores, self.method, self.training, self.backbone, self.params, self.tuned, self.runs)

    @property
    def given(self) -> bool:
        """Whether its scores were given, so that nobody ran its code."""
        return bool(self.members and self.members[0].given)

    @property
    def look(self) -> tuple[str, ...]:
        """What distinguishes it from other rows for a reader."""
        return (self.method, self.training, self.augment, self.outliers, self.backbone, self.settings, self.tuned)

    def value(self, name: str, key: str) -> Estimate | str | None:
        """Mean and population deviation over runs; of a single run its value and interval; `unable` if any run was.

        Args:
            name: a set or group of this row's ID side.
            key: of a metric that was read.
        """
        return mean_over(self.members, self.side + name, key)


@dataclass(frozen=True)
class Board:
    """The rows of one benchmark, as defined by one digest, on one ID side.

    Args:
        benchmark: its name.
        digest: of the benchmark; rows under different digests are not comparable.
        full_spectrum: whether covariate-shifted ID images count as ID.
        ranked: best first.
        unranked: what is shown but not ranked, with reasons; last those whose scores were given.
        headers: the convention lines of its records.
    """

    benchmark: str
    digest: str
    full_spectrum: bool
    ranked: tuple[Row, ...]
    unranked: tuple[Row, ...]
    headers: tuple[str, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows, the ranked ones first."""
        return (*self.ranked, *self.unranked)

    @property
    def placed(self) -> list[tuple[int | None, bool, Row]]:
        """All rows with their rank, and whether others share it: those whose near AUROC is printed the same.

        Where near AUROC is missing, far AUROC decides.
        """
        placed: list[tuple[int | None, bool, Row]] = []
        for _, alike in groupby(self.ranked, key=_printed):
            tied = list(alike)
            rank = len(placed) + 1
            placed += [(rank, len(tied) > 1, row) for row in tied]
        return [*placed, *((None, False, row) for row in self.unranked)]

    @property
    def side(self) -> str:
        """Its ID side as programs read it."""
        return "full_spectrum" if self.full_spectrum else "standard"


def board_keys(name: str, key: str) -> bool:
    """Whether boards need a number."""
    return name in _BOARD_NAMES and _BOARD_KEYS.fullmatch(key) is not None


def boards_in(records: RecordStore, on_error: OnError, *keep: Keep) -> list[Board]:
    """Return the boards of all records: by benchmark, by digest, standard before full spectrum.

    Args:
        records: of a results folder.
        on_error: receives an error for each file that is not a record.
        *keep: each, given a set or group and a key, says whether `Row.value` will be asked for the number.
    """
    return boards_of(runs(records, on_error, board_keys, *keep))


def boards(records: Iterable[ResultRecord], keep: Keep = board_keys) -> list[Board]:
    """Return the boards of some records; only the numbers that `keep` selects stay in memory."""
    return boards_of(run_of(record, lambda name, key: keep(name, key) or board_keys(name, key)) for record in records)


def boards_of(runs: Iterable[Run]) -> list[Board]:
    """Return the boards of runs that hold what `board_keys` keeps, and what `Row.value` will be asked for.

    Runs on streams have a page of their own: their scores depend on the images before.
    """
    by_benchmark: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if not run.stream:
            by_benchmark.setdefault((run.benchmark, run.digest), []).append(run)
    boards = []
    for (name, made_of), members in sorted(by_benchmark.items()):
        headers = tuple(sorted({run.header for run in members}))
        for side in ("", FULL_SPECTRUM):
            present = [run for run in members if not side or any(n.startswith(side) for n in run.metrics)]
            if present:
                rows = sorted(_rows(present, side), key=lambda row: row.order)
                ranked = tuple(row for row in rows if not row.reasons)
                unranked = tuple(sorted((row for row in rows if row.reasons), key=attrgetter("given")))
                boards.append(Board(name, made_of, bool(side), ranked, unranked, headers))
    return boards


def _printed(row: Row) -> tuple[str, str]:
    near, far = (row.values.get(f"{group} auroc") for group in GROUPS)
    if isinstance(near, Estimate):
        return cell_text(near.value, _PRINTED), ""
    return "", cell_text(far.value, _PRINTED) if isinstance(far, Estimate) else ""


def _rows(runs: Sequence[Run], side: str) -> list[Row]:
    groups: dict[str, list[Run]] = {}
    newest: dict[str, int] = {}
    replaced = superseded(run for run in runs if not run.problems)
    for run in runs:
        # A record that contradicts itself stands alone, so that the others of its row keep their rank.
        groups.setdefault(f"{run.row} {run.run_id}" if run.problems else run.row, []).append(run)
        if not run.problems:
            newest[run.method] = max(newest.get(run.method, 0), run.version)
    rows = [_row(_one_per_network(members), side, newest, replaced) for members in groups.values()]
    looks: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        looks.setdefault(row.look, []).append(row)
    return [row for alike in looks.values() for row in _with_differences(alike)]


def _one_per_network(runs: Sequence[Run]) -> list[Run]:
    """One record per seed and network: repeating a run with other metrics does not make another sample."""
    chosen: dict[tuple[Any, Any], Run] = {}
    for run in sorted(runs, key=lambda r: (r.level != _LEVEL, r.run_id)):
        chosen.setdefault((run.seed, run.network), run)
    return sorted(chosen.values(), key=lambda r: r.run_id)


def _row(runs: Sequence[Run], side: str, newest: Mapping[str, int], replaced: Mapping[str, str]) -> Row:
    first = runs[0]
    settings, by_oracle = sorted({run.written for run in runs}, key=_natural), first.strategy.startswith("oracle")
    values = {f"{g} {key}": mean_over(runs, f"{side}{g}", key) for key in ("auroc", "fpr95") for g in GROUPS}
    values["accuracy"] = mean_over(runs, f"{side}id", "accuracy")
    about = ("method", "version", "training", "augment", "outliers", "backbone")
    return Row(
        **{name: getattr(first, name) for name in about},
        params=" | ".join(settings),
        settings=over_runs([run.chosen for run in runs]) or ("default" if first.params else "none"),
        # A method with nothing to tune was not tuned.
        tuned="no" if first.strategy == "none" or not (first.tuned or by_oracle) else first.strategy,
        runs=tuple(run.run_id for run in runs),
        networks=len({run.network for run in runs}),
        values=values,
        reasons=_reasons(runs, values, newest, replaced),
        members=tuple(runs),
        side=side,
    )


def _with_differences(rows: Sequence[Row]) -> list[Row]:
    """Rows that look the same, with the config values in which they differ."""
    if len(rows) < 2:
        return list(rows)
    nodes = [{"version": row.version, **dict(leaves(row.members[0].nodes))} for row in rows]
    values = [{key: word(value) for key, value in node.items()} for node in nodes]
    differ = sorted(key for key in {k for one in values for k in one} if len({one.get(key) for one in values}) > 1)
    labelled = []
    for row, one in zip(rows, values, strict=True):
        more = ", ".join(f"{key}={one[key]}" for key in differ if key in one)
        labelled.append(replace(row, settings=" · ".join(part for part in (row.settings, more) if part)))
    return labelled


def _reasons(
    runs: Sequence[Run],
    values: Mapping[str, Estimate | str | None],
    newest: Mapping[str, int],
    replaced: Mapping[str, str],
) -> tuple[str, ...]:
    """Why a row is not ranked, most serious first; empty if nothing speaks against it."""
    reasons = [f"record {run.run_id}: {problem}" for run in runs for problem in run.problems]
    if runs[0].given:
        reasons.append(NOT_RUN)
    if any(run.strategy.startswith("oracle") for run in runs):
        reasons.append(f"hyper-parameters chosen on test data ({runs[0].strategy.replace('_', ' ')})")
    if not all(run.pristine for run in runs):
        deviations = sorted({deviation for run in runs for deviation in run.deviations})
        reasons.append(f"benchmark not as defined: {'; '.join(deviations) or 'deviations not stated'}")
    name, version = runs[0].method, runs[0].version
    if runs[0].run_id in replaced:
        reasons.append(replaced[runs[0].run_id])
    elif version < newest.get(name, version):
        reasons.append(f"made by version {version} of the method, which is now at {newest[name]}")
    if not any(isinstance(values[f"{group} auroc"], Estimate) for group in GROUPS):
        reasons.append("no AUROC was measured")
    return tuple(reasons)


def mean_over(runs: Sequence[Run], name: str, key: str) -> Estimate | str | None:
    """Return mean and population deviation over runs; of a single run its value and interval; `unable` if any run was.

    Args:
        runs: one at least, with the number.
        name: a set or group, with its ID side.
        key: of a metric; None is returned if any run lacks it.
    """
    recorded = [run.metrics.get(name, {}).get(key) for run in runs]
    if None in recorded:
        return None
    numbers = [value for value in recorded if isinstance(value, (float, int))]
    if len(numbers) < len(recorded):
        return "unable"
    if len(numbers) > 1 and (len(set(numbers)) > 1 or not key.startswith("n_")):  # counts of sets do not vary
        return Estimate(fmean(numbers), std=deviation(numbers))
    return estimate(runs[0].metrics[name], key) if runs[0].level == _LEVEL else Estimate(numbers[0])


def _number(value: Estimate | str | None) -> float:
    return value.value if isinstance(value, Estimate) else float("-inf")


def _natural(text: str) -> list[tuple[float, str]]:
    """Sort key by which k=50 comes before k=100; exponents of committed pages are not read as numbers."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if index % 2 else (-1.0, part) for index, part in enumerate(parts)]
