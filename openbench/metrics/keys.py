"""What a metric key means to a reader of tables: which way is better."""

import re

_BETTER: tuple[tuple[str, bool], ...] = (
    # Patterns are tried in order on the key without `pooled_` and `_low`/`_high`.
    (r"(conformal_)?auroc|aupr_(in|out)|ap_(in|out)", True),
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


def higher_is_better(key: str) -> bool | None:
    """Return whether a larger value of `key` is better; None where there is no direction (counts, thresholds).

    Args:
        key: as `evaluate` returns it, e.g. `auroc`, `pooled_fpr95`, `risk@tpr0.8,fpr0.2`.
    """
    base = re.sub(r"_(low|high)$", "", key.removeprefix("pooled_"))
    return next((better for pattern, better in _BETTER if re.fullmatch(pattern, base)), None)


def rate_label(rate: float) -> str:
    """Return how a rate is written in a key: powers of ten as `1e-2`, others as `0.05`."""
    scientific = f"{rate:.0e}".replace("e-0", "e-")
    return scientific if scientific.startswith("1e-") and float(scientific) == rate else f"{rate:g}"
