"""Whether a repeated run reproduces a record, and how far a metric may move between two processors.

Processors sum in other orders, so close scores change places. Scores of the same code, weights and data on two
processors agree to the rounding of float32. What follows for a metric depends on what it counts. Let n be the scores of
the ID side, m those of the OOD side, and k = `SAMPLES` the samples that may cross one threshold, or change places with
a neighbour at one place of the order.

- *Equal to rounding*, 1e-6: accuracies of the classifier, and means of scaled scores (AUTC and its parts).
- *Areas over pairs* (AUROC, OSCR, conformal AUROC): an exchange of two neighbours moves 1 of the n·m pairs, so k/(n·m),
  and never less than a millionth of all pairs, which is how many lie within float32's rounding of each other. A step
  of the conformal correction is up to 3/n wide where that of a plain rank is 1/n.
- *Rates at a threshold*: k samples more or less above it, so k/n for a share of ID, k/m for one of OOD, and their sum
  where a metric adds two rates. A threshold read from n_val validation scores may be the next of them, which is 1/n_val
  of the test scores away: k/n_val more.
- *Areas of precision and risk* (AUPR, AP, AURC, the OSCR of the accepted): a precision over the first r samples moves
  by 1/r if one of them is exchanged, at worst by 1 over one of the n steps: k/n, or k/m where OOD is positive or the
  area is one over the share of OOD.
- *Shares of a selection*: a selective risk over at least φ·n accepted samples moves by k/(φ·n), a share of d
  discoveries by k/d.
- *Where the best F1 lies* (its threshold, accuracy, precision, recall): F1 is flat at its maximum, so a change of k/n
  in height, which decides which threshold is best, is one of √(k/n) in rate.
- *Prediction sets over c classes*: k/n inputs, of each up to c classes; a class has n/c of the inputs. So do their
  means and deviations over splits.
- *The threshold of a tuning trial* of a double score: the setting of least risk over validation scores, a minimum as
  flat as that of F1, so √(k/n) in rate. Its scores are a sum of one in standard deviations and μ times another, so
  their own deviation is at most 1 + μ, and a rate of √(k/n) is a like part of it: (1 + μ)·√(k/n).
- *Drawn intervals*: what the number itself may move by, and four standard errors of a percentile: an eighth of the
  interval's width over 1,000 draws, √(1000/r) times that over r. One count more or less leads to other draws.

A mean over the sets of a group may move by as much as its smallest set. Not covered: adaptive prediction sets (APS,
RAPS) whose threshold lies within rounding of 1, as with a network that is certain of everything, and a constraint that
is met or missed by a single sample, where a risk turns `unable`; both are reported as differences.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openbench.core.record import ResultRecord, Value
from openbench.results.names import order_name
from openbench.storage.plain_json import plain

ROUNDING = 1e-6
SAMPLES = 3  # two were seen to move, in ties of saturated scores
_CORRECTION_STEP = 3.0  # the steepest step of the correction tables is 2.4/n
_FULL_SPECTRUM = "full_spectrum/"
_POOLED = "pooled_"


@dataclass(frozen=True)
class Place:
    """One metric of one set or group, and from how many samples it is computed; infinitely many where unknown.

    Args:
        key: without `pooled_`, e.g. `risk@tpr0.8,fpr0.2`.
        values: the other metrics of the same set.
        prefix: `pooled_` if the sets are pooled.
        n: scores of the ID side.
        m: scores of the OOD side; of the smallest set, for a mean over sets.
        validation: scores of the smaller validation split.
        classes: number of classes.
        price: the highest price of a mistake in `cost`.
        draws: replicates of the bootstrap.
    """

    key: str
    values: Mapping[str, Value]
    prefix: str
    n: float
    m: float
    validation: float
    classes: int
    price: float
    draws: int

    @property
    def smaller(self) -> float:
        """The size of the smaller side."""
        return min(self.n, self.m)

    def sibling(self, key: str, default: float) -> float:
        """Another metric of the same set, or the default where it is absent or `unable`."""
        found = self.values.get(self.prefix + key)
        return float(found) if isinstance(found, float | int) else default


Rule = Callable[[Place], float]


def allowance(record: ResultRecord, where: str, key: str) -> float:
    """Return by how much a metric may differ between two processors, in its own unit.

    Args:
        record: the recorded run; its counts and its other metrics say from how many samples.
        where: the set or group, e.g. `near` or `full_spectrum/id`.
        key: the metric, e.g. `pooled_fpr95`.
    """
    at = _place(record, where, key)
    drawn = re.fullmatch(r"(?!auroc)(.+)_(low|high)", at.key)
    if drawn is None:
        return _allowed_at(at, where, at.key)
    width = at.sibling(f"{drawn.group(1)}_high", 0.0) - at.sibling(f"{drawn.group(1)}_low", 0.0)
    return width / 8 * math.sqrt(1000 / at.draws) + _allowed_at(at, where, drawn.group(1))


def of_trial(record: ResultRecord, index: int, key: str) -> float:
    """Return by how much a number of a tuning trial, which is of validation splits, may differ.

    Args:
        record: the recorded run.
        index: of the trial.
        key: `auroc`, `risk` or `threshold`; anything else has to be equal to rounding.
    """
    id_val, ood_val = _least(record, "id_val/"), _least(record, "ood_val/")
    if key == "auroc":
        return max(ROUNDING, SAMPLES / (id_val * ood_val))
    if key == "risk":
        return max(ROUNDING, 2 * SAMPLES / id_val)
    weight = record.trials[index].get("params", {}).get("mu")
    if key == "threshold" and isinstance(weight, float | int):
        return max(ROUNDING, (1 + weight) * math.sqrt(SAMPLES / min(id_val, ood_val)))
    return ROUNDING


def _allowed_at(at: Place, where: str, key: str) -> float:
    rule = rule_of(where, key)
    return ROUNDING if rule is None else max(ROUNDING, rule(at))


def rule_of(where: str, key: str) -> Rule | None:
    """Return what decides about a metric, without `pooled_`; None if it has to be equal for want of a rule."""
    rules = _OF_ID if where.removeprefix(_FULL_SPECTRUM) == "id" else _OF_PAIR
    return next((rule for pattern, rule in rules if re.fullmatch(pattern, key)), None)


def _place(record: ResultRecord, where: str, key: str) -> Place:
    side = _FULL_SPECTRUM * where.startswith(_FULL_SPECTRUM)
    name, values = where.removeprefix(side), record.metrics[where]
    pooled = _POOLED * key.startswith(_POOLED)
    of_one = record.metrics.get(order_name(0, name), values)  # a mean over the orders of a stream says no counts
    ood = of_one.get("n_ood", math.inf)
    roles = ("near/", "far/") if name == "id" else (f"{name}/",)
    options = (record.config.get("metrics") or {}).get
    return Place(
        key=key.removeprefix(pooled),
        values=values,
        prefix=pooled,
        n=float(of_one.get("n_id", record.metrics.get(f"{side}id", {}).get("n_id", math.inf))),
        m=float(ood) if pooled else min(float(ood), *(_least(record, role) for role in roles)),
        validation=min(_least(record, "id_val/"), _least(record, "ood_val/")),
        classes=int(record.backbone.get("num_classes", 1)),
        price=max(1.0, *(float(options(f"cost_{name}", 0.0)) for name in ("reject_id", "accept_ood", "reject_ood"))),
        draws=max(1, int(options("replicates", 1000))),
    )


def _least(record: ResultRecord, role: str) -> float:
    """The size of the smallest split of a role; infinite if there is none."""
    return min((float(c["n"]) for name, c in record.counts.items() if name.startswith(role)), default=math.inf)


def _share_accepted(at: Place) -> float:
    """φ of `risk@tprφ,fprρ` and of `risk@precκ,recφ`."""
    found = re.search(r"(?:@tpr|,rec)([\d.]+)", at.key)
    return max(float(found.group(1)), 1 / at.n) if found else 1 / at.n


def _discoveries(at: Place) -> float:
    return max(1.0, at.sibling(at.key.replace("bh_fdp", "bh_power"), 0.0) * at.m)


# Patterns are tried in order.
_OF_PAIR: tuple[tuple[str, Rule], ...] = (
    (r"n_(ood|sets)", lambda at: 0.0),
    (r"auroc|oscr", lambda at: SAMPLES / (at.n * at.m)),
    (r"auroc_(first|last)_quarter", lambda at: 16 * SAMPLES / (at.n * at.m)),
    (r"auroc_(low|high)", lambda at: 2 * SAMPLES / (at.n * at.m)),  # its own, and that of DeLong's half width
    (r"conformal_auroc", lambda at: _CORRECTION_STEP * SAMPLES / (at.n * at.m)),
    (r"autc|aufpr|aufnr", lambda at: ROUNDING),
    (r"(aupr|ap)_in", lambda at: SAMPLES / at.n),
    (r"(aupr|ap)_out|oscr_selective", lambda at: SAMPLES / at.m),
    (r"conformal_fpr95", lambda at: _CORRECTION_STEP * SAMPLES / at.n),
    (r"fpr@val", lambda at: SAMPLES / at.n + SAMPLES / at.validation),
    (r"fnr@val", lambda at: SAMPLES / at.m + SAMPLES / at.validation),
    (r"fpr95|fpr@(test|95tnr)|ccr@fpr.+", lambda at: SAMPLES / at.n),
    (r"fpr95_id_positive|fnr@(test|95tnr)|bh_power@.+", lambda at: SAMPLES / at.m),
    (r"bh_fdp@.+", lambda at: SAMPLES / _discoveries(at)),
    (r"detection_error", lambda at: 0.5 * SAMPLES * (1 / at.n + 1 / at.m)),
    (r"cost", lambda at: at.price * SAMPLES * (1 / at.n + 1 / at.m)),
    (r"risk@.+", lambda at: SAMPLES / (_share_accepted(at) * at.n)),
    (r"f1", lambda at: 2 * SAMPLES / at.m),
    (r"accuracy|precision|recall", lambda at: math.sqrt(SAMPLES / at.smaller)),
    (r"f1_threshold", lambda at: math.sqrt(SAMPLES / at.smaller) * max(1.0, abs(at.sibling("f1_threshold", 0.0)))),
)
_OF_ID: tuple[tuple[str, Rule], ...] = (
    (r"n_(id|set_splits)", lambda at: 0.0),
    (r"accuracy|id_val_accuracy", lambda at: ROUNDING),
    (r"(e-)?aurc", lambda at: SAMPLES / at.n),
    # In standard deviations of the ID score, of which a rate of √(k/n) is a like part.
    (r"f1_threshold_(std|range)", lambda at: math.sqrt(SAMPLES / at.smaller)),
    (r"\w+_(coverage(_mean|_std)?|singletons)@.+", lambda at: SAMPLES / at.n),
    (r"\w+_(size(_mean|_std)?|worst_class)@.+", lambda at: SAMPLES * at.classes / at.n),
)


# How a number was made may differ; the number may not.
_NOT_COMPARED = ("provenance", "overrides", "config_digest")
_REASON = "infeasible"  # of a trial: that there is one must be equal, its words may be put otherwise by a later version
_ABSENT = "absent"
_SHOWN = 5
Path = tuple[str, ...]


@dataclass(frozen=True)
class Difference:
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
class Comparison:
    """A record beside its repetition.

    Args:
        equal: how many values are equal, numbers to rounding.
        moved: numbers that differ by no more than another processor can make them.
        differ: everything else; the record reproduces if there is none.
        added: metrics that only the repetition has, because openbench measures more by now.
    """

    equal: int
    moved: tuple[Difference, ...]
    differ: tuple[Difference, ...]
    added: tuple[str, ...]

    @property
    def reproduces(self) -> bool:
        """Whether nothing differs by more than it may."""
        return not self.differ

    def __str__(self) -> str:
        parts = [f"{self.equal} values equal to rounding"]
        if self.moved:
            parts.append(f"{len(self.moved)} moved within what {SAMPLES} samples can move: {_first(self.moved)}")
        if self.added:
            parts.append(f"{len(self.added)} new values, which the record does not have")
        return " · ".join(parts)


def _first(moved: tuple[Difference, ...]) -> str:
    more = f" and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else ""
    return ", ".join(d.moved.removeprefix("metrics.") for d in moved[:_SHOWN]) + more


def compare(old: ResultRecord, new: ResultRecord) -> Comparison:
    """Return what a repetition reproduces of a record, provenance aside.

    Numbers agree if |a − b| ≤ 1e-6 · max(1, |a|). A metric that does not may have moved by its `allowance`, which
    follows from the number of samples it is computed from; so may a number of a tuning trial. Of a setting that is
    infeasible only that it is so is compared, not the wording of the reason. Everything else must be equal.

    Args:
        old: the record on disk.
        new: the repetition.
    """
    first, second = _leaves(plain(old.to_dict())), _leaves(plain(new.to_dict()))
    equal, moved, differ = 0, list[Difference](), list[Difference]()
    added = [path for path in second if path not in first and path[0] == "metrics"]
    for path in sorted((first.keys() | second.keys()) - set(added)):
        a, b = first.get(path, _ABSENT), second.get(path, _ABSENT)
        if not (_is_number(a) and _is_number(b)):
            same, within, allowed = type(a) is type(b) and a == b, False, 0.0
            same = same or (_is_reason(path) and path in first and path in second)
        else:
            allowed = max(_allowed(old, path), ROUNDING * max(1.0, abs(a)))
            same = abs(a - b) <= ROUNDING * max(1.0, abs(a))
            within = abs(a - b) <= allowed * (1 + 1e-9)
        if same:
            equal += 1
        else:
            (moved if within else differ).append(Difference(_dotted(path), a, b, allowed))
    return Comparison(equal, tuple(moved), tuple(differ), tuple(map(_dotted, added)))


def _allowed(record: ResultRecord, path: Path) -> float:
    if path[0] == "metrics" and len(path) == 3:
        return allowance(record, path[1], path[2])
    if path[0] == "trials" and len(path) == 3:
        return of_trial(record, int(path[1].strip("[]")), path[2])
    return 0.0


def _is_reason(path: Path) -> bool:
    return path[0] == "trials" and len(path) == 3 and path[2] == _REASON


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _dotted(path: Path) -> str:
    return re.sub(r"\.(\[\d+\])", r"\1", ".".join(path))


def _leaves(tree: Mapping[str, Any]) -> dict[Path, Any]:
    """Flatten a record to {path: scalar}; empty containers count as values."""
    found: dict[Path, Any] = {}
    pending: list[tuple[Path, Any]] = [((k,), v) for k, v in tree.items() if k not in _NOT_COMPARED]
    while pending:
        path, value = pending.pop()
        if isinstance(value, dict) and value:
            pending += [((*path, name), child) for name, child in value.items()]
        elif isinstance(value, list) and value:
            pending += [((*path, f"[{index}]"), child) for index, child in enumerate(value)]
        else:
            found[path] = value
    return found
