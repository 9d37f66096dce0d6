"""The ranks that the rows of a board may have, from the published scores of their runs."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import OpenbenchError
from openbench.metrics.rank_ranges import RankRange, Scored, rank_ranges
from openbench.results.leaderboard.ranking import Board, Row
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.views import GROUPS


def ranges_of(board: Board, scores: ScoreStore) -> Mapping[tuple[str, ...], RankRange]:
    """Return {run ids of a row: its range of ranks} by near AUROC, or far AUROC where no set is near.

    Rows take part whose runs all have published scores and used the same networks as most rows did, so that every
    pair is compared on the same images and networks. With fewer than two such rows there is nothing to compare.

    Args:
        board: one benchmark on one ID side.
        scores: the published ones.
    """
    found = {row.runs: read for row in board.ranked if (read := _scored(row, scores, board.full_spectrum))}
    alike = Counter(_shape(read) for read in found.values()).most_common(1)
    compared = {runs: read for runs, read in found.items() if _shape(read) == alike[0][0]}
    if len(compared) < 2:
        return {}
    by_network = [[read[network] for network in sorted(read)] for read in compared.values()]
    return dict(zip(compared, rank_ranges(by_network), strict=True))


def _scored(row: Row, scores: ScoreStore, full_spectrum: bool) -> dict[str, Scored]:
    """{network: scores of the ID side and of each near set} of a row; empty if any run's are not there."""
    found: dict[str, Scored] = {}
    for run in row.members:
        if not scores.path(run.run_id).is_file():
            return {}
        try:
            found[run.network] = _sides(scores.read(run.run_id), full_spectrum)
        except OpenbenchError:
            return {}
    return found


def _sides(sets: Sequence[SetScores], full_spectrum: bool) -> Scored:
    roles = (Role.ID_TEST, Role.CSID) if full_spectrum else (Role.ID_TEST,)
    ids = [s.scores for s in sorted(sets, key=lambda s: (str(s.role), s.name)) if s.role in roles]
    for group in GROUPS:
        oods = [s.scores for s in sorted(sets, key=lambda s: s.name) if s.role == group]
        if oods:
            return np.concatenate(ids), oods
    return np.concatenate(ids), []


def _shape(read: Mapping[str, Scored]) -> tuple[tuple[str | int, ...], ...]:
    """What two rows need in common: the networks, and how many images each set has."""
    return tuple((network, np.size(ids), *map(np.size, oods)) for network, (ids, oods) in sorted(read.items()))
