"""Networks × methods: how much of the order of methods survives another network, or another training."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from openbench.digest import digest
from openbench.errors import ConfigError
from openbench.metrics.keys import higher_is_better
from openbench.metrics.rank_ranges import MeanRanks, kendall_taus, mean_ranks
from openbench.results.frame import Keep
from openbench.results.leaderboard.across import ID, POOLED, check_names, chosen
from openbench.results.leaderboard.pages import caption, letters
from openbench.results.leaderboard.ranking import Board, Row, board_keys, boards
from openbench.results.records.settings import NONE
from openbench.results.records.store import OnError, packed
from openbench.results.tables.render import Cell, Column, Table, with_best
from openbench.results.tables.views import GROUPS, arrow, kind_of, title_of

VIEWS = ("networks", "trainings")
BENCHMARKS = "benchmarks"
_BASELINE = "cross_entropy"
_TOP = 5
_FEW = 4  # methods that are named
_LEAST = 3  # networks, to compare with their accuracy
Floats = NDArray[np.float64]
_Key = tuple[str, ...]


@dataclass(frozen=True)
class Network:
    """A column of a matrix: a set of weights; in the other views a way of training with the mean over its seeds.

    Args:
        label: its name on the page.
        training: what seeds of one training have in common: backbone, training, augmentation and outliers.
        accuracy: on ID test; NaN if it is not known.
    """

    label: str
    training: tuple[str, ...]
    accuracy: float

    @property
    def outliers(self) -> str:
        """The outliers that its training saw, or `none`."""
        return self.training[3]


@dataclass(frozen=True, eq=False)
class Matrix:
    """One metric of the methods of a board on several networks.

    Methods and networks that have all numbers of each other come first: these are compared. A seed is a network of its
    own, since an order that does not survive another seed is no order.

    Args:
        view: one of VIEWS, or BENCHMARKS.
        board: where the numbers are from; of several benchmarks, all their rows.
        of: the set or group.
        key: of the metric.
        methods: their names, those that are compared by mean rank.
        networks: those that are compared by accuracy.
        values: (k, N) NaN where there is no number.
        compared: how many of the methods and of the networks.
    """

    view: str
    board: Board
    of: str
    key: str
    methods: tuple[str, ...]
    networks: tuple[Network, ...]
    values: Floats
    compared: tuple[int, int]

    @property
    def complete(self) -> Floats:
        """The numbers that are compared, larger = better."""
        return oriented(self.values[: self.compared[0], : self.compared[1]], self.key)

    @property
    def name(self) -> str:
        """The metric and the set, e.g. `near AUROC`."""
        return f"{self.of} {title_of(self.key)[:-2]}"

    @cached_property
    def ranks(self) -> NDArray[np.float64]:
        """The rank of each method that is compared on each network; equal numbers share the mean of theirs."""
        from scipy.stats import rankdata

        return np.asarray(rankdata(-self.complete, axis=0))

    @cached_property
    def mean(self) -> MeanRanks:
        """Mean ranks over the networks, with the critical difference."""
        return mean_ranks(self.complete)

    @cached_property
    def taus(self) -> Floats:
        """(N, N, 3) Kendall's τ between the orders on two networks that are compared, and the ends of its interval."""
        return kendall_taus(self.complete)

    def place(self, at: int) -> tuple[float | None, str | None]:
        """The mean rank of a method, and from where to where its ranks go; None if it is not compared."""
        if at >= self.compared[0]:
            return None, None
        ends = dict.fromkeys(f"{end:g}" for end in (self.ranks[at].min(), self.ranks[at].max()))
        return round(float(self.mean.ranks[at]), 1), "–".join(ends)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which methods and networks are not compared, if any."""
        left = [*self.methods[self.compared[0] :], *(one.label for one in self.networks[self.compared[1] :])]
        return (f"Not compared, as numbers are missing: {', '.join(left)}.",) if left else ()

    @property
    def title(self) -> str:
        """Benchmark, ID side and metric."""
        side = ", full spectrum" if self.board.full_spectrum else ""
        on = f" on {self.networks[0].training[0]}" if self.view == "trainings" else ""
        return f"{self.board.benchmark}{side}: {self.name}, {self.view} × methods{on}"

    def summary(self) -> str:
        """How much of the order survives a change of network."""
        k, n = self.compared
        best, top = np.argsort(self.ranks, axis=0, kind="stable"), min(_TOP, k // 2)
        kept = fmean(len({*best[:top, a]} & {*best[:top, b]}) for a, b in combinations(range(n), 2))
        kind = {"trainings": "ways of training"}.get(self.view, self.view)
        best_kept = f"Of the best {top} on one, {kept:.1f} are among the best {top} on another, on average."
        return f"{k} methods on {n} {kind}. {self._survives()} {best_kept}"

    def details(self) -> str:
        """Which methods are best, which mean ranks differ, and whether numbers rise with the accuracy of networks."""
        k, n = self.compared
        winners = Counter(self.methods[at] for at in np.argsort(self.ranks, axis=0, kind="stable")[0]).most_common()
        named = [f"{name} on {count}" for name, count in winners[:_FEW]]
        p = f"p = {self.mean.p:.2g}" if self.mean.p >= 1e-4 else "p < 0.0001"
        test = f"critical difference {self.mean.critical:.1f} (Nemenyi, 95 %; Friedman {p})"
        text = f"Best: {', '.join([*named, *['others on one each'] * (len(winners) > _FEW)])}. Mean ranks: {test}"
        alike = int((self.mean.ranks - self.mean.ranks.min() <= self.mean.critical).sum()) - 1
        too_few = f", which is more than any two can differ on {n} {self.view}."
        within = f"; within it of {self.methods[0]} are {alike} of the {k - 1} others."
        text += too_few if self.mean.critical > k - 1 else within
        accuracy = np.array([network.accuracy for network in self.networks[:n]])
        if n < _LEAST or np.isnan(accuracy).any() or len({*accuracy}) < _LEAST:
            return text + self.gains()
        rises = [kendall_taus(np.column_stack([accuracy, line]), replicates=0)[0, 1, 0] for line in self.complete]
        tau = f"{np.nanmedian(rises):.2f} (median of methods)"
        return f"{text} Kendall's τ between ID accuracy and {self.name} is {tau}.{self.gains()}"

    def _survives(self) -> str:
        """Kendall's τ between networks, and between seeds of one training if there are any."""
        pairs = list(combinations(range(self.compared[1]), 2))
        same = [self.networks[a].training == self.networks[b].training for a, b in pairs]
        found = np.array([self.taus[a, b, 0] for a, b in pairs])
        if len(pairs) == 1:
            tau, low, high = self.taus[0, 1]
            return f"Kendall's τ between the two orders is {tau:.2f} [{low:.2f}, {high:.2f}]."
        spread = f"{np.median(found):.2f} in the median, from {found.min():.2f} to {found.max():.2f}"
        text = f"Kendall's τ between the orders on two of them is {spread}"
        if any(same) and not all(same):
            seeds, others = (float(np.median(found[np.array(same) == is_seed])) for is_seed in (True, False))
            text += f"; {seeds:.2f} between seeds of one training, {others:.2f} between others"
        plain = [self.networks[a].outliers == self.networks[b].outliers == NONE for a, b in pairs]
        if self.view == "trainings" and any(plain) and not all(plain):
            text += f"; {np.median(found[plain]):.2f} between trainings without outliers"
        return f"{text}."

    def gains(self) -> str:
        """Which trainings help which methods, compared with cross-entropy; those that see outliers by themselves."""
        k, n = self.compared
        names = [one.training[1:] for one in self.networks[:n]]
        if self.view != "trainings" or (_BASELINE, NONE, NONE) not in names:
            return ""
        base = names.index((_BASELINE, NONE, NONE))
        gains, text = self.complete - self.complete[:, [base]], ""
        for seen in (False, True):
            columns = [b for b in range(n) if b != base and (self.networks[b].outliers != NONE) == seen]
            if not columns:
                continue
            better = sorted(((int((gains[:, b] > 0).sum()), self.networks[b].label) for b in columns), reverse=True)
            helped = [(int((gains[a, columns] > 0).sum()), self.methods[a]) for a in range(k)]
            helped.sort(key=lambda one: -one[0])
            few = min(3, k // 2)
            text += (
                f" Of {len(columns)} trainings {'with' if seen else 'without'} outliers, "
                f"{sum(2 * count > k for count, _ in better)} improve most of the {k} methods over {_BASELINE}, first "
                f"{_counted(better[:_FEW])}; improved most often are {_counted(helped[:few])}, least often "
                f"{_counted(helped[-few:])}."
            )
        return text


def _counted(helped: Sequence[tuple[int, str]]) -> str:
    return ", ".join(f"{method} ({count})" for count, method in helped)


def oriented(values: Floats, key: str) -> Floats:
    """Return the numbers of a metric so that larger ones are better."""
    return values if higher_is_better(key) else -values


def needed(of_metric: str) -> Keep:
    """Return which numbers of a record the matrices of a metric need.

    Raises:
        ConfigError: no number of the metric is better than another.
    """
    if higher_is_better(of_metric) is None:
        raise ConfigError(f"--metric: '{of_metric}' has no better and worse — give one that has, e.g. auroc or fpr95")
    return lambda name, key: key.removeprefix(POOLED) == of_metric


def packed_boards(results: Path, on_error: OnError, keep: Keep = board_keys) -> list[Board]:
    """Return the boards of `trainings/records.parquet`, whose networks the leaderboard does not rank.

    Args:
        results: the results folder.
        on_error: receives an error for each row of the file that is not a record.
        keep: which numbers are needed beside those of boards.

    Raises:
        RecordError: the file cannot be read.
    """
    return boards(packed(results / "trainings" / "records.parquet", on_error), keep)


def matrices(boards: Iterable[Board], view: str, of: Sequence[str] = (), metric: str = "auroc") -> list[Matrix]:
    """Return a matrix for each board and set or group that has two methods on two networks at least.

    Of a board without ranks the rows that are shown take part.

    Args:
        boards: of runs with the numbers that `needed` names.
        view: `networks`; with seeds averaged, `trainings` for those of one backbone, or `benchmarks` for those of all
            boards in one matrix.
        of: groups, pooled groups or sets; none stands for near and far.
        metric: its key.

    Raises:
        ConfigError: no board has such a set.
    """
    every = list(boards)
    check_names(every, of)
    found = []
    for board in _joined(every) if view == BENCHMARKS else every:
        rows = board.ranked or board.unranked
        backbones = sorted({row.backbone for row in rows}) if view == "trainings" else [""]
        for name, backbone in product(chosen(board, of, GROUPS), backbones):
            some = [row for row in rows if backbone in ("", row.backbone)]
            found.append(_matrix(view, board, some, (name, metric)))
    return [matrix for matrix in found if matrix is not None]


def _joined(boards: Sequence[Board]) -> list[Board]:
    """A board of all rows that take part for each ID side that two benchmarks have."""
    joined = []
    for side in (False, True):
        some = [board for board in boards if board.full_spectrum is side]
        if len({board.benchmark for board in some}) > 1:
            names, digests = (" and ".join(getattr(board, key) for board in some) for key in ("benchmark", "digest"))
            rows = tuple(row for board in some for row in board.ranked or board.unranked)
            headers = tuple(sorted({header for board in some for header in board.headers}))
            joined.append(Board(names, digests, side, rows, (), headers))
    return joined


def _matrix(view: str, board: Board, rows: Sequence[Row], number: tuple[str, str]) -> Matrix | None:
    """The matrix of a set and metric over some rows of a board; None if there is nothing to compare."""
    of, key = number
    cells: dict[tuple[_Key, _Key], list[float]] = {}
    accuracies: dict[_Key, list[float]] = {}
    methods: dict[tuple[str, str], _Key] = {}  # settings that were tuned differ from network to network
    for row in rows:
        for run in row.members:
            value = run.metrics.get(row.side + of.removeprefix(POOLED), {}).get(POOLED * of.startswith(POOLED) + key)
            if not isinstance(value, float | int):
                continue
            code = digest([run.nodes["method"], run.nodes["tune"], run.code])[:6]
            method = methods.setdefault((row.method, code), (row.method, row.tuned, row.settings, code))
            weights = (f"seed {run.seed}", run.network[:6]) if view == "networks" else ("", run.digest[:6])
            network: _Key = (row.backbone, row.training, row.augment, row.outliers, *weights)
            network = (run.benchmark, *network) if view == BENCHMARKS else network
            cells.setdefault((method, network), []).append(float(value))
            known = run.metrics.get(f"{row.side}{ID}", {}).get("accuracy")
            accuracies.setdefault(network, []).append(float(known) if isinstance(known, float | int) else np.nan)
    alike = {one: [x for other in accuracies if other[:4] == one[:4] for x in accuracies[other]] for one in accuracies}
    down, across = sorted(methods.values()), sorted(accuracies, key=lambda one: (-fmean(alike[one]), one))
    if view == "trainings":  # those that see outliers stand by themselves
        across.sort(key=lambda one: one[3] != NONE)
    values = np.array([fmean(cells.get(at, [np.nan])) for at in product(down, across)]).reshape(len(down), len(across))
    first, some = _of_benchmarks(values, [one[0] for one in across]) if view == BENCHMARKS else complete(values)
    if min(len(first), len(some)) < 2:
        return None
    ranks = mean_ranks(oriented(values[np.ix_(first, some)], key)).ranks
    first = [first[at] for at in np.argsort(ranks, kind="stable")]
    lines, columns = (
        [*own, *(at for at in range(n) if at not in own)] for n, own in zip(values.shape, (first, some), strict=True)
    )
    labels, named = _labels(down), dict(zip(across, _labels(across), strict=True))
    if view == "trainings":  # of one backbone, which the title names
        named = {one: " · ".join(part for part in one[1:4] if part != NONE) for one in across}
    networks = [Network(named[one], one[:4], fmean(accuracies[one])) for one in across]
    names, sorted_networks = tuple(labels[at] for at in lines), tuple(networks[at] for at in columns)
    numbers = values[np.ix_(lines, columns)]
    return Matrix(view, board, of, key, names, sorted_networks, numbers, (len(first), len(some)))


def complete(values: Floats) -> tuple[list[int], list[int]]:
    """Return rows and columns of an array (k, N) without NaN: the row or column that lacks most is left out in turn."""
    left = [list(range(n)) for n in values.shape]
    while (missing := np.isnan(values[np.ix_(*left)])).any():
        lacks = [(float(share), axis, at) for axis in (0, 1) for at, share in enumerate(missing.mean(axis=1 - axis))]
        _, axis, at = max(lacks, key=lambda one: one[0])
        del left[axis][at]
    return left[0], left[1]


def _of_benchmarks(values: Floats, benchmarks: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the columns of each benchmark that are complete among themselves, and the rows that have all of these."""
    some = []
    for name in dict.fromkeys(benchmarks):
        own = np.array([at for at, other in enumerate(benchmarks) if other == name])
        measured = ~np.isnan(values[:, own]).all(axis=1)
        some += own[complete(values[measured][:, own])[1]].tolist()
    return np.flatnonzero(~np.isnan(values[:, sorted(some)]).any(axis=1)).tolist(), sorted(some)


def _labels(keys: Sequence[_Key]) -> list[str]:
    """The first part of each key, with those in which keys of the same first part differ; the last if nothing else."""
    labels = []
    for key in keys:
        alike = [other for other in keys if other[0] == key[0]]
        parts = [part for at, part in enumerate(key[:-1]) if not at or len({other[at] for other in alike}) > 1]
        same = sum(other[:-1] == key[:-1] for other in alike)
        labels.append(" · ".join([*(part for part in parts if part not in ("", NONE)), *([key[-1]] * (same > 1))]))
    return labels


def tables(matrix: Matrix) -> list[Table]:
    """Return the matrix, and Kendall's τ between the networks, of those that are compared."""
    k, n = matrix.compared
    title = f"{matrix.title} · digest {matrix.board.digest}"
    named = [f"{letters(at)} {network.label}" for at, network in enumerate(matrix.networks[:n])]
    numbers = [Column(name, kind_of(matrix.key), better=arrow(matrix.key)[-1]) for name in named]
    rows = [
        (*matrix.place(at), method, *(None if np.isnan(value) else float(value) for value in line[:n]))
        for at, (method, line) in enumerate(zip(matrix.methods, matrix.values, strict=True))
    ]
    columns = (*Column.of(("mean rank", "number"), "ranks", "method"), *numbers)
    words = caption(matrix.board, f"{matrix.name} on several {matrix.view}")
    values = Table(title, columns, tuple(rows), notes=matrix.notes, caption=words)
    taus = [
        (name, *("{:.2f} [{:.2f}, {:.2f}]".format(*matrix.taus[a, b]) if a != b else None for b in range(n)))
        for a, name in enumerate(named)
    ]
    columns = Column.of(matrix.view, *map(letters, range(n)))
    return [with_best(values, k), Table(f"Kendall's τ [95 %] · {title}", columns, tuple(taus))]


def table_csv(found: Sequence[Matrix]) -> Table:
    """Return every number of some matrices for programs, a row for each."""
    about = ("benchmark", "digest", "id_side", "of", "metric", "method", "network", "accuracy")
    numbers = tuple(Column(title, "number") for title in ("value", "rank", "mean_rank"))
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        place = (one.board.benchmark, one.board.digest, one.board.side, one.of, one.key)
        for a, b in np.argwhere(~np.isnan(one.values)):
            network, ranked = one.networks[b], a < one.compared[0] and b < one.compared[1]
            accuracy = None if np.isnan(network.accuracy) else network.accuracy
            ranks = (float(one.ranks[a, b]), float(one.mean.ranks[a])) if ranked else (None, None)
            rows.append((*place, one.methods[a], network.label, accuracy, float(one.values[a, b]), *ranks))
    return Table("matrix", (*map(Column, about), *numbers), tuple(rows))
