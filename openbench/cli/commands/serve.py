"""`serve`: a detector behind HTTP."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import openbench
from openbench.cli.process import OK
from openbench.detect.serve.images import Limits
from openbench.errors import ConfigError, DataError
from openbench.installation import pip_install

_LIBRARIES = ("starlette", "uvicorn", "python_multipart", "prometheus_client")
_LOCAL = ("127.0.0.1", "::1", "localhost")
_EPILOG = """\
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


def main(argv: list[str]) -> int:
    """Serve until told to stop, and return the exit code."""
    arguments = _parser().parse_args(argv)
    limits = Limits(**{field.name: getattr(arguments, field.name) for field in fields(Limits)})
    if not 0 <= arguments.port <= 65535:
        raise ConfigError(f"--port {arguments.port} — allowed: 0 (a free one) to 65535")
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serve needs {', '.join(missing)}, which is not installed — {pip_install('serve')}")
    from openbench.detect.serve.app import serve

    detector = openbench.load_detector(arguments.detector)

    def predict(images: Sequence[Any]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = detector.predict(list(images)).rows()
        return rows

    try:
        predict([np.zeros((8, 8, 3), np.uint8)])  # what takes time once is done before the first request
    except DataError as error:
        raise ConfigError(f"detector '{arguments.detector}' cannot answer for an image alone — {error}") from error
    about = {"promise": detector.promise, "alpha": detector.alpha, "classes": list(detector.class_names)}
    if arguments.host not in _LOCAL:
        _say(f"{arguments.host} can be reached from other machines, without encryption and without a password")
    serve(predict, about, limits, (arguments.host, arguments.port), _say)
    return OK


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench serve",
        description="Answer HTTP requests with a detector's predictions.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("detector", type=Path, metavar="DETECTOR", help="a saved detector")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="0 takes a free one (default: 8000)")
    limits = parser.add_argument_group("limits")
    for field in fields(Limits):
        kind = int if isinstance(field.default, int) else float
        limits.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            type=kind,
            default=field.default,
            metavar="N",
            help=f"{_meaning(field.name)} (default: {field.default:,})",
        )
    return parser


def _meaning(name: str) -> str:
    """What the docstring of the limits says of one of them."""
    lines = iter((Limits.__doc__ or "").splitlines())
    found = next((line.strip().partition(": ")[2] for line in lines if line.strip().startswith(f"{name}: ")), "")
    return found.rstrip(".;,").replace("%", "%%")
