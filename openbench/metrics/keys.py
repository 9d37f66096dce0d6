"""What a metric key means to a reader: which way is better, and which values there can be."""

import math
import re
from functools import lru_cache
from typing import NamedTuple

_BETTER: tuple[tuple[str, bool], ...] = (
    # Patterns are tried in order on the key without `pooled_` and `_low`/`_high`.
    (r"(conformal_)?auroc|auroc_(first|last)_quarter|aupr_(in|out)|ap_(in|out)", True),
    (r"(conformal_)?fpr95|fpr95_id_positive|detection_error", False),
    (r"f1|accuracy|precision|recall|id_val_accuracy", True),
    (r"autc|aufpr|aufnr|f1_threshold_(std|range)", False),
    (r"(fpr|fnr)@(test|95tnr|val)", False),
    (r"risk@.+|cost|aurc|e-aurc", False),
    (r"oscr(_selective)?|ccr@fpr.+", True),
    (r"bh_power@.+", True),
    (r"bh_fdp@.+", False),
    (r"(score|(score_)?(lac|aps|raps))_size(_mean)?@.+", False),
    (r"(score|(score_)?(lac|aps|raps))_(singletons|worst_class)@.+", True),
)
# Of keys that are not rates; every other key of `_BETTER`, and of `_RATES`, is a rate.
_BOUNDS: tuple[tuple[str, float, float], ...] = (
    (r"detection_error", 0.0, 0.5),
    (r"f1_threshold", -math.inf, math.inf),
    (r"f1_threshold_(std|range)|cost|(score|(score_)?(lac|aps|raps))_size(_mean|_std)?@.+", 0.0, math.inf),
)
_RATES = r"id_val_accuracy|(score|(score_)?(lac|aps|raps))_(coverage(_mean|_std)?|singletons|worst_class)@.+"
_COUNTS = r"n_(id|ood|sets|set_splits)"
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
        """Whether a finite number is one of these values."""
        low, high, whole = self
        return low - _ROUNDING <= value <= high + _ROUNDING and (not whole or value == int(value))

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"a {'whole ' * self.whole}number" + f" of at least {self.low:g}" * math.isfinite(self.low)
        return f"a number from {self.low:g} to {self.high:g}"


@lru_cache(maxsize=1 << 14)
def bounds(key: str) -> Bounds:
    """Return the values that a metric can have; any number for a key that is not known.

    Args:
        key: as `evaluate` returns it, e.g. `auroc`, `pooled_fpr95_low`, `risk@tpr0.8,fpr0.2`.
    """
    base = _base(key)
    if re.fullmatch(_COUNTS, base):
        return Bounds(1.0, math.inf, whole=True)
    for pattern, low, high in _BOUNDS:
        if re.fullmatch(pattern, base):
            return Bounds(low, high)
    rate = re.fullmatch(_RATES, base) or any(re.fullmatch(pattern, base) for pattern, _ in _BETTER)
    return Bounds(0.0, 1.0) if rate else Bounds(-math.inf, math.inf)


def higher_is_better(key: str) -> bool | None:
    """Return whether a larger value of `key` is better; None where there is no direction (counts, thresholds).

    Args:
        key: as `evaluate` returns it, e.g. `auroc`, `pooled_fpr95`, `risk@tpr0.8,fpr0.2`.
    """
    base = _base(key)
    return next((better for pattern, better in _BETTER if re.fullmatch(pattern, base)), None)


def _base(key: str) -> str:
    """The metric's own name: the key without `pooled_`, `_low` and `_high`."""
    return re.sub(r"_(low|high)$", "", key.removeprefix("pooled_"))


def rate_label(rate: float) -> str:
    """Return how a rate is written in a key: powers of ten as `1e-2`, others as `0.05`."""
    scientific = f"{rate:.0e}".replace("e-0", "e-")
    return scientific if scientific.startswith("1e-") and float(scientific) == rate else f"{rate:g}"
