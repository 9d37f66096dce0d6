"""Results of an evaluation: records, scores per image, tables, comparisons and figures."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openbench.core.benchmark import Benchmark
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import open_benchmark
from openbench.engine.provenance import WARNINGS, RunOutcome
from openbench.errors import CacheError, ConfigError, DataError, OpenbenchError, did_you_mean
from openbench.public import foreign_targets
from openbench.results.comparisons.runs import compared, differences
from openbench.results.records.settings import network_of
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.frames import frame, methods_frame, methods_table
from openbench.results.tables.render import Table, to_console, to_html
from openbench.results.tables.views import run_tables

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from openbench.core.runtime import Runtime


_WIDTH = 100


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
            tables.append(_rows(s, known))
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


_Names = Mapping[tuple[str, str], list[str]]


def _rows(s: SetScores, names: list[str]) -> "DataFrame":
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
