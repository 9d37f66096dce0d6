"""Runs whose scores are kept, sorted into the rows of tables that compare methods."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, NoReturn

from openbench.core.record import ResultRecord
from openbench.errors import CacheError, RecordError
from openbench.results.records.settings import hyper_parameters, training_of
from openbench.results.tables.views import tuned_on

OnLost = Callable[[CacheError], None]  # receives why the scores of a run cannot be read


def refuse(error: CacheError) -> NoReturn:
    """Do not go on without the scores of a run."""
    raise error


class Who(NamedTuple):
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


def who(record: ResultRecord) -> Who:
    """Return the row that a run belongs to."""
    params = hyper_parameters(record.method.get("params", {})) if not record.tuned else f"tuned on {tuned_on(record)}"
    network = f"{record.backbone.get('name')} · seed {record.config.get('seed')}"
    return Who(str(record.method.get("name")), params, training_of(record), network)


def strategy_of(record: ResultRecord) -> str:
    """Return the strategy by which a run's hyper-parameters were chosen; `none` if there was nothing to choose."""
    tune = record.config.get("tune")
    return str(tune.get("strategy", "none")) if isinstance(tune, Mapping) and record.tuned else "none"


def is_per_set(record: ResultRecord) -> bool:
    """Whether each OOD set has hyper-parameters, and hence scores of the ID side, of its own."""
    return strategy_of(record) == "oracle_per_set"


def by_row(records: Iterable[ResultRecord]) -> dict[Who, dict[str, dict[str, ResultRecord]]]:
    """Return {row: {benchmark's name: {benchmark's digest: record}}}, rows in order.

    Of a method's versions the newest is kept; of runs that differ in the choice of metrics, one.

    Raises:
        RecordError: two runs that one row cannot hold.
    """
    chosen: dict[Who, dict[str, dict[str, ResultRecord]]] = {}
    for record in sorted(records, key=lambda r: -int(r.method.get("version", 0))):
        versions = chosen.setdefault(who(record), {}).setdefault(str(record.benchmark.get("name")), {})
        kept = versions.setdefault(str(record.benchmark.get("digest")), record)
        _check_same_scores(kept, record)
    return dict(sorted(chosen.items()))


def _check_same_scores(kept: ResultRecord, other: ResultRecord) -> None:
    """Refuse a second run of a row, unless it has the same scores or the method has changed since."""
    # Runs that differ in their choice of metrics only have the same scores: one of them is enough.
    made = [(r.method.get("params"), r.backbone.get("digest")) for r in (kept, other)]
    if made[0] != made[1] and kept.method.get("version") == other.method.get("version"):
        raise RecordError(
            f"benchmark '{kept.benchmark.get('name')}': the runs {kept.run_id} and {other.run_id} of method "
            f"'{kept.method.get('name')}' differ in the chosen parameters or in the network, but would share a row "
            "— keep the records of each sweep in a folder of their own, and give it as --results"
        )
