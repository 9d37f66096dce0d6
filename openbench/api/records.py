"""Results from disk as data: all records as one DataFrame, and one run with its scores."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from openbench import paths
from openbench.api.arguments import path_of
from openbench.api.result import Result
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import CacheError, RecordError
from openbench.results.comparisons.kept import is_per_set
from openbench.results.leaderboard.index import indexed_runs
from openbench.results.records.store import RecordStore
from openbench.results.records.store import load as load_file
from openbench.results.records.tidy import check_metrics, needed, tidy
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.scores.stored import first_with

if TYPE_CHECKING:
    from pandas import DataFrame

_SUFFIX = ".json"


def records(folder: str | Path | None = None, metrics: str | Sequence[str] = "ranking") -> "DataFrame":
    """Return all records of a results folder as one tidy DataFrame: a row per record and set.

    Columns: `method`, `training`, `backbone`, `benchmark`, `seed`; `side` (standard, full spectrum), `role` (near, far;
    mean for the rows of a group), `set`; the metrics, as fractions in [0, 1]; `id_accuracy`; `augment`, `outliers`,
    `params`, `tuned_on`, `version`; `pristine` (the benchmark as defined), `complete` (no image missing), `utc`,
    `run_id`, `path`. Names are categories, numbers float64 or Int64; `unable` is NaN.

    Files that are not records are left out with one warning; `attrs["skipped"]` says of each what is wrong.

    Example: `ob.records().query("role == 'mean' and set == 'near'").groupby("method", observed=True).auroc.mean()`

    Args:
        folder: a results folder; None = OPENBENCH_RESULTS, else `./results`.
        metrics: which numbers: a family (`ranking`, `threshold`, `selective`, `conformal`) with its intervals, `all`,
            or a list of keys, e.g. `["auroc", "fpr95", "id_aurc"]`; keys of the ID side have the prefix `id_`.

    Raises:
        RecordError: no such folder, or a key that no record has.
    """
    if not isinstance(metrics, str | list | tuple):
        raise RecordError(f"metrics is a {type(metrics).__name__} — a family of metrics or a list of keys expected")
    check_metrics(metrics)
    store = _store(folder)
    bad: list[RecordError] = []
    found = tidy(indexed_runs(store, (needed(metrics),), bad.append), store.folder, metrics)
    found.attrs["skipped"] = [str(error) for error in bad]
    if bad:
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        warnings.warn(f"left out: {bad[0]}{more} (attrs['skipped'] has all)", stacklevel=2)
    return found


def load(run: str | Path, folder: str | Path | None = None) -> Result:
    """Return one run: its record, and the scores per image if they are published beside it or kept in the cache.

    Args:
        run: a run id, the beginning of one, `latest`, or the path of a record.
        folder: a results folder, for all but paths; None = OPENBENCH_RESULTS, else `./results`.

    Raises:
        RecordError: no record fits, several do, or the file is not a record.
    """
    said: list[RecordError] = []
    if not isinstance(run, str | Path) or not str(run).strip():
        raise RecordError(
            f"run — found {run!r} — allowed: a run id, the beginning of one, `latest`, or a record's path"
        )
    path = Path(run).expanduser()
    if path.suffix == _SUFFIX:
        record = load_file(path)
    else:
        record, path = _store(folder).look_up(str(run), said.append)
    # Four folders above the record: records/BENCHMARK/BACKBONE/METHOD.
    beside = [path.absolute().parents[4]] if len(path.absolute().parents) > 4 else []
    scores, notes, problems = _scores(record, [root / PUBLISHED for root in beside])
    return Result(record, scores, path, notes, (*(f"WARNING: {error}" for error in said), *problems))


def _store(folder: str | Path | None) -> RecordStore:
    root = paths.results_dir() if folder is None else path_of(folder, "folder")
    if not root.is_dir():
        raise RecordError(
            f"results folder '{root}' not found — name the folder that holds `records`, or set OPENBENCH_RESULTS"
        )
    return RecordStore(root)


def _scores(
    record: ResultRecord, published: Sequence[Path]
) -> tuple[tuple[SetScores, ...], tuple[str, ...], tuple[str, ...]]:
    """The scores of a run that are published beside its record or kept here, else why there are none: note or warning.

    Args:
        record: of the run.
        published: folders of scores that travel with records.
    """
    if is_per_set(record):
        return (), ("no scores: each OOD set has hyper-parameters, and so ID scores, of its own",), ()
    kept = paths.cache_dir() / "scores"
    store = first_with(record.run_id, (*published, kept))
    if store is None:
        return (), (f"no scores per image: they are not in '{kept}' — repeat the run to compute them",), ()
    try:
        scores = tuple(store.read(record.run_id))
    except CacheError as error:
        return (), (), (f"WARNING: no scores per image: {error}",)
    return scores, (), ()
