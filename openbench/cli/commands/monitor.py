"""`monitor`: has the stream of images changed since the detector was calibrated?"""

import argparse
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

import openbench
from openbench.cli.process import ALARM, OK
from openbench.detect.monitor.martingale import Bets
from openbench.detect.monitor.monitor import Monitor, Rules
from openbench.detect.monitor.table import SUFFIXES, numbers, table_digest
from openbench.errors import ConfigError, DataError
from openbench.storage.files import replacing

_FORMS = ("png", "svg", "pdf")
_EPILOG = f"""\
Scores are read in the order of the rows; every image is compared with the calibration images and with all images
before it, which gives independent p-values whatever the distribution of the scores. A gambler bets on those being
small, or anything but uniform, and the alarm is raised when the capital has grown 1/level-fold: while nothing changes,
the chance that this ever happens is at most LEVEL. How soon a change is noticed is not promised.

With --state the life goes on from call to call, and a table that was read before is refused. Images that depend on one
another (frames of a video) look like a change; thin them out first.

exit code: 0 no alarm, {ALARM} alarm, 2 bad input.

  python -m openbench monitor detector/ scores.parquet --plot drift.png
  python -m openbench monitor detector/ today.csv --state monitor.state --json || notify
  python -m openbench monitor calibration.csv scores.csv --level 0.001 --bets mixture
"""


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.plot is not None and arguments.plot.suffix.removeprefix(".").lower() not in _FORMS:
        raise ConfigError(f"--plot '{arguments.plot}' — allowed: a name that ends in .png, .svg or .pdf")
    _check_outputs(arguments)
    given = {name: getattr(arguments, name) for name in ("level", "bets", "window", "alpha", "seed")}
    given = {name: value for name, value in given.items() if value is not None}
    rules = Rules(**given)
    calibration = _calibration(arguments.detector)
    tables = [(numbers(path, "score"), table_digest(path)) for path in arguments.scores]
    with _alone(arguments.state):
        monitor = _begun(arguments.state, calibration, rules, given)
        if arguments.reset:
            monitor.reset()
        for path, (scores, digest) in zip(arguments.scores, tables, strict=True):
            try:
                monitor.note_table(digest)
            except DataError as error:
                raise DataError(f"'{path}': {error}") from None
            monitor.update_scores(scores)
        if arguments.plot is not None:  # before these tables count as read
            _draw(monitor, arguments.plot)
        if arguments.state is not None:
            _save(monitor, arguments.state)
    print(json.dumps(monitor.status()) if arguments.json else told(monitor))
    return ALARM if monitor.alarm else OK


def told(monitor: Monitor) -> str:
    """Return what a monitor has to say, in words."""
    rules, status = monitor.rules, monitor.status()
    lines = [f"{monitor.images:,} images against {monitor.cells.n:,} calibration images"]
    if monitor.alarm:
        lines = [f"ALARM at image {monitor.alarm_at:,}: the stream is no longer like the calibration images", *lines]
    else:
        lines = ["no alarm", *lines]
    evidence = (
        f"evidence of a change: {_times(status['log10_wealth'])} to 1 now, {_times(status['log10_peak'])} to 1 at"
    )
    lines.append(
        f"{evidence} the most; the alarm is at {1 / rules.level:,.6g} to 1, and the chance of ever reaching that while "
        f"nothing changes is at most {100 * rules.level:g} %"
    )
    if monitor.windows:
        last = monitor.windows[-1]
        lines.append(
            f"images {last.first:,} to {last.first + last.images - 1:,}: AUROC {last.auroc:.3f} over the calibration "
            f"images (0.5 if nothing has changed; two-sided p = {last.rank_p:.2g} of this window alone), "
            f"{100 * last.flagged:.1f} % flagged at α = {rules.alpha:g}"
        )
    return "\n".join(lines)


def _times(log10: float) -> str:
    return f"{10**log10:.3g}" if abs(log10) < 6 else f"10^{log10:.0f}"


def _calibration(place: Path) -> NDArray[np.float64]:
    """The calibration scores of a detector, or of a table."""
    if place.suffix in SUFFIXES:
        return numbers(place, "score")
    calibration = openbench.load_detector(place).calibration
    if calibration.weights is not None:
        raise DataError(
            f"detector '{place}' was calibrated with weights: its images differ from those to come, so that every "
            "stream would look changed — calibrate without weights, on images like those to come, to watch a stream"
        )
    return np.asarray(calibration.scores, dtype=np.float64)


def _begun(state: Path | None, calibration: NDArray[np.float64], rules: Rules, given: Mapping[str, object]) -> Monitor:
    """A new monitor that follows the rules, or the one whose state is there, with what was given then."""
    if state is None or not state.exists():
        return Monitor(calibration, **asdict(rules))
    monitor = Monitor.load(state, calibration)
    made = asdict(monitor.rules)
    differ = [f"{key}={made[key]}" for key, value in given.items() if made[key] != value]
    if differ:
        raise ConfigError(
            f"--state {state} belongs to a monitor with {', '.join(differ)} — its promise holds for these — leave the "
            "options out, or begin a new life with another file"
        )
    return monitor


def _alone(state: Path | None) -> AbstractContextManager[object]:
    """Hold others back who would go on from the same state."""
    if state is None:
        return nullcontext()
    if state.is_dir():
        raise ConfigError(f"--state {state} is a folder — give the name of a file in it")
    if not state.parent.is_dir():
        raise ConfigError(f"--state {state}: folder '{state.parent}' not found — make it, or give another name")
    return FileLock(state.with_name(f".{state.name}.lock"))


def _save(monitor: Monitor, state: Path) -> None:
    try:
        monitor.save(state)
    except OSError as error:
        raise ConfigError(f"--state {state} cannot be written — {error.strerror or error}") from error


def _draw(monitor: Monitor, path: Path) -> None:
    try:
        with replacing(path) as stream:
            monitor.plot().savefig(stream, format=path.suffix.removeprefix(".").lower(), dpi=150)
    except OSError as error:
        raise ConfigError(
            f"--plot '{path}' cannot be written — {error.strerror or error} — give another name"
        ) from error


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Refuse to write what is read, or one output over the other."""
    if arguments.plot and arguments.state and arguments.plot.absolute() == arguments.state.absolute():
        raise ConfigError(f"--plot {arguments.plot} is also the state — choose another file")
    for option in ("state", "plot"):
        written = getattr(arguments, option)
        for read in (arguments.detector, *arguments.scores):
            if written is not None and written.exists() and read.exists() and written.samefile(read):
                raise ConfigError(f"--{option} {written} would overwrite '{read}', which is read — choose another file")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench monitor",
        description="Watch a stream of scores for a change, with a bound on false alarms over its whole life.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "detector", type=Path, metavar="DETECTOR", help="a saved detector, or a table with the scores of ID images"
    )
    parser.add_argument(
        "scores",
        type=Path,
        nargs="+",
        metavar="SCORES",
        help=f"tables ({', '.join(SUFFIXES)}) with a row per image, in the order of the images, and the column `score`",
    )
    default = Rules()
    parser.add_argument("--state", type=Path, metavar="FILE", help="go on from this state, and save it")
    parser.add_argument("--reset", action="store_true", help="begin a new life first: the alarm is taken back")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the life: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of words")
    parser.add_argument(
        "--level", type=float, metavar="P", help=f"chance of ever raising a false alarm (default: {default.level})"
    )
    parser.add_argument("--bets", choices=get_args(Bets), help=f"on what the gambler bets (default: {default.bets})")
    parser.add_argument("--window", type=int, metavar="N", help=f"images per window (default: {default.window})")
    parser.add_argument("--alpha", type=float, metavar="P", help=f"flagged: p ≤ P (default: {default.alpha})")
    parser.add_argument("--seed", type=int, metavar="N", help=f"of random tie-breaking (default: {default.seed})")
    return parser
