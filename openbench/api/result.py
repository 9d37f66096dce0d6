"""What an evaluation returns: results with their records, scores per image, tables, comparisons and pictures."""

from collections.abc import Iterator, Mapping
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
from openbench.public import TARGET, public
from openbench.results.comparisons.runs import compared as same_images
from openbench.results.comparisons.runs import differences
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
    """One method on one benchmark with one backbone.

    Args:
        record: every number and what it was made from.
        scores: per sample, a container per set; empty where they were not kept.
        path: the record's file; None for what was computed from arrays and written nowhere.
        notes: where the numbers come from if they were not computed now, e.g. that a record was reused.
        warnings: why they may not be what the user expects.
    """

    record: ResultRecord
    scores: tuple[SetScores, ...] = field(default=())
    path: Path | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def metrics(self) -> Mapping[str, Mapping[str, float | int | str]]:
        """Set or group → metric → value; rates are fractions in [0, 1]."""
        return self.record.metrics

    def table(self, view: str = "overview") -> "DataFrame":
        """Return a row per set and group; rates are fractions in [0, 1], an interval of `x` is `x_low` and `x_high`.

        `attrs` says what the numbers depend on (`conventions`), what is to be known of them (`notes`), and which
        hyper-parameters were chosen (`tuned`) on which data (`tuned_on`).

        Args:
            view: overview, ranking, threshold, selective, conformal, intervals, prediction_sets, id, other, trials or
                counts.

        Raises:
            ConfigError: no such view.
        """
        return frame(self.record, view)

    def images(self) -> "DataFrame":
        """Return a row per image: `set`, `role`, `image`, `score`, `label`, `prediction`, `correct`.

        `image` is the path in the benchmark's lists. Where it cannot be told it is missing, and `attrs["unnamed"]` says
        why, by role and set. So is what is not known of label, prediction and correctness.

        Raises:
            CacheError: the scores were not kept.
        """
        return images(self)

    def compare(self, other: "Result", level: float = 0.95) -> "DataFrame":
        """Return how much larger the AUROC is than that of another result on the same images, by set and group.

        Columns: `auroc`, `other_auroc`, `difference`, the ends `low` and `high` of its interval, `p`, `n_id`, `n_ood`.
        The comparison is DeLong's for paired scores: see `openbench.metrics.paired_delong`; a group is the mean over
        its sets, which share the ID images.

        Args:
            other: another method, backbone or training on the same benchmark.
            level: coverage of the interval, in (0, 1).

        Raises:
            CacheError: the scores of one were not kept.
            DataError: the two were not scored on the same images.
        """
        return compared(self, other, level)

    def plot(self, kind: str = "roc") -> "Figure":
        """Return a matplotlib figure with a line per OOD set.

        Args:
            kind: `roc`, `pr` (precision and recall, OOD positive), `scores` (densities, near and far sets apart), or
                `threshold` (FPR and FNR of every threshold).

        Raises:
            ConfigError: no such kind.
            CacheError: the scores were not kept.
        """
        about = (self.record.benchmark, self.record.backbone, self.record.method)
        names = dict.fromkeys(str(part["name"]) for part in about if part.get("name"))
        return _picture({" · ".join(names): self}, kind)

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


class Results(Mapping[str, Result]):
    """The results of several methods, in the order in which they were asked for."""

    def __init__(self, results: Mapping[str, Result]) -> None:
        self._results = dict(results)

    def __getitem__(self, name: str) -> Result:
        if name not in self._results:
            known = list(self._results)
            raise KeyError(f"result '{name}' not found{did_you_mean(name, known)} — there are: {', '.join(known)}")
        return self._results[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def table(self, view: str = "overview") -> "DataFrame":
        """Return a row per method, in the order given; other views than the overview have the rows of all methods.

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
        return _picture(self._results, kind)

    def __repr__(self) -> str:
        text = to_console(self._overview(), _WIDTH) if self._results else "no results"
        return "\n".join([*self._said("warnings"), *self._said("notes"), text.rstrip("\n")])

    def _repr_html_(self) -> str:
        return to_html(self._overview(), self._said("notes"), self._said("warnings"))

    def _records(self) -> dict[str, ResultRecord]:
        return {name: result.record for name, result in self._results.items()}

    def _overview(self) -> Table:
        subjects = {_subject(record): None for record in self._records().values()}
        return methods_table(self._records(), "; ".join(subjects))

    def _said(self, kind: str) -> list[str]:
        """Notes or warnings; what only some of the results say is said with their names."""
        by_text: dict[str, list[str]] = {}
        for name, result in self._results.items():
            for text in getattr(result, kind):
                by_text.setdefault(text, []).append(name)
        every = len(self._results)
        return [text if len(names) == every else f"{', '.join(names)}: {text}" for text, names in by_text.items()]


def _overview(record: ResultRecord) -> Table:
    (table,) = run_tables(record)
    if record.backbone.get("name"):
        return table
    accuracy = record.metrics.get("id", {}).get("accuracy")
    known = f" · ID accuracy {100 * accuracy:.2f} %" if isinstance(accuracy, float | int) else ""
    return replace(table, title=f"{_subject(record)}{known}")


def _subject(record: ResultRecord) -> str:
    """Benchmark and network of a record, as far as it has them."""
    benchmark, backbone = record.benchmark.get("name"), record.backbone.get("name")
    return f"{benchmark} · {network_of(record)}" if backbone else str(benchmark)


class ModelResults(Mapping[str, Results]):
    """The results of several models on one benchmark, in the order in which they were given."""

    def __init__(self, results: Mapping[str, Results]) -> None:
        self._results = dict(results)

    def __getitem__(self, model: str) -> Results:
        return self._results[model]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def table(self) -> "pd.DataFrame":
        """Return the tables of all models as one, with the model as the first level of the rows."""
        import pandas as pd

        results: dict[str, Any] = dict(self._results)
        return pd.concat({name: pd.DataFrame(one.table()) for name, one in results.items()}, names=["model"])

    def _repr_html_(self) -> str:
        return str(self.table()._repr_html_())  # type: ignore[operator]

    def __repr__(self) -> str:
        return f"ModelResults of {', '.join(self)}: each a mapping from methods to results; .table() shows them all"


def compared(first: Result, second: Result, level: float = 0.95) -> "DataFrame":
    """Return the paired comparison of two results: see `Result.compare`."""
    import pandas as pd

    if not hasattr(second, "record"):
        raise DataError(
            f"compare — found a {type(second).__name__} — a Result expected: results['knn'].compare(results['msp'])"
        )
    one, other = same_images([(result.record, scores_of(result)) for result in (first, second)])
    rows = [
        {
            "set": row.name,
            "role": row.role,
            "auroc": row.auroc.first,
            "other_auroc": row.auroc.second,
            "difference": row.auroc.difference,
            "low": row.auroc.low,
            "high": row.auroc.high,
            "p": row.auroc.p,
            "n_id": row.n_id,
            "n_ood": row.n_ood,
        }
        for row in differences(one, other, level)
    ]
    found = pd.DataFrame(rows).astype({"set": "str", "role": "str", "n_id": "Int64", "n_ood": "Int64"})
    named = [f"{result.record.method.get('name')} ({result.record.run_id})" for result in (first, second)]
    found.attrs |= {"first": named[0], "second": named[1], "level": level, "test": "DeLong, paired, two-sided"}
    return found


def _picture(results: Mapping[str, Result], kind: str) -> "Figure":
    """A figure of one or several results, by what they are called."""
    from openbench.results.plots import KINDS, MOST

    if kind not in KINDS:
        raise ConfigError(f"plot '{kind}' not found{did_you_mean(kind, KINDS)} — available: {', '.join(KINDS)}")
    if not 0 < len(results) <= MOST:
        raise ConfigError(
            f"plot '{kind}': {len(results)} results — a picture holds 1 to {MOST} — choose some of them: "
            "Results({name: results[name] for name in …})"
        )
    return KINDS[kind]({name: scores_of(result) for name, result in results.items()})


def scores_of(result: Result) -> tuple[SetScores, ...]:
    """Return the scores of a result.

    Raises:
        CacheError: they were not kept, or each OOD set has ID scores of its own.
    """
    named = f"result of method '{result.record.method.get('name')}' (run {result.record.run_id})"
    if not result.scores:
        raise CacheError(f"{named} has no scores per image — they were not kept — repeat the run to compute them")
    if sum(s.role == "id_test" for s in result.scores) != 1:
        raise CacheError(
            f"{named} has {sum(s.role == 'id_test' for s in result.scores)} sets of ID test scores — one is needed"
        )
    return result.scores


_Names = Mapping[tuple[str, str], list[str]]


def images(result: Result) -> "DataFrame":
    """Return a row per scored image; see `Result.images`.

    Which images a run found depends on the data of the machine that it ran on, so the benchmark is opened again here,
    and its digest must be the record's: it covers the lists and a sample of the pixels of each set.

    Args:
        result: with its scores.

    Raises:
        CacheError: the scores were not kept.
    """
    import pandas as pd

    scores = scores_of(result)
    names, why = names_of(result.record)
    unnamed = {f"{s.role}/{s.name}": why or _other(s, names) for s in scores if not _fits(s, names)}
    found = pd.concat([_rows(s, names) for s in scores], ignore_index=True)
    found = found.astype({"set": "category", "role": "category"})
    found.attrs["unnamed"] = unnamed
    return found


def _rows(s: SetScores, names: _Names) -> "DataFrame":
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
            "image": pd.Series(names[s.role, s.name] if _fits(s, names) else [None] * n, dtype="str"),
            "score": s.scores,
            "label": labels.where(labels >= 0),  # −1: of no ID class
            "prediction": predictions.where(predictions >= 0),
            "correct": correct.astype("boolean"),
        }
    )


def _fits(s: SetScores, names: _Names) -> bool:
    return len(names.get((str(s.role), s.name), ())) == len(s.scores)


def _other(s: SetScores, names: _Names) -> str:
    listed = len(names.get((str(s.role), s.name), ()))
    return f"the benchmark has {listed} images of this set, and {len(s.scores)} were scored"


def names_of(record: ResultRecord) -> tuple[_Names, str]:
    """Return the images of each role and set in the order of their scores; else none, and why.

    Args:
        record: of the run.
    """
    benchmark, why = opened(record)
    if benchmark is None:
        return {}, why
    return {(str(split.role), split.name): list(split.keys) for split in benchmark.splits() if not split.unread}, ""


def opened(record: ResultRecord) -> tuple[Benchmark | None, str]:
    """Return the benchmark of a run with the images that it was run on; else None, and why.

    Code that a record names and openbench does not ship is not run.

    Args:
        record: of the run.
    """
    node = record.config.get("benchmark")
    if not isinstance(node, Mapping):
        return None, "the record names no lists of images"
    if foreign := sorted(set(_foreign(public(node)))):
        return None, f"its images are read by code that openbench does not ship: {', '.join(foreign)}"
    try:
        benchmark = open_benchmark(BenchmarkConfig.parse(_ordered(node)), reader="")
    except OpenbenchError as error:
        return None, str(error)
    if benchmark.digest != record.benchmark.get("digest"):
        return None, (
            f"the images found here are not those of the run — digest {benchmark.digest} here, "
            f"{record.benchmark.get('digest')} in the record"
        )
    return benchmark, ""


def _ordered(node: Mapping[str, Any]) -> dict[str, Any]:
    """The node with its sets in the order in which it declares them, which a record's sorted keys do not keep."""
    place = {path: at for at, path in enumerate(node.get("declared") or ())}
    ordered = dict(node)
    for group in ("near", "far", "csid"):
        if isinstance(sets := node.get(group), Mapping):
            names = sorted(sets, key=lambda name: place.get(f"{group}.{name}", len(place)))
            ordered[group] = {name: sets[name] for name in names}
    return ordered


def _foreign(node: Any) -> list[str]:
    """Classes outside openbench that a config node names: a record may come from anybody, so they are not run."""
    if isinstance(node, Mapping):
        own = [str(node[TARGET])] if "." in str(node.get(TARGET, "")) else []
        return own + [name for child in node.values() for name in _foreign(child)]
    return [name for child in node for name in _foreign(child)] if isinstance(node, list | tuple) else []
