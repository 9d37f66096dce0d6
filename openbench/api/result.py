"""What an evaluation returns: one result per method, each with its record, its scores, its tables and its pictures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import did_you_mean
from openbench.results.records.settings import network_of
from openbench.results.tables.frames import frame, methods_frame, methods_table
from openbench.results.tables.render import Table, to_console, to_html
from openbench.results.tables.views import run_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

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
        from openbench.api.images import images

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
        from openbench.api.comparison import compared

        return compared(self, other, level)

    def plot(self, kind: str = "roc") -> "Figure":
        """Return a matplotlib figure with a line per OOD set.

        Args:
            kind: `roc`, `pr` (precision and recall, OOD positive), `scores` (densities), or `threshold` (FPR and FNR
                of every threshold).

        Raises:
            ConfigError: no such kind.
            CacheError: the scores were not kept.
        """
        from openbench.api.plots import figure

        return figure({str(self.record.method.get("name")): self}, kind)

    def __repr__(self) -> str:
        text = to_console(_overview(self.record), _WIDTH)
        return "\n".join([*self.warnings, *self.notes, text.rstrip("\n")])

    def _repr_html_(self) -> str:
        return to_html(_overview(self.record), self.notes, self.warnings)


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
        from openbench.api.plots import figure

        return figure(self._results, kind)

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
