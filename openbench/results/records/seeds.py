"""Range of the numbers of a further training seed, from the spread of the recorded seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.results.records.compare import allowance

_HEADLINES = (
    ("ID accuracy", "id", "accuracy"),
    ("near AUROC", "near", "auroc"),
    ("far AUROC", "far", "auroc"),
    ("near FPR@95", "near", "fpr95"),
    ("far FPR@95", "far", "fpr95"),
)
_CONFIDENCE = 0.99  # of each of five numbers, hence at least 0.95 of all five at once


@dataclass(frozen=True)
class Headline:
    """One number of two networks that differ in their training only; fractions in [0, 1].

    Args:
        name: e.g. `near AUROC`.
        old: as recorded.
        new: as it came out.
        seeds: the values of the recorded seeds.
        low: what one more seed is expected to reach at least; None where fewer than two seeds are recorded.
        high: at most; likewise.
    """

    name: str
    old: float
    new: float
    seeds: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None

    @property
    def expected(self) -> bool:
        """Whether a further seed may well give the new number; True where too few seeds are recorded."""
        return self.low is None or self.high is None or self.low <= self.new <= self.high

    def __str__(self) -> str:
        parts = [f"{self.name}: {100 * self.old:.2f} recorded, {100 * self.new:.2f} here"]
        if self.low is not None and self.high is not None:
            parts.append(f"recorded seeds {_range(min(self.seeds), max(self.seeds))}")
            parts.append(f"one more may lie in {_range(self.low, self.high)}")
        return ", ".join(parts)


def _range(low: float, high: float) -> str:
    return f"{100 * low:.2f} … {100 * high:.2f}"


def same_but_seed(records: Iterable[ResultRecord], record: ResultRecord) -> list[ResultRecord]:
    """Return the records that differ from one in nothing but the seed and the weights that it led to, itself included.

    Args:
        records: any.
        record: the one.
    """
    return [other for other in records if _identity(other, "seed") == _identity(record, "seed")]


def setting(config: Mapping[str, Any], facts: Sequence[object], *left_out: str) -> str:
    """Return a digest of what two runs share that differ in the weights that a training ended in.

    Args:
        config: the scientific config.
        facts: the benchmark's digest, the training's name, and the method's name and version.
        *left_out: nodes of the config that do not count.
    """
    # Where files lie changes no number: the benchmark is left to its digest.
    return digest([{key: node for key, node in config.items() if key not in ("benchmark", *left_out)}, *facts])


def same_setting(records: Iterable[ResultRecord], digest_of_setting: str) -> list[ResultRecord]:
    """Return the records with a `setting`."""
    return [record for record in records if _identity(record) == digest_of_setting]


def _identity(record: ResultRecord, *left_out: str) -> str:
    method = record.method.get("name"), record.method.get("version")
    return setting(record.config, (record.benchmark.get("digest"), record.backbone.get("training"), *method), *left_out)


def one_more_seed(old: ResultRecord, new: ResultRecord, seeds: Sequence[ResultRecord]) -> list[Headline]:
    """Return the headline numbers of a record and of a run on other weights, with what a further seed may give.

    Of R recorded seeds with mean x̄ and standard deviation s (R − 1 in the denominator), one more lies in
    x̄ ± t·s·√(1 + 1/R) with probability 99 %, t being Student's quantile with R − 1 degrees of freedom; what rounding
    and a few samples can do is added, for seeds that happen to agree.

    Args:
        old: the record.
        new: the run on other weights.
        seeds: records that differ in the seed only, `old` among them.
    """
    headlines = []
    for name, where, key in _HEADLINES:
        a, b = old.metrics.get(where, {}).get(key), new.metrics.get(where, {}).get(key)
        if not (isinstance(a, float | int) and isinstance(b, float | int)):
            continue
        recorded = (record.metrics.get(where, {}).get(key) for record in seeds)
        values = [float(value) for value in recorded if isinstance(value, float | int)]
        if len(values) < 2:
            headlines.append(Headline(name, a, b))
            continue
        r, middle = len(values), fmean(values)
        half = float(student.ppf(0.5 + _CONFIDENCE / 2, r - 1)) * stdev(values) * sqrt(1 + 1 / r)
        half += allowance(old, where, key)
        headlines.append(Headline(name, a, b, tuple(values), max(0.0, middle - half), min(1.0, middle + half)))
    return headlines
