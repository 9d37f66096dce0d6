"""The ranks that the rows of a board may have, from the published scores of their runs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import OpenbenchError
from openbench.metrics.rank_ranges import NetworkScores, RankRange, rank_ranges
from openbench.results.leaderboard.ranking import Board, Row
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.views import GROUPS

Sides = Callable[[Sequence[SetScores]], NetworkScores]


def ranges_of(board: Board, scores: ScoreStore, groups: Sequence[str] = GROUPS) -> Mapping[tuple[str, ...], RankRange]:
    """Return {run ids of a row: its range of ranks} by the AUROC of the first of some groups that has sets.

    Rows take part whose runs all have published scores and used the same networks as most rows did, so that every
    pair is compared on the same images and networks. With fewer than two such rows there is nothing to compare.

    Args:
        board: one benchmark on one ID side.
        scores: the published ones.
        groups: near AUROC, or far AUROC where no set is near, unless others are named.
    """
    sides = partial(_sides, full_spectrum=board.full_spectrum, groups=groups)
    by_row = {row.runs: read for row in board.ranked if (read := _scored(row, scores, sides))}
    alike = Counter(_shape(read) for read in by_row.values()).most_common(1)
    compared = {runs: read for runs, read in by_row.items() if _shape(read) == alike[0][0]}
    if len(compared) < 2:
        return {}
    by_network = [[read[network] for network in sorted(read)] for read in compared.values()]
    return dict(zip(compared, rank_ranges(by_network), strict=True))


def _scored(row: Row, scores: ScoreStore, sides: Sides) -> dict[str, NetworkScores]:
    """{network: scores of the ID side and of each OOD set} of a row; empty if any run's are not there."""
    try:
        return {run.network: sides(scores.read(run.run_id)) for run in row.members}
    except OpenbenchError:
        return {}


def _sides(sets: Sequence[SetScores], full_spectrum: bool, groups: Sequence[str]) -> NetworkScores:
    roles = (Role.ID_TEST, Role.CSID) if full_spectrum else (Role.ID_TEST,)
    ids = [s.scores for s in sorted(sets, key=lambda s: (str(s.role), s.name)) if s.role in roles]
    named = sorted(sets, key=lambda s: s.name)
    oods = (found for group in groups if (found := [s.scores for s in named if s.role == group]))
    return np.concatenate(ids), next(oods, [])


def _shape(read: Mapping[str, NetworkScores]) -> tuple[tuple[str | int, ...], ...]:
    """What two rows need in common: the networks, and how many images each set has."""
    return tuple((network, np.size(ids), *map(np.size, oods)) for network, (ids, oods) in sorted(read.items()))
