"""The state of a monitor as a file: JSON under its own digest, written whole."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from openbench.detect.monitor.martingale import Capital
from openbench.detect.monitor.windows import Window
from openbench.errors import DataError, OpenbenchError
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed

if TYPE_CHECKING:
    from openbench.detect.monitor.monitor import Monitor

_SCHEMA = 1
_M = TypeVar("_M", bound="Monitor")


def write_state(monitor: "Monitor", path: Path) -> None:
    """Write the state of a monitor.

    Raises:
        OSError: it cannot be written; an older state is then still there.
    """
    seen = np.flatnonzero(monitor.ranks.seen)
    staked = monitor.capital.log_staked
    content = {
        "schema": _SCHEMA,
        "rules": asdict(monitor.rules),
        "calibration": {
            "images": monitor.cells.n,
            "scores": bool(monitor.cells.values.size),
            "digest": monitor.cells.digest,
        },
        "seen": [[int(cell), int(monitor.ranks.seen[cell])] for cell in seen],
        "random": monitor.ranks.random.bit_generator.state,
        "images": monitor.images,
        "log_staked": [float(value) if np.isfinite(value) else None for value in staked],
        "alarm_at": monitor.alarm_at,
        "log10_peak": monitor.log10_peak,
        "curve": asdict(monitor.curve),
        "windows": [asdict(window) for window in monitor.windows],
        "pending": monitor.pending,
        "tables": monitor.tables,
    }
    write_sealed(path, json.dumps(content, allow_nan=False).encode() + b"\n")


def read_state(kind: type[_M], path: Path, calibration: ArrayLike | None) -> _M:
    """Return the monitor whose state is in a file.

    Args:
        kind: the class to make.
        path: of the file.
        calibration: the calibration scores, if it was made with scores.

    Raises:
        DataError: no such file, changed, of another version, or of other calibration scores.
    """
    try:
        content = json.loads(read_sealed(path))
    except FileNotFoundError:
        raise DataError(f"state '{path}' not found — save(path) writes one") from None
    except (DamagedError, ValueError) as error:
        raise DataError(f"{error} — restore it, or delete it and begin a new life of the monitor") from error
    if content.get("schema") != _SCHEMA:
        raise DataError(f"'{path}': schema {content.get('schema')!r} — this version reads schema {_SCHEMA}")
    made = content["calibration"]
    if made["scores"] and calibration is None:
        raise DataError(
            f"'{path}' belongs to a monitor with calibration scores — found none — load(path, calibration=scores)"
        )
    try:
        monitor = kind(calibration if made["scores"] else int(made["images"]), **content["rules"])  # type: ignore[arg-type]
    except OpenbenchError as error:
        raise DataError(f"'{path}': {error}") from error
    if monitor.cells.digest != made["digest"]:
        raise DataError(
            f"'{path}' belongs to other calibration scores: {made['images']} images, digest {made['digest']} — found "
            f"{monitor.cells.n} images, digest {monitor.cells.digest} — give the scores that it was made with, or "
            "begin a new life with another file"
        )
    _fill(monitor, content)
    return monitor


def _fill(monitor: "Monitor", content: dict[str, Any]) -> None:
    monitor.ranks.restore([(cell, count) for cell, count in content["seen"]], content["random"])
    staked = [-np.inf if value is None else value for value in content["log_staked"]]
    monitor.capital = Capital(np.array(staked, dtype=np.float64), content["images"])
    monitor.alarm_at, monitor.log10_peak = content["alarm_at"], content["log10_peak"]
    monitor.curve.stride, monitor.curve.log10 = content["curve"]["stride"], content["curve"]["log10"]
    monitor.windows = [Window(**window) for window in content["windows"]]
    monitor.pending, monitor.tables = content["pending"], content["tables"]
