"""Rows of tables that compare methods: the runs of each, by benchmark."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from openbench.core.record import ResultRecord
from openbench.errors import CacheError, RecordError
from openbench.results.records.settings import hyper_parameters, training_of
from openbench.results.tables.views import tuned_on

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


def by_row(records: Iterable[ResultRecord]) -> dict[RowKey, dict[str, dict[str, ResultRecord]]]:
    """Return {row: {benchmark's name: {benchmark's digest: record}}}, rows in order.

    Of a method's versions the newest is used; of runs that differ in the choice of metrics only, one.

    Raises:
        RecordError: two runs that one row cannot hold.
    """
    chosen: dict[RowKey, dict[str, dict[str, ResultRecord]]] = {}
    for record in sorted(records, key=lambda r: -int(r.method.get("version", 0))):
        versions = chosen.setdefault(row_key(record), {}).setdefault(str(record.benchmark.get("name")), {})
        _check_same_scores(versions.setdefault(str(record.benchmark.get("digest")), record), record)
    return dict(sorted(chosen.items()))


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
