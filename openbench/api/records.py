"""Results from disk: all records as one DataFrame, and one run with its scores."""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openbench import paths
from openbench.api.arguments import path_of
from openbench.api.result import Result
from openbench.core.names import ATTACKED, FULL_SPECTRUM
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import CacheError, RecordError, did_you_mean, listed
from openbench.results.frame import FACTS, ID, METRIC, whole
from openbench.results.records.settings import is_per_set
from openbench.results.records.store import RecordStore
from openbench.results.records.store import load as load_file
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.scores.stored import first_with
from openbench.results.tables.views import FAMILIES, family_of, key_order

if TYPE_CHECKING:
    import pyarrow as pa
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
_FACTS = tuple(name for name in (*_FIRST, "written", *_LAST) if name in FACTS and name != "params")
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
        raise RecordError(
            f"metrics '{metrics}' not found{did_you_mean(metrics, known)} — allowed: {', '.join(known)}, or a list of "
            "keys such as ['auroc', 'aupr_in']"
        )
    store = _store(folder)
    errors: list[RecordError] = []
    chosen = cache(lambda key: _is_chosen(metrics, key))

    def reads(name: str, key: str) -> bool:
        return chosen(key) or (name == ID and (key == _ACCURACY or chosen(_OF_ID + key)))

    table = _tidy(whole(store, errors.append, reads, facts=_FACTS), store.folder, metrics, chosen)
    table.attrs["skipped"] = [str(error) for error in errors]
    if errors:
        warnings.warn(f"skipped: {listed(errors, 1, last=', and ')} (attrs['skipped'] has all)", stacklevel=2)
    return table


def _tidy(table: "pa.Table", folder: Path, metrics: str | Sequence[str], chosen: Callable[[str], bool]) -> "DataFrame":
    """The rows of sets and groups, with numbers of ID as further columns."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    names = table["set"].cast(pa.string())
    sets = table.filter(pc.invert(pc.is_in(names, pa.array([ID, ""]))))
    ids = table.filter(pc.and_(pc.equal(names, ID), pc.equal(table["side"].cast(pa.string()), "")))
    numbers, of_id = _numbers(sets, ""), _numbers(ids, _OF_ID)
    numbers = numbers[[key for key in map(str, numbers) if chosen(key)]]
    of_id = of_id[[key for key in map(str, of_id) if chosen(key) or key == _OF_ID + _ACCURACY]]
    if not isinstance(metrics, str) and sets.num_rows:
        for key in metrics:
            if key not in numbers and key not in of_id:
                raise RecordError(f"metric '{key}' is in no record — metrics='{_ALL}' has every key")
    keys = sorted((*numbers, *of_id), key=_order) if isinstance(metrics, str) else list(dict.fromkeys(metrics))
    keys = [key for key in keys if key not in _LAST]
    facts = sets.select(["file", *_OF_ROW, *_FACTS]).to_pandas().rename(columns={"written": "params"})
    facts = facts.astype(dict.fromkeys((*_CATEGORIES, "file", "run_id", "utc"), "str"))
    facts["side"] = facts["side"].replace(_SIDES)
    facts["utc"] = pd.to_datetime(facts["utc"], utc=True, errors="coerce", format="ISO8601").dt.as_unit("us")
    facts["path"] = f"{folder}/" + facts["file"]
    of_id.index = pd.Index(ids["file"].to_pandas().astype("str"))
    tidy: DataFrame = (
        pd.concat([facts, numbers], axis=1).join(of_id, on="file").reindex(columns=[*_FIRST, *keys, *_LAST])
    )
    whole_numbers = ("seed", "version", *(key for key in keys if _base(key).startswith(_COUNT)))
    return tidy.astype(dict.fromkeys(_CATEGORIES, "category") | dict.fromkeys(whole_numbers, "Int64"))


def _numbers(rows: "pa.Table", prefix: str) -> "DataFrame":
    """The metrics that are in at least one row."""
    names = [name for name in rows.column_names if name.startswith(METRIC) and rows[name].null_count < rows.num_rows]
    numbers: DataFrame = rows.select(names).to_pandas().astype("float64")
    numbers.columns = [prefix + name.removeprefix(METRIC) for name in names]
    return numbers


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
    # Four folders above the record: records/BENCHMARK/BACKBONE/METHOD.
    roots = path.absolute().parents[4:5]
    scores, notes, problems = _scores(record, [root / PUBLISHED for root in roots])
    return Result(record, scores, path, notes, problems)


def _store(folder: str | Path | None) -> RecordStore:
    root = paths.results_dir() if folder is None else path_of(folder, "folder")
    if not root.is_dir():
        raise RecordError(
            f"results folder '{root}' not found — pass the folder that has `records`, or set OPENBENCH_RESULTS"
        )
    return RecordStore(root)


def _scores(
    record: ResultRecord, published: Sequence[Path]
) -> tuple[tuple[SetScores, ...], tuple[str, ...], tuple[str, ...]]:
    """The scores of a run from beside its record or the cache; else the reason, as a note or a warning."""
    if is_per_set(record):
        return (), ("no scores: each OOD set has its own hyper-parameters, and so its own ID scores",), ()
    cached = paths.cache_dir() / "scores"
    store = first_with(record.run_id, (*published, cached))
    if store is None:
        return (), (f"no scores per image in '{cached}' — run it again to compute them",), ()
    try:
        scores = tuple(store.read(record.run_id))
    except CacheError as error:
        return (), (), (f"WARNING: no scores per image: {error}",)
    return scores, (), ()
