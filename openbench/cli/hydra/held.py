"""What the jobs of a sweep leave to the next one in the process that carries them out."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openbench.engine.kept import Kept

_HELD: dict[Path, "Kept"] = {}  # by the sweep's folder; launchers call jobs without a place to hand anything on


def held(sweep: Path | None) -> "Kept | None":
    """Return what this process keeps for the jobs of a sweep; None for a job that is alone.

    Args:
        sweep: its folder.
    """
    if sweep is None:
        return None
    if sweep not in _HELD:
        from openbench.engine.kept import Kept

        _HELD.clear()
        _HELD[sweep] = Kept()
    return _HELD[sweep]


def forget() -> None:
    """Keep nothing: a job failed, or the sweep has ended."""
    _HELD.clear()
