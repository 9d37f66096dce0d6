"""`stream`: a method that learns from the test images it has scored, on streams of ID and OOD images."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from openbench import paths
from openbench.cli import options
from openbench.cli.output import print_tables
from openbench.cli.process import OK
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


@click.command(cls=options.Command, epilog=_EPILOG)
@click.argument("method", required=False, metavar="[METHOD]")
@click.argument("words", nargs=-1, metavar="KEY=VALUE…")
@click.option(
    "--sets", type=click.Choice(["each", "all"]), default="each", help="a stream per OOD set, or one with all of them"
)
@click.option("--ood-per-id", type=float, metavar="RATIO", help="OOD images per ID image (default: all of both)")
@click.option("--orders", type=int, default=5, metavar="N", help="orders of each stream (default: 5)")
@click.option("--stream-seed", type=int, default=0, metavar="SEED", help="of the orders (default: 0)")
@click.option("--table", is_flag=True, help="only write the table of all records")
@click.option("--results", type=options.FILE, metavar="DIR", help="the results folder")
def stream(
    *,
    method: str | None,
    words: tuple[str, ...],
    sets: Literal["each", "all"],
    ood_per_id: float | None,
    orders: int,
    stream_seed: int,
    table: bool,
    results: Path | None,
) -> int:
    """Score streams of ID and OOD test images with a method that learns from those it has seen."""
    if table:
        if method is not None:
            raise ConfigError(f"stream --table takes no method — found {method!r} — leave it out")
        print(StreamStore(results or paths.results_dir()).write_page())
        return OK
    if method is None:
        raise ConfigError(
            f"stream: no method — allowed: {', '.join(names(_GROUP))} (python -m openbench stream --help)"
        )
    from openbench.core.runtime import Runtime
    from openbench.engine.streams import StreamPlan, StreamSpec, prepared

    plan = StreamPlan(sets, ood_per_id, orders, stream_seed)
    own = [word for word in words if word.startswith(f"{_GROUP}.")]
    spec = StreamSpec(_built(method, own), method, plan)
    job = _composed([word for word in words if word not in own])
    if results is not None:
        job.runtime["results"] = str(results)
    store = StreamStore(Path(str(Runtime.from_config(job.runtime).results)))
    ready = prepared(job.config, job.runtime, spec, _say)
    found = store.find(ready.stream_id)
    record, path = found or (ready.record(_say), None)
    path = path or store.write(record)
    store.write_page()
    print_tables(tables([record]))
    print(f"{'skipped' if found else 'written'} {path}", file=sys.stderr)
    return OK


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
