"""Whether the interval of a recorded number can be its interval."""

from collections.abc import Mapping
from dataclasses import dataclass

from openbench.core.record import Value
from openbench.errors import RecordError

_FEWEST = 100  # draws; of fewer, the percentiles lie anywhere
_USUAL = 0.9  # intervals of a lower level are so narrow that what is drawn may lie beside the number
_ROUNDING = 1e-6
_NORMAL = "auroc"


@dataclass(frozen=True)
class Drawn:
    """How intervals were made.

    Args:
        level: the confidence level; None if the record does not say.
        replicates: how many times was drawn.
    """

    level: float | None = None
    replicates: int = 1000

    @property
    def usual(self) -> bool:
        """Whether so much was drawn, and so little left out, that a number cannot lie far beside its interval."""
        return self.level is not None and self.level >= _USUAL and self.replicates >= _FEWEST


def check_intervals(metrics: Mapping[str, Mapping[str, Value]], drawn: Drawn, where: str) -> None:
    """Check every `KEY_low` and `KEY_high` against each other and against `KEY`.

    An interval of AUROC is built around its number. Others are percentiles of what was drawn, which may be biased: of
    those, a number may lie as far outside as the interval is wide.

    Args:
        metrics: {set or group: {key: value}}.
        drawn: how they were made.
        where: the file's name, for messages.

    Raises:
        RecordError: an interval that cannot belong to its number; the first one is named.
    """
    for name, values in metrics.items():
        for key in values:
            if key.endswith("_low"):
                _check(name, key.removesuffix("_low"), values, drawn, where)


def _check(name: str, key: str, values: Mapping[str, Value], drawn: Drawn, where: str) -> None:
    low, value, high = (values.get(known) for known in (f"{key}_low", key, f"{key}_high"))
    if not isinstance(low, float | int) or not isinstance(high, float | int):
        return
    room = _ROUNDING + (0.0 if key == _NORMAL else high - low)
    known = isinstance(value, float | int) and (key == _NORMAL or drawn.usual)
    if low > high:
        found, allowed = f"{low:.6g} above {high:.6g}", "the lower end first"
    elif known and not low - room <= float(value) <= high + room:  # type: ignore[arg-type]
        found, allowed = f"[{low:.6g}, {high:.6g}] for {value:.6g}", "an interval that holds its number"
    else:
        return
    raise RecordError(f"{where}: the interval of '{name}.{key}' in the record — found {found} — allowed: {allowed}")
