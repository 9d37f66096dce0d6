"""`fit`, `score`, `monitor` and `serve`: detectors with a guarantee, for images of one's own."""

import csv
import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

import openbench
from openbench.cli import options
from openbench.cli.process import ALARM, FAILED, OK, writing
from openbench.detect.monitor.martingale import Bets
from openbench.detect.monitor.monitor import Monitor, Rules
from openbench.detect.monitor.table import SUFFIXES, numbers
from openbench.detect.serve.images import Limits
from openbench.digest import file_sha256
from openbench.errors import ConfigError, DataError, OpenbenchError, did_you_mean
from openbench.installation import pip_install
from openbench.paths import writable
from openbench.storage.files import replacing

logger = logging.getLogger(__name__)

_RULES = Rules()
# Key → its value where it is left out; the others are overrides of the config.
_OWN: dict[str, Any] = {
    "alpha": 0.05,
    "delta": 0.05,
    "guarantee": "marginal",
    "correction": "monte_carlo",
    "coverage": None,
    "calibration": "id_test",
    "network": "weights",
    "out": None,
}
_TABLES = ("parquet", "csv", "jsonl")
_COLUMNS = (
    "image", "score", "p_value", "p_value_conditional", "is_ood", "label", "label_name", "prediction_set", "error",
)  # fmt: skip
_PICTURES = ("png", "svg", "pdf")
_LIBRARIES = ("starlette", "uvicorn", "python_multipart", "prometheus_client")
_LOCAL = ("127.0.0.1", "::1", "localhost")
_FIT = """\
keys of its own, beside the overrides of `run`:
  out=PATH              a new folder, or a file that ends in .zip
  alpha=0.05            share of ID images that may be called OOD
  guarantee=marginal    on average over calibration sets; conditional: for the set at hand, with probability 1 - delta
  delta=0.05            probability that the calibration set is an unlucky one
  correction=monte_carlo  of calibration-conditional p-values
  coverage=null         of prediction sets; null = 1 - alpha
  network=weights       how it is kept; onnx: a graph that onnxruntime runs, for networks whose classifier is text
  calibration=id_test   the ID images to calibrate on; id_val only for what was neither tuned nor fitted on it

  python -m openbench fit +benchmark=cifar10 backbone=resnet20_cifar10 method=knn alpha=0.05 out=detector/
  python -m openbench score detector/ photos/ camera.jpg > scores.parquet
"""
_SCORE = """\
Folders are searched for images, also below them; the rows are in the order of the names. An image that cannot be read
has a row with its error, and the exit code is then 1.

  python -m openbench score detector/ photos/ camera.jpg > scores.parquet
  python -m openbench score detector.zip photos/ --out scores.csv
"""
_MONITOR = f"""\
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
_SERVE = """\
POST /predict   one image as the body, or several as the files of a form; JPEG, PNG, WEBP or BMP
                answers {"predictions": [{"score": …, "p_value": …, "is_ood": …, "label_name": …, …}]}
GET /health     200 while it takes requests
GET /metrics    counters in Prometheus' text format
GET /           what is promised, in words, and the classes

There is no encryption and no password: it listens on this machine only, and what is reached from elsewhere belongs
behind a proxy that has both. SIGTERM or Ctrl-C ends it when the requests under way are answered.

  python -m openbench serve detector/
  curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/predict
  curl -F a=@one.png -F b=@two.png http://127.0.0.1:8000/predict
"""


@click.command(cls=options.Command, epilog=_FIT)
@click.argument("words", nargs=-1, required=True, metavar="KEY=VALUE…")
def fit(words: tuple[str, ...]) -> int:
    """Fit a method on a benchmark's ID images, calibrate it on held-out ones, and write a detector.

    KEY=VALUE: +benchmark=NAME backbone=NAME method=NAME …
    """
    from openbench.storage.yaml_file import parse_yaml

    own, overrides = dict(_OWN), list[str]()
    for text in words:
        key, sign, value = text.partition("=")
        if sign and key in _OWN:
            own[key] = value if key == "out" else parse_yaml(value, f"'{text}'")
        else:
            overrides.append(text)
            _refuse_near(key)
    if not own["out"]:
        raise ConfigError("out is not given — say where the detector goes, e.g. out=detector/")
    out = Path(own.pop("out"))
    if out.exists():
        raise ConfigError(
            f"out='{out}' exists — a detector is written to a new place — delete it, or give another path"
        )
    writable(out, "out")
    from openbench.compose.composed import composed
    from openbench.detect.calibration import Terms
    from openbench.detect.from_benchmark import Held, fit_on_benchmark
    from openbench.results.escape import console, console_lines

    places = {key: own.pop(key) for key in ("calibration", "network")}
    held = Held(Terms(**own), **places)
    job = composed("run", overrides)
    detector, measured = fit_on_benchmark(job.config, job.runtime, held)
    digest = detector.save(out, held.network)
    try:
        openbench.load_detector(out)  # one that could not be loaded is of no use
    except OpenbenchError:
        shutil.rmtree(out, ignore_errors=True)
        out.unlink(missing_ok=True)
        raise
    print(console_lines(detector.promise))
    for name, share in measured.items():
        print(f"of {name}, which it has not seen: {100 * share:.2f} % called OOD")
    for part, licence in detector.about["licences"].items():
        print(console_lines(f"licence of the {part}: {licence}"))
    print(f"written {console(str(out))}, digest {digest}")
    return OK


@click.command(cls=options.Command, epilog=_SCORE)
@click.argument("detector", type=options.FILE, metavar="DETECTOR")
@click.argument("images", type=options.FILE, nargs=-1, required=True, metavar="IMAGE…")
@click.option(
    "--format", "form", type=click.Choice(_TABLES), help="default: of --out, else csv on a terminal, parquet elsewhere"
)
@click.option("--out", type=options.FILE, metavar="FILE", help="where the rows go (default: standard output)")
@click.option("--group", metavar="NAME", help="of all these images, for a detector calibrated with groups")
@click.option("--digest", metavar="SHA256", help="that the detector must have, as `fit` printed it")
@click.option("--device", default="cpu", help="cpu, cuda or auto (default: cpu)")
def score(
    *,
    detector: Path,
    images: tuple[Path, ...],
    form: str | None,
    out: Path | None,
    group: str | None,
    digest: str | None,
    device: str,
) -> int:
    """Score image files with a detector: score, p-values, decision, class and prediction set of each.

    DETECTOR is the folder or .zip that `fit` wrote, IMAGE an image file or a folder of them.
    """
    chosen = _format(form, out)
    files = list(_images(images))
    if out is not None and not out.resolve().parent.is_dir():
        raise DataError(f"--out '{out}': its folder does not exist — make it first")
    loaded = openbench.load_detector(detector, device=device, digest=digest)
    rows = [row for part in _parts(files, loaded.batch_size) for row in _rows(loaded, part, group)]
    content = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}[chosen](rows)
    if out is None:
        sys.stdout.buffer.write(content)
    else:
        from openbench.storage.files import write_whole

        write_whole(out, content)
    failed = [row for row in rows if row["error"]]
    flagged = sum(bool(row["is_ood"]) for row in rows)
    print(
        f"{len(rows)} images, {flagged} called OOD at α = {loaded.alpha:g}"
        + (f", {len(failed)} could not be read" if failed else ""),
        file=sys.stderr,
    )
    return FAILED if failed else OK


@click.command(cls=options.Command, epilog=_MONITOR)
@click.argument("detector", type=options.FILE, metavar="DETECTOR")
@click.argument("scores", type=options.FILE, nargs=-1, required=True, metavar="SCORES…")
@click.option("--state", type=options.FILE, metavar="FILE", help="go on from this state, and save it")
@click.option("--reset", is_flag=True, help="begin a new life first: the alarm is taken back")
@click.option("--plot", type=options.FILE, metavar="FILE", help="draw the life: .png, .svg or .pdf")
@click.option("--json", "as_json", is_flag=True, help="print one line of JSON instead of words")
@click.option(
    "--level", type=float, metavar="P", help=f"chance of ever raising a false alarm (default: {_RULES.level})"
)
@click.option("--bets", type=click.Choice(get_args(Bets)), help=f"on what the gambler bets (default: {_RULES.bets})")
@click.option("--window", type=int, metavar="N", help=f"images per window (default: {_RULES.window})")
@click.option("--alpha", type=float, metavar="P", help=f"flagged: p ≤ P (default: {_RULES.alpha})")
@click.option("--seed", type=int, metavar="N", help=f"of random tie-breaking (default: {_RULES.seed})")
def monitor(
    *,
    detector: Path,
    scores: tuple[Path, ...],
    state: Path | None,
    reset: bool,
    plot: Path | None,
    as_json: bool,
    **rules: Any,
) -> int:
    """Watch a stream of scores for a change, with a bound on false alarms over its whole life.

    DETECTOR is a saved detector, or a table with the scores of ID images; SCORES are tables (.csv, .parquet) with a row
    per image, in the order of the images, and the column `score`.
    """
    if plot is not None and plot.suffix.removeprefix(".").lower() not in _PICTURES:
        raise ConfigError(f"--plot '{plot}' — allowed: a name that ends in .png, .svg or .pdf")
    _check_outputs(state, plot, [detector, *scores])
    given = {name: value for name, value in rules.items() if value is not None}
    calibration = _calibration(detector)
    tables = [(numbers(path, "score"), file_sha256(path)) for path in scores]
    with _alone(state):
        watched = _begun(state, calibration, given)
        if reset:
            watched.reset()
        for path, (values, digest) in zip(scores, tables, strict=True):
            try:
                watched.note_table(digest)
            except DataError as error:
                raise DataError(f"'{path}': {error}") from None
            watched.update_scores(values)
        if plot is not None:  # before these tables count as read
            with writing(plot, "--plot"), replacing(plot) as stream:
                watched.plot().savefig(stream, format=plot.suffix.removeprefix(".").lower(), dpi=150)
        if state is not None:
            with writing(state, "--state"):
                watched.save(state)
    print(json.dumps(watched.status()) if as_json else _in_words(watched))
    return ALARM if watched.alarm else OK


def _limit_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add an option for each limit, explained by the line in the docstring of Limits."""
    meanings = dict(line.strip().partition(": ")[::2] for line in (Limits.__doc__ or "").splitlines())
    for field in reversed(fields(Limits)):
        name, told = f"--{field.name.replace('_', '-')}", meanings.get(field.name, "").rstrip(".;,")
        kind = int if isinstance(field.default, int) else float
        told = f"{told} (default: {field.default:,})"
        command = click.option(name, type=kind, default=field.default, metavar="N", help=told)(command)
    return command


@click.command(cls=options.Command, epilog=_SERVE)
@click.argument("detector", type=options.FILE, metavar="DETECTOR")
@click.option("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, metavar="N", help="0 takes a free one (default: 8000)"
)
@_limit_options
def serve(detector: Path, host: str, port: int, **of_requests: Any) -> int:
    """Answer HTTP requests with a saved detector's predictions."""
    limits = Limits(**of_requests)
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serve needs {', '.join(missing)}, which is not installed — {pip_install('serve')}")
    from openbench.detect.serve import app

    loaded = openbench.load_detector(detector)

    def predict(images: Sequence[Any]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = loaded.predict(list(images)).rows()
        return rows

    try:
        predict([np.zeros((8, 8, 3), np.uint8)])  # what takes time once is done before the first request
    except DataError as error:
        raise ConfigError(f"detector '{detector}' cannot answer for an image alone — {error}") from error
    about = {"promise": loaded.promise, "alpha": loaded.alpha, "classes": list(loaded.class_names)}
    if host not in _LOCAL:
        logger.info(f"{host} can be reached from other machines, without encryption and without a password")
    app.serve(predict, about, limits, (host, port))
    return OK


def _refuse_near(key: str) -> None:
    near = did_you_mean(key, _OWN)
    if near and not key.startswith(("+", "~")) and "." not in key and key not in ("tune", "seed", "runtime", "metrics"):
        raise ConfigError(f"key '{key}' not found{near} (python -m openbench fit --help)")


def _format(asked: str | None, out: Path | None) -> str:
    if asked is not None:
        return asked
    if out is not None:
        found = out.suffix.removeprefix(".")
        if found not in _TABLES:
            raise DataError(f"--out '{out}' ends in none of .{', .'.join(_TABLES)} — name the format: --format csv")
        return found
    return "csv" if sys.stdout.isatty() else "parquet"


def _images(given: Sequence[Path]) -> Iterator[Path]:
    """The image files that were named, and those below folders that were."""
    from openbench.data.own.images import SUFFIXES

    for place in given:
        if place.is_dir():
            found = sorted(
                Path(folder) / name
                for folder, _, names in os.walk(place)
                for name in names
                if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES
            )
            if not found:
                raise DataError(f"'{place}' holds no images — files ending in {', '.join(sorted(SUFFIXES))} expected")
            yield from found
        elif place.exists():
            yield place
        else:
            raise DataError(f"'{place}' not found — an image or a folder of images expected")


def _parts(files: Sequence[Path], size: int) -> Iterator[Sequence[Path]]:
    yield from (files[start : start + size] for start in range(0, len(files), size))


def _rows(detector: Any, files: Sequence[Path], group: str | None) -> list[dict[str, Any]]:
    """A row per file; those that cannot be read have an error in place of everything else."""
    from openbench.data.sources.items import decode

    images, errors = {}, {}
    for place, file in enumerate(files):
        try:
            images[place] = decode(file)
        except DataError as error:
            errors[place] = str(error).partition(" — get the file again")[0]
    found = detector.judged(list(images.values()), groups=group).rows() if images else []
    told = dict(zip(images, found, strict=True))
    empty = dict.fromkeys(_COLUMNS[1:-1])
    return [
        {"image": str(file), **told.get(place, empty), "error": errors.get(place)} for place, file in enumerate(files)
    ]


def _csv(rows: list[dict[str, Any]]) -> bytes:
    from openbench.results.escape import csv_row

    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(_COLUMNS)
    for row in rows:
        held = row["prediction_set"]
        cells = {**row, "prediction_set": None if held is None else " ".join(map(str, held))}
        writer.writerow(csv_row("" if cells[name] is None else cells[name] for name in _COLUMNS))
    return stream.getvalue().encode("utf-8", "backslashreplace")


def _jsonl(rows: list[dict[str, Any]]) -> bytes:
    lines = (json.dumps({name: row[name] for name in _COLUMNS}, ensure_ascii=True) + "\n" for row in rows)
    return "".join(lines).encode()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {
        "image": pa.string(), "score": pa.float32(), "p_value": pa.float64(), "p_value_conditional": pa.float64(),
        "is_ood": pa.bool_(), "label": pa.int64(), "label_name": pa.string(),
        "prediction_set": pa.list_(pa.int64()), "error": pa.string(),
    }  # fmt: skip
    named = [{**row, "image": row["image"].encode("utf-8", "backslashreplace").decode()} for row in rows]
    stream = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(named, schema=pa.schema(kinds)), stream)
    return stream.getvalue()


def _in_words(monitor: Monitor) -> str:
    """What a monitor has to say, in words."""
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


def _begun(state: Path | None, calibration: NDArray[np.float64], given: Mapping[str, Any]) -> Monitor:
    """A new monitor with the rules that were given, or the one whose state is there, with what was given then."""
    if state is None or not state.exists():
        return Monitor(calibration, **asdict(Rules(**given)))
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


def _check_outputs(state: Path | None, plot: Path | None, read: Sequence[Path]) -> None:
    """Refuse to write what is read, or one output over the other."""
    if plot and state and plot.absolute() == state.absolute():
        raise ConfigError(f"--plot {plot} is also the state — choose another file")
    for option, written in (("state", state), ("plot", plot)):
        for file in read:
            if written is not None and written.exists() and file.exists() and written.samefile(file):
                raise ConfigError(f"--{option} {written} would overwrite '{file}', which is read — choose another file")
