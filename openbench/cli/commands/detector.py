"""`fit`, `score`, `monitor` and `serve`: detectors with a guarantee, for your own images."""

import csv
import io
import json
import logging
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

import openbench
from openbench.cli import options
from openbench.cli.output import picture_format
from openbench.cli.process import ALARM, FAILED, OK, writing
from openbench.detect.monitor import Bets, Monitor, MonitorRules
from openbench.detect.serve.images import ServerLimits
from openbench.digest import file_sha256
from openbench.errors import ConfigError, DataError, NotApplicableError, pip_install
from openbench.paths import writable
from openbench.results.escape import console, console_lines, csv_row, one_line
from openbench.storage.files import replacing, write_whole
from openbench.storage.yaml_file import parse_yaml

if TYPE_CHECKING:
    from openbench.detect.detector import Detector

logger = logging.getLogger(__name__)

_TERMS = ("alpha", "delta", "guarantee", "correction", "coverage")
_KEYS = (*_TERMS, "calibration", "network", "out")
_TABLES = ("parquet", "csv", "jsonl")
_SUFFIXES = (".csv", ".jsonl", ".parquet")
_COLUMNS = (
    "image", "score", "p_value", "p_value_conditional", "is_ood", "label", "label_name", "prediction_set", "error",
)  # fmt: skip
_LIBRARIES = ("starlette", "uvicorn", "python_multipart", "prometheus_client")
_LOCAL = ("127.0.0.1", "::1", "localhost")


@click.command(cls=options.Command)
@click.argument("words", nargs=-1, required=True, metavar="KEY=VALUE…")
@options.config_dir
def fit(args: Namespace) -> int:
    """Fit a method on a benchmark's ID images, calibrate it on held-out ones, and write a detector.

    KEY=VALUE are the overrides of `run` (+benchmark=NAME backbone=NAME method=NAME …), and

      out=PATH                a new folder, or a file that ends in .zip; required
      alpha=0.05              share of ID images that may be called OOD
      guarantee=marginal      holds on average over calibration sets; conditional: for the set at hand, with
                              probability 1 - delta
      delta=0.05              probability that the calibration set is an unlucky one
      correction=monte_carlo  correction of calibration-conditional p-values
      coverage=null           coverage of prediction sets; null = 1 - alpha
      network=weights         how the network is saved; onnx: a graph for onnxruntime, for classifiers made of text
      calibration=id_test     the ID images to calibrate on; id_val only if nothing was tuned or fitted on it

    Examples:
      python -m openbench fit +benchmark=cifar10 backbone=resnet20_cifar10 method=knn alpha=0.05 out=detector/
      python -m openbench score detector/ photos/ camera.jpg > scores.parquet
    """
    from openbench.compose.config import composed
    from openbench.detect.calibration import Terms
    from openbench.detect.from_benchmark import fit_on_benchmark

    settings, overrides = dict[str, Any](), list[str]()
    for word in args.words:
        key, sign, value = word.partition("=")
        if sign and key in _KEYS:
            settings[key] = value if key == "out" else parse_yaml(value, f"'{word}'")
        else:
            overrides.append(word)
    if not settings.get("out"):
        raise ConfigError("out is not given — say where to write the detector, e.g. out=detector/")
    out = Path(settings.pop("out"))
    if out.exists():
        raise ConfigError(f"out='{out}' exists — delete it, or give another path")
    writable(out, "out")
    terms = Terms(**{key: settings.pop(key) for key in _TERMS if key in settings})
    job = composed("run", overrides, args.config_dir)
    detector, measured = fit_on_benchmark(job.config, job.runtime, terms, **settings)
    digest = detector.save(out, settings.get("network", "weights"))
    openbench.load_detector(out)  # one that cannot be loaded is of no use
    print(console_lines(detector.promise))
    for name, share in measured.items():
        print(f"of {name}, which it has not seen: {100 * share:.2f} % called OOD")
    for part, licence in detector.about["licences"].items():
        print(console_lines(f"licence of the {part}: {licence}"))
    print(f"written {console(str(out))}, digest {digest}")
    return OK


@click.command(cls=options.Command)
@click.argument("detector", type=options.FILE, metavar="DETECTOR")
@click.argument("images", type=options.FILE, nargs=-1, required=True, metavar="IMAGE…")
@click.option(
    "--format", "form", type=click.Choice(_TABLES), help="default: that of --out, else csv on a terminal, else parquet"
)
@options.file_option("--out", "FILE", "file to write the rows to (default: standard output)")
@click.option("--group", metavar="NAME", help="group of all these images, for a detector calibrated with groups")
@click.option("--digest", metavar="SHA256", help="digest that the detector must have, as printed by `fit`")
@click.option("--device", default="cpu", help="cpu, cuda or auto (default: cpu)")
def score(args: Namespace) -> int:
    """Score image files with a detector: score, p-values, decision, class and prediction set of each.

    DETECTOR is the folder or .zip that `fit` wrote, IMAGE an image file or a folder, which is searched with all its
    subfolders, in the order of the names. An image that cannot be read has a row with its error and exit code 1.

    Examples:
      python -m openbench score detector/ photos/ camera.jpg > scores.parquet
      python -m openbench score detector.zip photos/ --out scores.csv
    """
    form = args.form or _format_of(args.out)
    files = list(_images(args.images))
    if args.out is not None and not args.out.resolve().parent.is_dir():
        raise DataError(f"--out '{args.out}': its folder does not exist — make it first")
    detector = _of_images(args.detector, device=args.device, digest=args.digest)
    starts = range(0, len(files), detector.batch_size)
    rows = [row for at in starts for row in _rows(detector, files[at : at + detector.batch_size], args.group)]
    content = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}[form](rows)
    if args.out is None:
        sys.stdout.buffer.write(content)
    else:
        write_whole(args.out, content)
    failed, flagged = sum(bool(row["error"]) for row in rows), sum(bool(row["is_ood"]) for row in rows)
    more = f", {failed} could not be read" if failed else ""
    print(f"{len(rows)} images, {flagged} called OOD at α = {detector.alpha:g}{more}", file=sys.stderr)
    return FAILED if failed else OK


@click.command(cls=options.Command)
@click.argument("detector", type=options.FILE, metavar="DETECTOR")
@click.argument("scores", type=options.FILE, nargs=-1, required=True, metavar="SCORES…")
@options.file_option("--state", "FILE", "continue from this state, and save the new one")
@click.option("--reset", is_flag=True, help="start again: clears the alarm and the evidence so far")
@options.file_option("--plot", "FILE", "draw the evidence over time: .png, .svg or .pdf")
@click.option("--json", "as_json", is_flag=True, help="print one line of JSON instead of words")
@options.fields_of(MonitorRules, bets=click.Choice(get_args(Bets)))
def monitor(args: Namespace) -> int:
    """Watch a stream of scores for a change, with a bound on false alarms over the whole stream.

    DETECTOR is a saved detector, or a table with the scores of ID images. SCORES are tables (.csv, .jsonl, .parquet)
    with a row per image, in the order of the images, and the column `score`.

    Each image is compared with the calibration images and all images before it. This gives independent p-values,
    whatever the distribution of the scores. A gambler bets that they are small, or not uniform; the alarm is raised
    when the capital has grown 1/LEVEL-fold. While nothing changes, the chance that this ever happens is at most LEVEL.
    Nothing is promised about how soon a change is noticed.

    With --state the stream continues from call to call, and a table that was read before is refused. Images that depend
    on one another (frames of a video) look like a change: thin them out first.

    Exit code: 0 no alarm, 3 alarm, 2 bad input.

    Examples:
      python -m openbench monitor detector/ scores.parquet --plot drift.png
      python -m openbench monitor detector/ today.csv --state monitor.state --json || notify
      python -m openbench monitor calibration.csv scores.csv --level 0.001 --bets mixture
    """
    if args.reset and args.state is None:
        raise ConfigError("--reset has no effect without --state — name the file of the monitor: --state FILE")
    form = picture_format(args.plot)
    calibration = _calibration(args.detector)
    tables = [(_numbers(path), file_sha256(path)) for path in args.scores]
    if args.state is not None and args.state.is_dir():
        raise ConfigError(f"--state {args.state} is a folder — give the name of a file in it")
    # So that two calls do not continue from the same state.
    with FileLock(args.state.with_name(f".{args.state.name}.lock")) if args.state else nullcontext():
        watched = _load_or_begin(args.state, calibration, options.chosen(args, MonitorRules))
        if args.reset:
            watched.reset()
        for path, (values, digest) in zip(args.scores, tables, strict=True):
            try:
                watched.note_table(digest)
            except DataError as error:
                raise DataError(f"'{path}': {error}") from None
            watched.update_scores(values)
        if args.plot is not None:  # before these tables count as read
            with writing(args.plot, "--plot"), replacing(args.plot) as stream:
                watched.plot().savefig(stream, format=form, dpi=150)
        if args.state is not None:
            with writing(args.state, "--state"):
                watched.save(args.state)
    print(json.dumps(watched.status()) if args.as_json else _in_words(watched))
    return ALARM if watched.alarm else OK


@click.command(cls=options.Command)
@click.argument("detector", type=options.FILE, metavar="DETECTOR")
@click.option("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, metavar="N", help="0 takes a free one (default: 8000)"
)
@options.fields_of(ServerLimits)
def serve(args: Namespace) -> int:
    """Answer HTTP requests with the predictions of a saved detector.

    POST /predict   one image as the body, or several as the files of a form; JPEG, PNG, WEBP or BMP
                    answers {"predictions": [{"score": …, "p_value": …, "is_ood": …, "label_name": …, …}]}
    GET /health     200 while it takes requests
    GET /metrics    counters in Prometheus' text format
    GET /           the detector's guarantee in words, and its classes

    There is no encryption and no password, so it listens on this machine only. Put it behind a proxy that has both if
    it is to be reached from elsewhere. SIGTERM or Ctrl-C stops it once the current requests are answered.

    Examples:
      python -m openbench serve detector/
      curl --data-binary @photo.jpg -H 'Content-Type: image/jpeg' http://127.0.0.1:8000/predict
      curl -F a=@one.png -F b=@two.png http://127.0.0.1:8000/predict
    """
    limits = ServerLimits(**options.chosen(args, ServerLimits))
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serve needs {', '.join(missing)}, which is not installed — {pip_install('serve')}")
    from openbench.detect.serve import app

    detector = _of_images(args.detector)

    def predict(images: Sequence[Any]) -> list[dict[str, Any]]:
        return detector.predict(list(images)).rows()

    try:
        predict([np.zeros((8, 8, 3), np.uint8)])  # loads lazily imported parts before the first request
    except DataError as error:
        raise ConfigError(f"detector '{args.detector}' cannot score a single image: {error}") from error
    about = {"promise": detector.promise, "alpha": detector.alpha, "classes": list(detector.class_names)}
    if args.host not in _LOCAL:
        logger.warning(f"{args.host} can be reached from other machines, without encryption and without a password")
    app.serve(predict, about, limits, (args.host, args.port))
    return OK


def _format_of(out: Path | None) -> str:
    """The format of a table by the name of its file."""
    if out is None:
        return "csv" if sys.stdout.isatty() else "parquet"
    suffix = out.suffix.removeprefix(".")
    if suffix not in _TABLES:
        raise DataError(f"--out '{out}' ends in none of .{', .'.join(_TABLES)} — name the format: --format csv")
    return suffix


def _images(places: Sequence[Path]) -> Iterator[Path]:
    """The image files among `places`, and those below the folders among them."""
    from openbench.data.own.images import SUFFIXES as IMAGES

    for place in places:
        if place.is_dir():
            files = [file for file in place.rglob("*") if file.suffix.lower() in IMAGES and file.name[0] != "."]
            if not files:
                raise DataError(f"'{place}' holds no images — files ending in {', '.join(sorted(IMAGES))} expected")
            yield from sorted(files)
        elif place.exists():
            yield place
        else:
            raise DataError(f"'{place}' not found — an image or a folder of images expected")


def _rows(detector: Any, files: Sequence[Path], group: str | None) -> list[dict[str, Any]]:
    """A row per file; one that cannot be read has an error and nothing else."""
    from openbench.data.sources.base import decode

    images, errors = {}, {}
    for file in files:
        try:
            images[file] = decode(file)
        except DataError as error:
            errors[file] = str(error).partition(" — get the file again")[0]
    predictions = detector.predict(list(images.values()), groups=group).rows() if images else []
    rows = dict(zip(images, predictions, strict=True)) | dict.fromkeys(errors, dict.fromkeys(_COLUMNS[1:-1]))
    return [{"image": str(file), **rows[file], "error": errors.get(file)} for file in files]


def _csv(rows: list[dict[str, Any]]) -> bytes:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(_COLUMNS)
    for row in rows:
        cells = {**row, "prediction_set": " ".join(map(str, row["prediction_set"] or ()))}
        writer.writerow(csv_row(cells.values()))
    return stream.getvalue().encode("utf-8", "backslashreplace")


def _jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {
        "image": pa.string(), "score": pa.float32(), "p_value": pa.float64(), "p_value_conditional": pa.float64(),
        "is_ood": pa.bool_(), "label": pa.int64(), "label_name": pa.string(),
        "prediction_set": pa.list_(pa.int64()), "error": pa.string(),
    }  # fmt: skip
    printable = [{**row, "image": row["image"].encode("utf-8", "backslashreplace").decode()} for row in rows]
    stream = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(printable, schema=pa.schema(kinds)), stream)
    return stream.getvalue()


def _in_words(monitor: Monitor) -> str:
    """The status of a monitor in sentences."""
    rules, status = monitor.rules, monitor.status()
    alarm = f"ALARM at image {monitor.alarm_at or 0:,}: the stream is no longer like the calibration images"
    lines = [
        alarm if monitor.alarm else "no alarm",
        f"{monitor.images:,} images against {monitor.ranks.n:,} calibration images",
        f"evidence of a change: {_odds(status['log10_wealth'])} to 1 now, {_odds(status['log10_peak'])} to 1 at most; "
        f"the alarm is at {1 / rules.level:,.6g} to 1, and the chance of ever reaching that while nothing changes is "
        f"at most {100 * rules.level:g} %",
    ]
    for last in monitor.windows[-1:]:
        lines.append(
            f"images {last.first:,} to {last.first + last.images - 1:,}: AUROC {last.auroc:.3f} over the calibration "
            f"images (0.5 if nothing has changed; two-sided p = {last.rank_p:.2g} of this window alone), "
            f"{100 * last.flagged:.1f} % flagged at α = {rules.alpha:g}"
        )
    return "\n".join(lines)


def _odds(log10: float) -> str:
    return f"{10**log10:.3g}" if abs(log10) < 6 else f"10^{log10:.0f}"


def _of_images(place: Path, **options: Any) -> "Detector":
    """The detector in a folder or a `.zip`, which scores images."""
    loaded = openbench.load_detector(place, **options)
    if loaded.reads_features:
        raise NotApplicableError(
            f"detector '{place}' reads features, not images — openbench.load_detector(PATH).predict(features) in Python"
        )
    return loaded


def _calibration(place: Path) -> NDArray[np.float64]:
    """The calibration scores of a detector, or of a table."""
    if place.suffix in _SUFFIXES:
        return _numbers(place)
    calibration = openbench.load_detector(place).calibration
    if calibration.weights is not None:
        raise DataError(
            f"detector '{place}' was calibrated with weights, so every stream would look changed — calibrate it "
            "without weights, on images like those to come"
        )
    return np.asarray(calibration.scores, dtype=np.float64)


def _numbers(path: Path) -> NDArray[np.float64]:
    """The column `score` (n,) of a .csv, .jsonl or .parquet file, without the rows that have an error instead.

    Raises:
        DataError: no such file or column, no rows, or a value that is not a finite number.
    """
    import pandas as pd

    if path.suffix not in _SUFFIXES:
        raise DataError(f"'{path}' is not a table that can be read — allowed: {', '.join(_SUFFIXES)}")
    if not path.is_file():
        raise DataError(f"table '{path}' not found — python -m openbench score DETECTOR IMAGES > {path.name} writes it")
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path, page_checksum_verification=True)
        elif path.suffix == ".jsonl":
            frame = pd.DataFrame(map(json.loads, path.read_text(encoding="utf-8-sig").splitlines()))
        else:
            frame = pd.read_csv(path, index_col=False, dtype=str)  # parsed exactly below
        cells = frame["score"]
    except (OSError, ValueError) as error:
        raise DataError(f"table '{path}' cannot be read: {one_line(str(error).splitlines()[0][:200])}") from error
    except KeyError:
        listed = ", ".join(one_line(str(name)[:40]) for name in frame.columns[:20])
        raise DataError(
            f"table '{path}' needs a column 'score' (found {listed}) — python -m openbench score writes it"
        ) from None
    if "error" in frame:
        cells = cells[cells.notna() | frame["error"].isna()]
    if not len(cells):
        raise DataError(f"table '{path}' has no rows with a score")
    values = np.array([_number(cell) for cell in cells])
    for row in np.flatnonzero(~np.isfinite(values))[:1]:
        quoted = one_line(str(cells.iloc[row])[:60])
        raise DataError(
            f"table '{path}', row {cells.index[row] + 1}: '{quoted}' in column 'score' is not a finite number"
        )
    return values


def _number(cell: str | float) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):  # an integer may be larger than any float
        return float("nan")


def _load_or_begin(state: Path | None, calibration: NDArray[np.float64], rules: Mapping[str, Any]) -> Monitor:
    """The monitor whose state is saved, if its rules are those that were typed; else a new one."""
    if state is None or not state.exists():
        return Monitor(calibration, **asdict(MonitorRules(**rules)))
    monitor = Monitor.load(state, calibration)
    saved = asdict(monitor.rules)
    differ = [f"{key}={saved[key]}" for key, value in rules.items() if saved[key] != value]
    if differ:
        raise ConfigError(
            f"--state {state} belongs to a monitor with {', '.join(differ)} — leave these options out, or begin with "
            "another file"
        )
    return monitor
