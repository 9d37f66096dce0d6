"""Results from disk: all records as one DataFrame, and one run with its scores."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openbench import paths
from openbench.api.arguments import path_of
from openbench.api.result import Result
from openbench.core.names import ATTACKED, FULL_SPECTRUM
from openbench.core.record import Value
from openbench.errors import CacheError, RecordError, did_you_mean, listed
from openbench.results.frame import ID, Run, runs
from openbench.results.records.settings import is_per_set
from openbench.results.records.store import RecordStore, load as load_file
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.scores.stored import first_with
from openbench.results.tables.views import FAMILIES, family_of, key_order, ordered, role_in

if TYPE_CHECKING:
    from pandas import DataFrame

_SUFFIX = ".json"
_ALL = "all"
# Columns before and after the metrics.
_FIRST = ("method", "training", "backbone", "benchmark", "seed", "side", "role", "set")
_LAST = (
    *("id_accuracy", "augment", "outliers", "params", "tuned_on", "version"),
    *("pristine", "complete", "utc", "run_id", "path"),
)
_OF_ROW = ("side", "role", "set")
_FACTS = (*_FIRST[:5], *("augment", "outliers", "tuned_on", "version", "pristine", "complete", "utc", "run_id"))
_SIDES = {"": "standard", FULL_SPECTRUM: "full spectrum", ATTACKED: "attacked"}
_CATEGORIES = ("method", "training", "backbone", "benchmark", *_OF_ROW, "augment", "outliers", "params", "tuned_on")
_COUNT, _ACCURACY = "n_", "accuracy"
_OF_ID = "id_"


def records(folder: str | Path | None = None, metrics: str | Sequence[str] = "ranking") -> "DataFrame":
    """Return all records of a results folder as one tidy DataFrame: a row per record and set.

    Columns: `method`, `training`, `backbone`, `benchmark`, `seed`; `side` (standard, full spectrum), `role` (near, far;
    mean for the rows of a group), `set`; the metrics, as fractions in [0, 1]; `id_accuracy`; `augment`, `outliers`,
    `params`, `tuned_on`, `version`; `pristine` (the benchmark as defined), `complete` (no image missing), `utc`,
    `run_id`, `path`. Names are categories, numbers float64 or Int64; `unable` is NaN.

    Files that are not records are skipped with one warning; `attrs["skipped"]` has the reasons.

    Example:
        near = ob.records().query("role == 'mean' and set == 'near'")
        near.groupby("method", observed=True).auroc.mean()

    Args:
        folder: a results folder; None = OPENBENCH_RESULTS, else `./results`.
        metrics: a family of metrics with its intervals (`ranking`, `threshold`, `selective`, `conformal`), `all`, or a
            list of keys, e.g. `["auroc", "fpr95", "id_aurc"]`; keys of the ID side have the prefix `id_`.

    Raises:
        RecordError: no such folder, or a key that no record has.
    """
    if not isinstance(metrics, str | list | tuple):
        raise RecordError(f"metrics is a {type(metrics).__name__} — pass a family of metrics or a list of keys")
    if isinstance(metrics, str) and metrics not in (known := (*FAMILIES, _ALL)):
        raise RecordError(f"metrics '{metrics}' not found{did_you_mean(metrics, known)} — allowed: {', '.join(known)}")
    store = _store(folder)
    errors: list[RecordError] = []
    chosen = cache(lambda key: _is_chosen(metrics, key))

    def reads(name: str, key: str) -> bool:
        return key == _ACCURACY or chosen(_OF_ID + key) if name == ID else chosen(key)

    rows = [row for run in runs(store, errors.append, reads) for row in _rows(run, store.folder)]
    table = _tidy(rows, metrics)
    table.attrs["skipped"] = [str(error) for error in errors]
    if errors:
        warnings.warn(f"skipped: {listed(errors, 1, last=', and ')} (attrs['skipped'] has all)", stacklevel=2)
    return table


def _rows(run: Run, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each set and group of a run, with the numbers of ID in all of them; `unable` is NaN."""
    facts = {name: getattr(run, name) for name in _FACTS} | {"params": run.written, "path": f"{folder}/{run.file}"}
    facts |= {_OF_ID + key: _number(value) for key, value in run.metrics.get(ID, {}).items()}
    for name in ordered(run.measured, run.members):
        about = {**facts, "role": role_in(run.members, name), "set": name}
        for side, called in _SIDES.items():
            if side + name in run.measured:
                numbers = {key: _number(value) for key, value in run.metrics.get(side + name, {}).items()}
                yield {**about, "side": called, **numbers}


def _number(value: Value) -> float:
    return nan if isinstance(value, str) else value


def _tidy(rows: Sequence[Mapping[str, Any]], metrics: str | Sequence[str]) -> "DataFrame":
    """The rows with columns in order, and their types."""
    import pandas as pd

    table = pd.DataFrame(rows)
    known = [str(key) for key in table if key not in (*_FIRST, *_LAST[1:])]
    if not isinstance(metrics, str) and rows:
        for key in metrics:
            if key not in known:
                raise RecordError(f"metric '{key}' is in no record — metrics='{_ALL}' has every key")
    keys = sorted(known, key=_order) if isinstance(metrics, str) else list(dict.fromkeys(metrics))
    keys = [key for key in keys if key not in _LAST]
    table = table.reindex(columns=[*_FIRST, *keys, *_LAST])
    table["utc"] = pd.to_datetime(table["utc"], utc=True, errors="coerce", format="ISO8601").dt.as_unit("us")
    whole = ("seed", "version", *(key for key in keys if _base(key).startswith(_COUNT)))
    types = (
        dict.fromkeys((*keys, _LAST[0]), "float64")
        | dict.fromkeys(_CATEGORIES, "category")
        | dict.fromkeys(whole, "Int64")
    )
    return table.astype(types)


def _base(key: str) -> str:
    return key.removesuffix("_low").removesuffix("_high")


def _is_chosen(metrics: str | Sequence[str], key: str) -> bool:
    """Whether a metric is in a family, or in a list of keys."""
    return metrics in (_ALL, family_of(_base(key))) if isinstance(metrics, str) else key in metrics


def _order(key: str) -> tuple[Any, ...]:
    """Order of columns: sets before ID and pooled, families as in the views, the ends of an interval after it."""
    base = _base(key)
    last = base.startswith((_OF_ID, "pooled_"))
    return last, key_order(family_of(base), base), base, key != base, key.endswith("_high")


def load(run: str | Path, folder: str | Path | None = None) -> Result:
    """Return one run: its record, and the scores per image if they are in the cache or beside the record.

    Example:
        ob.load("latest").compare(ob.load("b4cd2b1a"))

    Args:
        run: a run id, the beginning of one, `latest`, or the path of a record.
        folder: a results folder, except for paths; None = OPENBENCH_RESULTS, else `./results`.

    Raises:
        RecordError: no record fits, several do, or the file is not a record.
    """
    if not isinstance(run, str | Path) or not str(run).strip():
        raise RecordError(f"run {run!r} — allowed: a run id, the beginning of one, `latest`, or a record's path")
    path = Path(run).expanduser()
    if path.suffix == _SUFFIX:
        record = load_file(path)
    else:
        record, path = _store(folder).look_up(str(run))
    if is_per_set(record):
        note = "no scores: each OOD set has its own hyper-parameters, and so its own ID scores"
        return Result(record, (), path, (note,))
    # Four folders above the record: records/BENCHMARK/BACKBONE/METHOD.
    published, cached = [root / PUBLISHED for root in path.absolute().parents[4:5]], paths.cache_dir() / "scores"
    store = first_with(record.run_id, (*published, cached))
    if store is None:
        return Result(record, (), path, (f"no scores per image in '{cached}' — run it again to compute them",))
    try:
        return Result(record, tuple(store.read(record.run_id)), path)
    except CacheError as error:
        return Result(record, (), path, (), (f"WARNING: no scores per image: {error}",))


def _store(folder: str | Path | None) -> RecordStore:
    root = paths.results_dir() if folder is None else path_of(folder, "folder")
    if not root.is_dir():
        raise RecordError(f"results folder '{root}' not found — name one with `records`, or set OPENBENCH_RESULTS")
    return RecordStore(root)
