"""Results of an evaluation, in memory and from disk: records, scores per image, tables, comparisons and figures."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openbench import paths
from openbench.api.arguments import path_of
from openbench.core.benchmark import Benchmark
from openbench.core.names import ATTACKED, FULL_SPECTRUM
from openbench.core.record import ResultRecord, Value
from openbench.core.scores import SetScores
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import open_benchmark
from openbench.engine.provenance import WARNINGS, RunOutcome
from openbench.errors import CacheError, ConfigError, DataError, OpenbenchError, RecordError, did_you_mean, listed
from openbench.public import foreign_targets
from openbench.results.comparisons.runs import compared, differences
from openbench.results.frame import ID, Run, runs
from openbench.results.records.settings import is_per_set, network_of
from openbench.results.records.store import RecordStore, load as load_file
from openbench.results.scores.stored import PUBLISHED, ScoreStore, first_with
from openbench.results.tables.frames import frame, methods_frame, methods_table
from openbench.results.tables.render import Table, to_console, to_html
from openbench.results.tables.views import FAMILIES, family_of, key_order, ordered, role_in, run_tables

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from openbench.core.runtime import Runtime

_WIDTH = 100
_Names = Mapping[tuple[str, str], list[str]]
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


@dataclass(frozen=True, repr=False)
class Result:
    """One method on one benchmark with one backbone; its `repr` is the table.

    Args:
        record: all numbers, and how they were computed.
        scores: per image, one entry per set; empty if they were not kept.
        path: the record's file; None if nothing was written.
        notes: where the numbers come from, e.g. that a record was reused.
        warnings: reasons why the numbers may not be what the user expects.
    """

    record: ResultRecord
    scores: tuple[SetScores, ...] = field(default=())
    path: Path | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def metrics(self) -> Mapping[str, Mapping[str, float | int | str]]:
        """Set or group → metric → value, e.g. `result.metrics["near"]["auroc"]`; rates are fractions in [0, 1]."""
        return self.record.metrics

    def table(self, view: str = "overview") -> "DataFrame":
        """Return a row per set and group; rates are fractions in [0, 1], the interval of `x` is `x_low` and `x_high`.

        `attrs` has the conventions of the numbers (`conventions`), remarks (`notes`), and the chosen hyper-parameters
        (`tuned`) with the data that they were chosen on (`tuned_on`).

        Args:
            view: overview, ranking, threshold, selective, conformal, intervals, prediction_sets, id, other, trials or
                counts.

        Raises:
            ConfigError: no such view.
        """
        return frame(self.record, view)

    def images(self) -> "DataFrame":
        """Return a row per image: `set`, `role`, `image`, `score`, `label`, `prediction`, `correct`.

        `image` is the path in the benchmark's lists, or missing, and then `attrs["unnamed"]` has the reason by role and
        set. The benchmark is opened for it, and its digest must be the record's.

        Raises:
            CacheError: the scores were not kept.
        """
        import pandas as pd

        names, reason = names_of(self.record)
        tables, unnamed = [], {}
        for s in scores_of(self):
            known = names.get((str(s.role), s.name), [])
            tables.append(_rows_of(s, known))
            if len(known) != len(s.scores):
                few = f"the benchmark has {len(known)} images of this set, and {len(s.scores)} were scored"
                unnamed[f"{s.role}/{s.name}"] = reason or few
        table = pd.concat(tables, ignore_index=True).astype({"set": "category", "role": "category"})
        table.attrs["unnamed"] = unnamed
        return table

    def compare(self, other: "Result", level: float = 0.95) -> "DataFrame":
        """Return the difference of AUROC to another result on the same images, by set and group.

        Columns: `auroc`, `other_auroc`, `difference`, the ends `low` and `high` of its interval, `p`, `n_id`, `n_ood`.
        The comparison is DeLong's for paired scores (`openbench.metrics.paired_delong`); a group is the mean over its
        sets, which share the ID images.

        Args:
            other: another method, backbone or training on the same benchmark.
            level: coverage of the interval, in (0, 1).

        Raises:
            CacheError: the scores of one were not kept.
            DataError: the two were not scored on the same images.
        """
        import pandas as pd

        if not isinstance(other, Result):
            raise DataError(f"compare: {type(other).__name__} is not a Result — e.g. r['knn'].compare(r['msp'])")
        one, another = compared([(result.record, scores_of(result)) for result in (self, other)])
        table = pd.DataFrame([*differences(one, another, level)])
        table = table.astype({"set": "str", "role": "str", "n_id": "Int64", "n_ood": "Int64"})
        kind = "paired" if one.ordered and another.ordered else "unpaired: images are not named"
        first, second = (f"{r.record.method.get('name')} ({r.record.run_id})" for r in (self, other))
        table.attrs |= {"first": first, "second": second, "level": level, "test": f"DeLong, {kind}, two-sided"}
        return table

    def plot(self, kind: str = "roc") -> "Figure":
        """Return a matplotlib figure with a line per OOD set.

        Args:
            kind: `roc`, `pr` (precision and recall, OOD positive), `scores` (densities), or `threshold` (FPR and FNR
                of every threshold).

        Raises:
            ConfigError: no such kind.
            CacheError: the scores were not kept.
        """
        parts = (self.record.benchmark, self.record.backbone, self.record.method)
        names = dict.fromkeys(str(part["name"]) for part in parts if part.get("name"))
        return _figure({" · ".join(names): self}, kind)

    def __repr__(self) -> str:
        text = to_console(_overview(self.record), _WIDTH)
        return "\n".join([*self.warnings, *self.notes, text.rstrip("\n")])

    def _repr_html_(self) -> str:
        return to_html(_overview(self.record), self.notes, self.warnings)


def result_of_run(
    outcome: RunOutcome, runtime: "Runtime", notes: tuple[str, ...] = (), warnings: tuple[str, ...] = ()
) -> Result:
    """Return the outcome of a run with its scores: those just computed, else those in the cache.

    Args:
        outcome: of the run.
        runtime: of the run.
        notes: before those of the run.
        warnings: likewise.
    """
    scores = outcome.scores
    if not scores:
        with suppress(CacheError):  # the cache was emptied
            scores = tuple(ScoreStore(runtime.scores).read(outcome.record.run_id))
    recorded = tuple(outcome.record.provenance.get(WARNINGS) or ())
    notes, warnings = (*notes, *outcome.notes), (*warnings, *recorded, *outcome.warnings)
    return Result(outcome.record, scores, outcome.path, notes, warnings)


class Results(dict[str, Result]):
    """A mapping from methods to results, in the order of the call; its `repr` is one table of all methods."""

    def __missing__(self, name: str) -> Result:
        raise KeyError(f"result '{name}' not found{did_you_mean(name, self)} — available: {', '.join(self)}")

    def table(self, view: str = "overview") -> "DataFrame":
        """Return a row per method; other views than the overview have the rows of all methods.

        Columns are named by group or set and metric: `near_auroc`, `near_auroc_low`, `near_auroc_high`, `near_fpr95`,
        …, then `id_accuracy`, `tuned` and `tuned_on`. Rates are fractions in [0, 1].

        Args:
            view: as for `Result.table`.

        Raises:
            ConfigError: no such view.
        """
        return methods_frame(self._records(), view)

    def plot(self, kind: str = "roc") -> "Figure":
        """Return a matplotlib figure of all methods.

        `roc` and `pr` have a panel per OOD set and a line per method, the others a panel per method.

        Args:
            kind: `roc`, `pr`, `scores` or `threshold`, as for `Result.plot`.

        Raises:
            ConfigError: no such kind.
            CacheError: the scores of a method were not kept.
        """
        return _figure(self, kind)

    def __repr__(self) -> str:
        text = to_console(self._overview(), _WIDTH) if self else "no results"
        return "\n".join([*self._lines("warnings"), *self._lines("notes"), text.rstrip("\n")])

    def _repr_html_(self) -> str:
        return to_html(self._overview(), self._lines("notes"), self._lines("warnings"))

    def _records(self) -> dict[str, ResultRecord]:
        return {name: result.record for name, result in self.items()}

    def _overview(self) -> Table:
        subjects = {_subject(record): None for record in self._records().values()}
        return methods_table(self._records(), "; ".join(subjects))

    def _lines(self, kind: str) -> list[str]:
        """Notes or warnings, each once; those of only some results begin with their names."""
        by_text: dict[str, list[str]] = {}
        for name, result in self.items():
            for text in getattr(result, kind):
                by_text.setdefault(text, []).append(name)
        n = len(self)
        return [text if len(names) == n else f"{', '.join(names)}: {text}" for text, names in by_text.items()]


def _overview(record: ResultRecord) -> Table:
    (table,) = run_tables(record)
    if record.backbone.get("name"):
        return table
    accuracy = record.metrics.get("id", {}).get("accuracy")
    suffix = f" · ID accuracy {100 * accuracy:.2f} %" if isinstance(accuracy, float | int) else ""
    return replace(table, title=f"{_subject(record)}{suffix}")


def _subject(record: ResultRecord) -> str:
    """Benchmark and network of a record, if it has one."""
    benchmark, backbone = record.benchmark.get("name"), record.backbone.get("name")
    return f"{benchmark} · {network_of(record)}" if backbone else str(benchmark)


class ModelResults(dict[str, Results]):
    """A mapping from models to their Results on one benchmark, in the order of the call."""

    def table(self) -> "pd.DataFrame":
        """Return the tables of all models as one, with the model as the first level of the rows."""
        import pandas as pd

        return pd.concat({name: results.table() for name, results in self.items()}, names=["model"])

    def _repr_html_(self) -> str:
        return str(self.table()._repr_html_())  # type: ignore[operator]

    def __repr__(self) -> str:
        return "\n\n".join(f"{name}\n{results!r}" for name, results in self.items())


def _figure(results: Mapping[str, Result], kind: str) -> "Figure":
    """A figure of one or several results, by name."""
    from openbench.results.plots import KINDS, MOST

    if kind not in KINDS:
        raise ConfigError(f"plot '{kind}' not found{did_you_mean(kind, KINDS)} — available: {', '.join(KINDS)}")
    if not 0 < len(results) <= MOST:
        raise ConfigError(f"plot '{kind}': {len(results)} results, where a figure holds 1 to {MOST} — choose some")
    return KINDS[kind]({name: scores_of(result) for name, result in results.items()})


def scores_of(result: Result) -> tuple[SetScores, ...]:
    """Return the scores of a result.

    Raises:
        CacheError: they were not kept, or each OOD set has ID scores of its own.
    """
    count = sum(s.role == "id_test" for s in result.scores)
    if count != 1:
        lack = f"has {count} sets of ID test scores, not one" if result.scores else "has no scores per image"
        name = f"method '{result.record.method.get('name')}' (run {result.record.run_id})"
        raise CacheError(f"result of {name} {lack} — run it again to compute them")
    return result.scores


def _rows_of(s: SetScores, names: list[str]) -> "DataFrame":
    """A row per image of a set; names only if each image has one."""
    import pandas as pd

    n = len(s.scores)
    labels, predictions, correct = (
        pd.Series([pd.NA] * n if values is None else list(map(int, values)), dtype="Int64")
        for values in (s.labels, s.predictions, s.correct)
    )
    return pd.DataFrame(
        {
            "set": pd.Series([s.name] * n, dtype="str"),
            "role": pd.Series([str(s.role)] * n, dtype="str"),
            "image": pd.Series(names if len(names) == n else [None] * n, dtype="str"),
            "score": s.scores,
            "label": labels.where(labels >= 0),  # −1: of no ID class
            "prediction": predictions.where(predictions >= 0),
            "correct": correct.astype("boolean"),
        }
    )


def names_of(record: ResultRecord) -> tuple[_Names, str]:
    """Return the images of each role and set in the order of their scores; else none, and the reason.

    Args:
        record: of the run.
    """
    benchmark, reason = opened(record)
    splits = () if benchmark is None else benchmark.splits()
    return {(str(split.role), split.name): list(split.keys) for split in splits if not split.unread}, reason


def opened(record: ResultRecord) -> tuple[Benchmark | None, str]:
    """Return the benchmark of a run with the images that it was run on; else None, and the reason.

    Code that a record names and openbench does not ship is not run.

    Args:
        record: of the run.
    """
    node = record.config.get("benchmark")
    if not isinstance(node, Mapping):
        return None, "the record names no lists of images"
    if foreign := foreign_targets(node):
        return None, f"its images are read by code that openbench does not ship: {', '.join(foreign)}"
    try:
        benchmark = open_benchmark(BenchmarkConfig.parse(_in_declared_order(node)), reader="")
    except OpenbenchError as error:
        return None, str(error)
    recorded = record.benchmark.get("digest")
    if benchmark.digest != recorded:
        return None, f"the images here are not those of the run (digest {benchmark.digest}, in the record {recorded})"
    return benchmark, ""


def _in_declared_order(node: Mapping[str, Any]) -> dict[str, Any]:
    """The node with its sets in the order of `declared`; a record sorts its keys."""
    place = {path: at for at, path in enumerate(node.get("declared") or ())}
    groups = {group: node[group] for group in ("near", "far", "csid") if isinstance(node.get(group), Mapping)}
    return {**node} | {
        group: {name: sets[name] for name in sorted(sets, key=lambda n: place.get(f"{group}.{n}", len(place)))}
        for group, sets in groups.items()
    }


def records(folder: str | Path | None = None, metrics: str | Sequence[str] = "ranking") -> "DataFrame":
    """Return all records of a results folder as one tidy DataFrame: a row per record and set.

    Columns: `method`, `training`, `backbone`, `benchmark`, `seed`; `side` (standard, full spectrum), `role` (near, far;
    mean for the rows of a group), `set`; the metrics, as fractions in [0, 1]; `id_accuracy`; `augment`, `outliers`,
    `params`, `tuned_on`, `version`; `pristine` (the benchmark as defined), `complete` (no image missing), `utc`,
    `run_id`, `path`. Names are categories, numbers float64 or Int64; `unable` is NaN.

    Files that are not records are skipped with one warning; `attrs["skipped"]` has the reasons.

    Example:
        near = ob.records().query("benchmark == 'digits' and side == 'standard' and role == 'mean' and set == 'near'")
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
        ob.load("latest").compare(ob.load("0f1eafcf"))

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
