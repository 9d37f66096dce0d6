"""What the numbers of a record may be: the range of each metric, and intervals that hold their number."""

from collections.abc import Mapping
from functools import lru_cache

from openbench.core.names import WORDS, is_words
from openbench.core.record import LARGEST, ResultRecord, Value, is_number, short
from openbench.errors import RecordError
from openbench.metrics.keys import Bounds, bounds

_UNABLE = "unable"
_FEWEST = 100  # draws; of fewer, the percentiles lie anywhere
_USUAL = 0.9  # intervals of a lower level are so narrow that the number may lie outside
_ROUNDING = 1e-6
_NORMAL = "auroc"


def check_numbers(record: ResultRecord, where: str) -> None:
    """Check every metric of a record.

    Raises:
        RecordError: a value that its key cannot have, or an interval that cannot belong to its number; the first one
            is named.
    """
    for name, values in record.metrics.items():
        for key, number in values.items():
            limits, allowed = _limits(key), ""
            if limits is None:
                allowed = WORDS
            elif not is_number(number):
                allowed = f"a finite number up to {LARGEST:g}, or '{_UNABLE}'" * (number != _UNABLE)
            elif not limits.hold(number):
                allowed = f"{limits}, or '{_UNABLE}'"
            if allowed:
                place = f"metrics.{name}.{key}".encode("unicode_escape").decode()[:60]
                raise RecordError(f"{where}: key '{place}' of the record is {short(number)} — allowed: {allowed}")
    options = record.config.get("metrics")
    level, replicates = (options.get("confidence", 0.95), options.get("replicates", 1000)) if options else (None, 1000)
    _check_intervals(record.metrics, level is not None and level >= _USUAL and replicates >= _FEWEST, where)


@lru_cache(maxsize=1 << 14)
def _limits(key: str) -> Bounds | None:
    """The values that a metric can have; None for what is no key."""
    return bounds(key) if is_words(key) else None


def _check_intervals(metrics: Mapping[str, Mapping[str, Value]], usual: bool, where: str) -> None:
    """Check every `KEY_low` and `KEY_high` against each other and against `KEY`.

    An interval of AUROC is built around its number. Others are percentiles of drawn samples, which may be biased: a
    number may lie as far outside as the interval is wide.

    Args:
        metrics: {set or group: {key: value}}.
        usual: whether so much was drawn, and so little left out, that a number cannot lie far from its interval.
        where: the file's name, for messages.
    """
    ends = ((name, key[:-4], values) for name, values in metrics.items() for key in values if key.endswith("_low"))
    for name, key, values in ends:
        low, value, high = (values.get(known) for known in (f"{key}_low", key, f"{key}_high"))
        if not isinstance(low, float | int) or not isinstance(high, float | int):
            continue
        room = _ROUNDING + (0.0 if key == _NORMAL else high - low)
        known = isinstance(value, float | int) and (key == _NORMAL or usual)
        if low > high:
            interval, allowed = f"{low:.6g} above {high:.6g}", "the lower end first"
        elif known and not low - room <= float(value) <= high + room:  # type: ignore[arg-type]
            interval, allowed = f"[{low:.6g}, {high:.6g}] for {value:.6g}", "an interval that holds its number"
        else:
            continue
        raise RecordError(f"{where}: the interval of '{name}.{key}' in the record is {interval} — allowed: {allowed}")
