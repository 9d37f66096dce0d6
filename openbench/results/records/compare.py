"""Whether a repeated run reproduces a record, and how far a metric may move between two processors.

Processors sum in other orders, so scores of the same code, weights and data agree to the rounding of float32, and close
ones change places: at any threshold or place of the order, k = `SAMPLES` of the n scores of the ID side or of the m of
the OOD side may cross it. What a metric counts says what follows: k of n·m pairs, but never less than the millionth of
them that lie within rounding of each other, for an area over pairs; k/n or k/m for a share, a precision averaged over
one side, or a threshold read from validation scores; more where a number is a multiple of such a share: the three
steps of a conformal correction, the c classes of a prediction set, the few that a selection or discoveries are of. F1
is flat at its maximum, so a change of k/n in height is one of √(k/n) in the rate where it lies. The end of a drawn
interval moves by four standard errors of a percentile besides, an eighth of the width over 1,000 draws. A mean over
sets moves as its smallest set. Not covered, and reported as differences: adaptive prediction sets whose threshold lies
within rounding of 1, and a constraint that a single sample meets or misses, where a risk turns `unable`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

from openbench.core.names import order_name, without_side
from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.errors import listed
from openbench.storage.plain_json import plain

ROUNDING = 1e-6
SAMPLES = 3  # two were seen to move, in ties of saturated scores
_POOLED = "pooled_"


class Sizes(NamedTuple):
    """From how many scores a metric is computed; infinitely many where that is not known.

    Args:
        n: of the ID side.
        m: of the OOD side; of the smallest set, for a mean over sets.
        v: of the smaller validation split.
        c: number of classes.
    """

    n: float
    m: float
    v: float
    c: int


Rule = Callable[[Sizes], float]
_K = SAMPLES
# Metrics → by how much they may move; in the order in which they are tried. `_multiple` has the rest.
_OF_SETS: tuple[tuple[str, Rule], ...] = (
    (r"n_(ood|sets)", lambda s: 0),
    (r"auroc|oscr", lambda s: _K / (s.n * s.m)),
    (r"auroc_(first|last)_quarter", lambda s: 16 * _K / (s.n * s.m)),
    (r"auroc_(low|high)", lambda s: 2 * _K / (s.n * s.m)),  # its own, and that of DeLong's half width
    (r"conformal_auroc", lambda s: 3 * _K / (s.n * s.m)),  # the steepest step of the correction tables is 2.4/n
    (r"autc|aufpr|aufnr", lambda s: ROUNDING),
    (r"(aupr|ap)_in|fpr95|fpr@(test|95tnr)|ccr@fpr.+|risk@.+", lambda s: _K / s.n),
    (r"conformal_fpr95", lambda s: 3 * _K / s.n),
    (r"(aupr|ap)_out|oscr_selective|fpr95_id_positive|fnr@(test|95tnr)|bh_(power|fdp)@.+", lambda s: _K / s.m),
    (r"f1", lambda s: 2 * _K / s.m),
    (r"fpr@val", lambda s: _K / s.n + _K / s.v),
    (r"fnr@val", lambda s: _K / s.m + _K / s.v),
    (r"detection_error", lambda s: (_K / s.n + _K / s.m) / 2),
    (r"cost", lambda s: _K / s.n + _K / s.m),
    (r"accuracy|precision|recall|f1_threshold", lambda s: math.sqrt(_K / min(s.n, s.m))),
)
_OF_ID: tuple[tuple[str, Rule], ...] = (
    (r"n_(id|set_splits)", lambda s: 0),
    (r"accuracy|id_val_accuracy", lambda s: ROUNDING),
    (r"(e-)?aurc|augrc|ece(_equal_mass|_debiased)?", lambda s: _K / s.n),
    (r"brier|nll", lambda s: 10 * ROUNDING),  # means of what is rounded in float32
    # In deviations of the ID score, of which a rate is a like part.
    (r"f1_threshold_(std|range)", lambda s: math.sqrt(_K / min(s.n, s.m))),
    (r"\w+_(coverage(_mean|_std)?|singletons)@.+", lambda s: _K / s.n),
    (r"\w+_(size(_mean|_std)?|worst_class)@.+", lambda s: _K * s.c / s.n),
)


def allowance(record: ResultRecord, where: str, key: str) -> float:
    """Return by how much a metric may differ between two processors, in its own unit.

    Args:
        record: the recorded run; its counts and its other metrics say from how many samples.
        where: the set or group, e.g. `near` or `full_spectrum/id`.
        key: the metric, e.g. `pooled_fpr95`.
    """
    bare, values = key.removeprefix(_POOLED), record.metrics[where]
    prefix = key.removesuffix(bare)

    def value(name: str) -> float:
        """Another metric of the same set; 0 where it is absent or `unable`."""
        number = values.get(prefix + name)
        return float(number) if isinstance(number, float | int) else 0.0

    drawn = re.fullmatch(r"(?!auroc)(.+)_(low|high)", bare)
    name = drawn[1] if drawn else bare
    sizes, rule = _sizes(record, where, bool(prefix)), rule_of(where, name)
    bound = ROUNDING if rule is None else max(ROUNDING, _multiple(record, name, sizes, value) * rule(sizes))
    if drawn:
        draws = max(1, int((record.config.get("metrics") or {}).get("replicates", 1000)))
        bound += (value(f"{name}_high") - value(f"{name}_low")) / 8 * math.sqrt(1000 / draws)
    return bound


def rule_of(where: str, key: str) -> Rule | None:
    """Return how far a metric, without `pooled_`, may move; None if it has to be equal."""
    known = _OF_ID if without_side(where) == "id" else _OF_SETS
    return next((rule for pattern, rule in known if re.fullmatch(pattern, key)), None)


def _multiple(record: ResultRecord, key: str, sizes: Sizes, value: Callable[[str], float]) -> float:
    """How many times what its rule says a metric may move that depends on other numbers of the record."""
    if key == "cost":  # of the dearest mistake
        options = (record.config.get("metrics") or {}).get
        return max(1.0, *(float(options(f"cost_{name}", 0.0)) for name in ("reject_id", "accept_ood", "reject_ood")))
    if key.startswith("risk@"):  # over the φ·n that are accepted at least, of `risk@tprφ,fprρ` and `risk@precκ,recφ`
        share = re.search(r"(?:@tpr|,rec)([\d.]+)", key)
        return min(sizes.n, 1 / float(share[1])) if share and float(share[1]) else sizes.n
    if key.startswith("bh_fdp@"):  # over the discoveries
        return sizes.m / max(1.0, value(key.replace("bh_fdp", "bh_power")) * sizes.m)
    return max(1.0, abs(value(key))) if key == "f1_threshold" else 1.0


def _sizes(record: ResultRecord, where: str, pooled: bool) -> Sizes:
    name = without_side(where)
    side = where.removesuffix(name)
    values = record.metrics.get(order_name(0, name), record.metrics[where])  # a mean over orders says no counts
    ood = float(values.get("n_ood", math.inf))
    roles = ("near/", "far/") if name == "id" else (f"{name}/",)
    return Sizes(
        n=float(values.get("n_id", record.metrics.get(f"{side}id", {}).get("n_id", math.inf))),
        m=ood if pooled else min(ood, *(_least(record, role) for role in roles)),
        v=min(_least(record, "id_val/"), _least(record, "ood_val/")),
        c=int(record.backbone.get("num_classes", 1)),
    )


def _least(record: ResultRecord, role: str) -> float:
    """The size of the smallest split of a role; infinite if there is none."""
    return min((float(c["n"]) for name, c in record.counts.items() if name.startswith(role)), default=math.inf)


def of_trial(record: ResultRecord, index: int, key: str) -> float:
    """Return by how much a number of a tuning trial, which is of validation splits, may differ.

    The threshold of a double score is that of least risk, a minimum as flat as that of F1. Its scores are a sum of one
    in standard deviations and μ times another, so their own deviation is at most 1 + μ; √(k/n) is a like part of it.

    Args:
        record: the recorded run.
        index: of the trial.
        key: of its number; for others than AUROC, risk and the threshold of a double score it is rounding.
    """
    id_val, ood_val = _least(record, "id_val/"), _least(record, "ood_val/")
    weight = record.trials[index].get("params", {}).get("mu")
    moved = {"auroc": SAMPLES / (id_val * ood_val), "risk": 2 * SAMPLES / id_val}
    if isinstance(weight, float | int):
        moved["threshold"] = (1 + weight) * math.sqrt(SAMPLES / min(id_val, ood_val))
    return max(ROUNDING, moved.get(key, 0.0))


# How a number was made may differ; the number may not.
_NOT_COMPARED = ("provenance", "overrides", "config_digest")
_REASON = "infeasible"  # of a trial: that there is one must be equal, its words may be put otherwise by a later version
_ABSENT = "absent"
_SHOWN = 5
Path = tuple[str, ...]


@dataclass(frozen=True)
class ValueDifference:
    """One value that differs from the recorded one.

    Args:
        key: where it stands in the record, dotted.
        old: the recorded value, or `absent`.
        new: the repeated value, or `absent`.
        allowed: by how much it may differ; 0 for what is not a number.
    """

    key: str
    old: Any
    new: Any
    allowed: float = 0.0

    def __str__(self) -> str:
        bound = f" (may differ by {self.allowed:.2g})" if self.allowed > ROUNDING else ""
        return f"{self.key}: {self.old!r} was recorded, {self.new!r} came out{bound}"

    @property
    def moved(self) -> str:
        """The two values and the bound, briefly."""
        return f"{self.key} {self.old:.6g} → {self.new:.6g} (±{self.allowed:.2g})"


@dataclass(frozen=True)
class RecordComparison:
    """The comparison of a record with its repetition.

    Args:
        equal: how many values are equal, numbers to rounding.
        moved: numbers that differ by no more than another processor can make them.
        differ: everything else; the record reproduces if there is none.
        added: metrics that only the repetition has, because openbench measures more by now.
    """

    equal: int
    moved: tuple[ValueDifference, ...]
    differ: tuple[ValueDifference, ...]
    added: tuple[str, ...]

    @property
    def reproduces(self) -> bool:
        """Whether nothing differs by more than it may."""
        return not self.differ

    def __str__(self) -> str:
        parts = [f"{self.equal} values equal to rounding"]
        moved = listed((d.moved.removeprefix("metrics.") for d in self.moved), _SHOWN)
        parts += [f"{len(self.moved)} moved within what {SAMPLES} samples can move: {moved}"] * bool(self.moved)
        parts += [f"{len(self.added)} new values, which the record does not have"] * bool(self.added)
        return " · ".join(parts)


def compare(old: ResultRecord, new: ResultRecord) -> RecordComparison:
    """Return what a repetition reproduces of a record, provenance aside.

    Numbers agree if |a − b| ≤ 1e-6 · max(1, |a|). A metric that does not may have moved by its `allowance`, which
    follows from the number of samples it is computed from; so may a number of a tuning trial. Of a setting that is
    infeasible only that it is so is compared, not the wording of the reason. Everything else must be equal.

    Args:
        old: the record on disk.
        new: the repetition.
    """
    first, second = _leaves(plain(old.to_dict())), _leaves(plain(new.to_dict()))
    equal, moved, differ = 0, list[ValueDifference](), list[ValueDifference]()
    added = [path for path in second if path not in first and path[0] == "metrics"]
    for path in sorted((first.keys() | second.keys()) - set(added)):
        a, b = first.get(path, _ABSENT), second.get(path, _ABSENT)
        if all(isinstance(value, float | int) and not isinstance(value, bool) for value in (a, b)):
            rounding, gap = ROUNDING * max(1.0, abs(a)), abs(a - b)
            allowed = rounding if gap <= rounding else max(_allowed(old, path), rounding)
            same, within = gap <= rounding, gap <= allowed * (1 + 1e-9)
        else:
            is_reason = path[0] == "trials" and path[2:] == (_REASON,) and path in first and path in second
            same, within, allowed = is_reason or (type(a) is type(b) and a == b), False, 0.0
        if same:
            equal += 1
        else:
            (moved if within else differ).append(ValueDifference(_dotted(path), a, b, allowed))
    return RecordComparison(equal, tuple(moved), tuple(differ), tuple(map(_dotted, added)))


def _allowed(record: ResultRecord, path: Path) -> float:
    if path[0] == "metrics" and len(path) == 3:
        return allowance(record, path[1], path[2])
    if path[0] == "trials" and len(path) == 3:
        return of_trial(record, int(path[1].strip("[]")), path[2])
    return 0.0


def _dotted(path: Path) -> str:
    return re.sub(r"\.(\[\d+\])", r"\1", ".".join(path))


def _leaves(tree: Mapping[str, Any]) -> dict[Path, Any]:
    """Flatten a record to {path: scalar}; empty containers count as values."""
    leaves: dict[Path, Any] = {}
    pending: list[tuple[Path, Any]] = [((k,), v) for k, v in tree.items() if k not in _NOT_COMPARED]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            pending += [((*path, name), child) for name, child in value.items()]
        elif isinstance(value, list) and value:
            pending += [((*path, f"[{index}]"), child) for index, child in enumerate(value)]
        else:
            leaves[path] = value
    return leaves


# Networks of another seed: the range of their numbers, from the spread of the recorded seeds.

_HEADLINES = {
    "ID accuracy": ("id", "accuracy"),
    **{f"{group} AUROC": (group, "auroc") for group in ("near", "far")},
    **{f"{group} FPR@95": (group, "fpr95") for group in ("near", "far")},
}
_CONFIDENCE = 0.99  # of each of five numbers, hence at least 0.95 of all five at once


@dataclass(frozen=True)
class Headline:
    """One number of two networks that differ in their training only; fractions in [0, 1].

    Args:
        name: e.g. `near AUROC`.
        old: as recorded.
        new: as it came out.
        seeds: the values of the recorded seeds.
        expected: between what one more seed is expected to lie; None where fewer than two seeds are recorded.
    """

    name: str
    old: float
    new: float
    seeds: tuple[float, ...] = ()
    expected: tuple[float, float] | None = None

    @property
    def outside(self) -> bool:
        """Whether a further seed hardly gives the new number; False where too few seeds are recorded."""
        return self.expected is not None and not self.expected[0] <= self.new <= self.expected[1]

    def __str__(self) -> str:
        text = f"{self.name}: {100 * self.old:.2f} recorded, {100 * self.new:.2f} here"
        if self.expected is None:
            return text
        seeds = _range(min(self.seeds), max(self.seeds))
        return f"{text}, recorded seeds {seeds}, one more may lie in {_range(*self.expected)}"


def _range(low: float, high: float) -> str:
    return f"{100 * low:.2f} … {100 * high:.2f}"


def same_but_seed(records: Iterable[ResultRecord], record: ResultRecord) -> list[ResultRecord]:
    """Return the records that differ from one in nothing but the seed and the weights that it led to, itself included.

    Args:
        records: any.
        record: the one.
    """
    return [other for other in records if setting_of(other, "seed") == setting_of(record, "seed")]


def setting(config: Mapping[str, Any], facts: Sequence[object], *left_out: str) -> str:
    """Return a digest of what two runs share that differ in the weights that a training ended in.

    Args:
        config: the scientific config.
        facts: the benchmark's digest, the training's name, and the method's name and version.
        *left_out: nodes of the config that do not count.
    """
    # Where files lie changes no number: the benchmark is left to its digest.
    return digest([{key: node for key, node in config.items() if key not in ("benchmark", *left_out)}, *facts])


def setting_of(record: ResultRecord, *left_out: str) -> str:
    """Return the `setting` of a record."""
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
    from scipy.stats import t as student  # which takes long to load

    headlines = []
    for name, (where, key) in _HEADLINES.items():
        a, b, *recorded = (record.metrics.get(where, {}).get(key) for record in (old, new, *seeds))
        if not (isinstance(a, float | int) and isinstance(b, float | int)):
            continue
        values = [float(value) for value in recorded if isinstance(value, float | int)]
        if len(values) < 2:
            headlines.append(Headline(name, a, b))
            continue
        r, middle = len(values), fmean(values)
        half = float(student.ppf(0.5 + _CONFIDENCE / 2, r - 1)) * stdev(values) * math.sqrt(1 + 1 / r)
        half += allowance(old, where, key)
        headlines.append(Headline(name, a, b, tuple(values), (max(0.0, middle - half), min(1.0, middle + half))))
    return headlines
