"""The meaning of metric keys: which way is better, and the range of values."""

import math
import re
from functools import lru_cache
from typing import NamedTuple

_ROUNDING = 1e-6  # of means, and of scores that are scaled to [0, 1]


class Bounds(NamedTuple):
    """The values that a metric can have.

    Args:
        low: the smallest; rounding is allowed for.
        high: the largest; likewise.
        whole: whether only whole numbers are meant.
    """

    low: float
    high: float
    whole: bool = False

    def hold(self, value: float) -> bool:
        """Return whether a finite number is one of these values."""
        low, high, whole = self
        return low - _ROUNDING <= value <= high + _ROUNDING and (not whole or value == int(value))

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"a {'whole ' * self.whole}number" + f" of at least {self.low:g}" * math.isfinite(self.low)
        return f"a number from {self.low:g} to {self.high:g}"


_RATE, _AMOUNT, _ANY = Bounds(0.0, 1.0), Bounds(0.0, math.inf), Bounds(-math.inf, math.inf)
_SETS = "(score|(score_)?(lac|aps|raps))"  # kinds of prediction sets
# Pattern of the key without `pooled_`, `_low`, `_high` → whether larger is better (None: no direction), and the range.
_KEYS: tuple[tuple[str, bool | None, Bounds], ...] = (
    (r"(conformal_)?auroc|auroc_(first|last)_quarter|aupr_(in|out)|ap_(in|out)", True, _RATE),
    (r"(conformal_)?fpr95|fpr95_id_positive", False, _RATE),
    (r"detection_error", False, Bounds(0.0, 0.5)),
    (r"f1|accuracy|precision|recall|id_val_accuracy", True, _RATE),
    (r"f1_threshold", None, _ANY),
    (r"f1_threshold_(std|range)|cost", False, _AMOUNT),
    (r"autc|aufpr|aufnr|(fpr|fnr)@(test|95tnr|val)|risk@.+|aurc|e-aurc", False, _RATE),
    (r"augrc", False, Bounds(0.0, 0.5)),
    (r"ece(_equal_mass|_debiased)?", False, _RATE),
    (r"brier", False, Bounds(0.0, 2.0)),
    (r"nll", False, _AMOUNT),
    (r"ds_aurc", False, _RATE),
    (r"ds_f1|oscr(_selective)?|ccr@fpr.+|bh_power@.+", True, _RATE),
    (r"bh_fdp@.+", False, _RATE),
    (rf"{_SETS}_(singletons|worst_class)@.+", True, _RATE),
    (rf"{_SETS}_coverage(_mean|_std)?@.+", None, _RATE),
    (rf"{_SETS}_size(_mean)?@.+", False, _AMOUNT),
    (rf"{_SETS}_size_std@.+", None, _AMOUNT),
    (r"n_(id|ood|sets|set_splits)", None, Bounds(1.0, math.inf, whole=True)),
)


@lru_cache(maxsize=1 << 14)
def _meaning(key: str) -> tuple[bool | None, Bounds]:
    base = re.sub(r"_(low|high)$", "", key.removeprefix("pooled_"))
    return next(((better, values) for pattern, better, values in _KEYS if re.fullmatch(pattern, base)), (None, _ANY))


def bounds(key: str) -> Bounds:
    """Return the values that a metric can have; any number for an unknown key.

    Args:
        key: as `evaluate` returns it, e.g. `auroc`, `pooled_fpr95_low`, `risk@tpr0.8,fpr0.2`.
    """
    return _meaning(key)[1]


def higher_is_better(key: str) -> bool | None:
    """Return whether a larger value of a metric is better; None where there is no direction (counts, thresholds).

    Args:
        key: as `evaluate` returns it, e.g. `auroc`, `pooled_fpr95`, `risk@tpr0.8,fpr0.2`.
    """
    return _meaning(key)[0]


def rate_label(rate: float) -> str:
    """Return a rate as keys spell it: powers of ten as `1e-2`, others as `0.05`."""
    scientific = f"{rate:.0e}".replace("e-0", "e-")
    return scientific if scientific.startswith("1e-") and float(scientific) == rate else f"{rate:g}"
