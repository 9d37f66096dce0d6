"""`score`: what a detector says of image files, one row per image."""

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from openbench.cli.process import FAILED, OK
from openbench.errors import DataError

FORMATS = ("parquet", "csv", "jsonl")
COLUMNS = (
    "image", "score", "p_value", "p_value_conditional", "is_ood", "label", "label_name", "prediction_set", "error",
)  # fmt: skip
_EPILOG = """\
Folders are searched for images, also below them; the rows are in the order of the names. An image that cannot be read
has a row with its error, and the exit code is then 1.

  python -m openbench score detector/ photos/ camera.jpg > scores.parquet
  python -m openbench score detector.zip photos/ --out scores.csv
"""


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    arguments = _parser().parse_args(argv)
    chosen = _format(arguments.format, arguments.out)
    files = list(_images(arguments.images))
    if arguments.out is not None and not arguments.out.resolve().parent.is_dir():
        raise DataError(f"--out '{arguments.out}': its folder does not exist — make it first")
    from openbench.detect.saved import load_detector

    detector = load_detector(arguments.detector, device=arguments.device, digest=arguments.digest)
    rows = [row for part in _parts(files, detector.batch_size) for row in _rows(detector, part, arguments.group)]
    content = {"csv": _csv, "jsonl": _jsonl, "parquet": _parquet}[chosen](rows)
    if arguments.out is None:
        sys.stdout.buffer.write(content)
    else:
        from openbench.storage.files import write_whole

        write_whole(arguments.out, content)
    failed = [row for row in rows if row["error"]]
    flagged = sum(bool(row["is_ood"]) for row in rows)
    print(
        f"{len(rows)} images, {flagged} called OOD at α = {detector.alpha:g}"
        + (f", {len(failed)} could not be read" if failed else ""),
        file=sys.stderr,
    )
    return FAILED if failed else OK


def _format(asked: str | None, out: Path | None) -> str:
    if asked is not None:
        return asked
    if out is not None:
        found = out.suffix.removeprefix(".")
        if found not in FORMATS:
            raise DataError(f"--out '{out}' ends in none of .{', .'.join(FORMATS)} — name the format: --format csv")
        return found
    return "csv" if sys.stdout.isatty() else "parquet"


def _images(given: Sequence[Path]) -> Iterator[Path]:
    """The image files that were named, and those below folders that were."""
    from openbench.data.own.listing import SUFFIXES

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
    empty = dict.fromkeys(COLUMNS[1:-1])
    return [
        {"image": str(file), **told.get(place, empty), "error": errors.get(place)} for place, file in enumerate(files)
    ]


def _csv(rows: list[dict[str, Any]]) -> bytes:
    from openbench.results.escape import csv_row

    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow(COLUMNS)
    for row in rows:
        held = row["prediction_set"]
        cells = {**row, "prediction_set": None if held is None else " ".join(map(str, held))}
        writer.writerow(csv_row("" if cells[name] is None else cells[name] for name in COLUMNS))
    return stream.getvalue().encode("utf-8", "backslashreplace")


def _jsonl(rows: list[dict[str, Any]]) -> bytes:
    lines = (json.dumps({name: row[name] for name in COLUMNS}, ensure_ascii=True) + "\n" for row in rows)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench score",
        description="Score image files with a detector: score, p-values, decision, class and prediction set of each.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("detector", type=Path, metavar="DETECTOR", help="the folder or .zip that `fit` wrote")
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE", help="image files, and folders of them")
    parser.add_argument(
        "--format", choices=FORMATS, help="default: of --out, else csv on a terminal, parquet elsewhere"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the rows go (default: standard output)")
    parser.add_argument("--group", metavar="NAME", help="of all these images, for a detector calibrated with groups")
    parser.add_argument("--digest", metavar="SHA256", help="that the detector must have, as `fit` printed it")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or auto (default: cpu)")
    return parser
