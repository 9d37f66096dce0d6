"""`stream`: a method that learns from the test images it has scored, on streams of ID and OOD images."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openbench import paths
from openbench.cli.tables import print_tables
from openbench.config.build import build
from openbench.config.shipped import names, shipped
from openbench.errors import ConfigError, check_known, did_you_mean
from openbench.results.escape import console
from openbench.results.streams import StreamStore, tables
from openbench.storage.yaml_file import parse_yaml

if TYPE_CHECKING:
    from openbench.compose.composed import Composed
    from openbench.core.streaming import StreamingMethod

_EPILOG = """\
Streaming methods have a table of their own, results/streams/README.md: an image's score depends on those before it.
Hyper-parameters are set as streaming.NAME=VALUE; nothing is tuned. Benchmark, backbone, training, seed and runtime are
chosen as for `run`.

  python -m openbench stream oodd +benchmark=digits
  python -m openbench stream oodd +benchmark=cifar10 streaming.queue=512 --ood-per-id 0.1
  python -m openbench stream --table
"""
_GROUP = "streaming"
_OF_RUNS = ("method", "tune", "metrics")


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    arguments = _parser().parse_intermixed_args(argv)
    if arguments.table:
        if arguments.method is not None:
            raise ConfigError(f"stream --table takes no method — found {arguments.method!r} — leave it out")
        print(StreamStore(arguments.results or paths.results_dir()).write_page())
        return 0
    if arguments.method is None:
        raise ConfigError(
            f"stream: no method — allowed: {', '.join(names(_GROUP))} (python -m openbench stream --help)"
        )
    _score(arguments)
    return 0


def _score(arguments: argparse.Namespace) -> None:
    """Score the streams unless their record exists, write the page, and print what was reached."""
    from openbench.engine.runtime import Runtime
    from openbench.engine.streams import StreamPlan, StreamSpec, prepared

    plan = StreamPlan(arguments.sets, arguments.ood_per_id, arguments.orders, arguments.stream_seed)
    own = [word for word in arguments.overrides if word.startswith(f"{_GROUP}.")]
    spec = StreamSpec(_built(arguments.method, own), arguments.method, plan)
    job = _composed([word for word in arguments.overrides if word not in own])
    if arguments.results is not None:
        job.runtime["results"] = str(arguments.results)
    store = StreamStore(Path(str(Runtime.from_config(job.runtime).results)))
    ready = prepared(job.config, job.runtime, spec, _say)
    found = store.find(ready.stream_id)
    record, path = found or (ready.record(_say), None)
    path = path or store.write(record)
    store.write_page()
    print_tables(tables([record]))
    print(f"{'skipped' if found else 'written'} {path}", file=sys.stderr)


def _say(text: str) -> None:
    """Report progress on stderr: stdout holds results only."""
    print(console(text), file=sys.stderr, flush=True)


def _built(name: str, words: Sequence[str]) -> "StreamingMethod[Any]":
    """The method of a config file, with the hyper-parameters that were typed."""
    from openbench.core.streaming import StreamingMethod

    node = shipped(_GROUP, name)
    if node is None:
        raise ConfigError(
            f"streaming method '{name}' not found in configs/{_GROUP}{did_you_mean(name, names(_GROUP))} — allowed: "
            f"{', '.join(names(_GROUP))}"
        )
    typed = {}
    for word in words:
        key, _, value = word.removeprefix(f"{_GROUP}.").partition("=")
        check_known([key], [key for key in node if not key.startswith("_")], f"streaming method '{name}'")
        typed[key] = parse_yaml(value, word)
    method: StreamingMethod[Any] = build({**node, **typed}, f"streaming method '{name}'", StreamingMethod)
    return method


def _composed(words: list[str]) -> "Composed":
    """Benchmark, backbone, training, seed and runtime, as `run` composes them."""
    from openbench.compose.composed import composed

    wrong = [word for word in words if word.lstrip("+").partition("=")[0].split(".")[0].split("/")[0] in _OF_RUNS]
    if wrong:
        raise ConfigError(
            f"stream: {' '.join(wrong)} — a stream has no {' or '.join(_OF_RUNS)} of a run — allowed: benchmark, "
            f"backbone, training, seed, runtime, and {_GROUP}.NAME=VALUE"
        )
    return composed("run", [*words, "method=msp"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench stream",
        description="Score streams of ID and OOD test images with a method that learns from those it has seen.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("method", nargs="?", metavar="METHOD", help=f"one of: {', '.join(names(_GROUP))}")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for `run`: +benchmark=…, backbone=…")
    parser.add_argument(
        "--sets",
        choices=("each", "all"),
        default="each",
        help="a stream per OOD set, or one with all of them (default: each)",
    )
    parser.add_argument(
        "--ood-per-id", type=float, metavar="RATIO", help="OOD images per ID image (default: all images of both)"
    )
    parser.add_argument("--orders", type=int, default=5, metavar="N", help="orders of each stream (default: 5)")
    parser.add_argument("--stream-seed", type=int, default=0, metavar="SEED", help="of the orders (default: 0)")
    parser.add_argument("--table", action="store_true", help="only write the table of all records")
    parser.add_argument("--results", type=Path, metavar="DIR", help="the results folder")
    return parser
