"""`verify`: compute a record again, from its published scores or from the images, and say whether it reproduces."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from openbench import paths
from openbench.cli.left_out import left_out
from openbench.cli.process import BAD_INPUT, FAILED, OK
from openbench.errors import ConfigError, NotReproducedError, OpenbenchError, RecordError
from openbench.results.escape import console, console_lines
from openbench.results.names import is_part
from openbench.say import silent
from openbench.storage.files import read_regular
from openbench.storage.plain_json import LARGEST, loads

if TYPE_CHECKING:
    from openbench.core.record import ResultRecord
    from openbench.results.checks import MadeFrom
    from openbench.results.scores.recompute import Recomputed

ALL = "all"
PUBLISHED = "scores"  # as in results/scores/recompute.py, which imports numpy: the number of threads is set before that
_MOST_THREADS = 1024

_EPILOG = """\
Where the scores of a record are published beside it (results/scores), every metric is computed again from them: no
image, no network, a second. --images begins with the images and the network instead, as is done for a record without
published scores; so does any runtime.KEY=VALUE.

From the images it ends in `verified` (the same weights: areas and accuracies are equal to rounding, counts to a few
samples), in `compared` (a training here ended in other weights, and the numbers are those of one more seed), or in the
values that differ, with exit code 1. No record is written; networks that are trained, and features, are kept in the
cache. It computes in as many threads as the record was made in, unless OMP_NUM_THREADS is set. Run ids are the names of
the files in results/records/<benchmark>/<backbone>/<method>/; the beginning of one is enough.

  python -m openbench verify 36e6c0dc2b0d35da
  python -m openbench verify --images 36e6c0dc2b0d35da
  python -m openbench verify all --keep
  python -m openbench verify 36e6c0dc2b0d35da runtime.device=cpu --results my_results
"""


def main(argv: list[str]) -> int:
    """Verify the named records and return the exit code: 1 if any does not reproduce."""
    arguments = _parser().parse_intermixed_args(argv)
    arguments.results = arguments.results or paths.results_dir()
    overrides = [word for word in arguments.words if "=" in word]
    run_ids = [word for word in arguments.words if "=" not in word]
    if not run_ids:
        raise ConfigError("no run id — found no argument without '=' — type: python -m openbench verify RUN_ID")
    from_scores, from_images = _divided(run_ids, overrides, arguments)
    code = _from_scores(from_scores, arguments) if from_scores else OK
    if not from_images:
        return code
    # Sums in another number of threads round differently, and a training ends in other weights. The variable is read
    # once, when numpy and torch are imported.
    if threads := _threads(arguments.results, from_images[0]):
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    node = _runtime(overrides, arguments)
    return max(code, *(_told(run_id, arguments, node) for run_id in from_images))


def _divided(run_ids: list[str], overrides: list[str], arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The records to be computed again from published scores, and those from the images.

    Raises:
        ConfigError: what was typed excludes itself.
    """
    if arguments.scores and overrides:
        raise ConfigError(
            f"`verify --scores` computes nothing but metrics — found {' '.join(overrides)} — allowed: run ids, or `all`"
        )
    if ALL in run_ids and (arguments.images or overrides or len(run_ids) > 1):
        raise ConfigError(
            f"`{ALL}` stands for every record with published scores — found it with "
            f"{' '.join(['--images'] * arguments.images + overrides) or 'run ids'} — name the records instead"
        )
    if arguments.scores or run_ids == [ALL]:
        return run_ids, []
    if arguments.images or overrides:
        return [], run_ids
    with_scores = [run_id for run_id in run_ids if _published(run_id, arguments.results)]
    return with_scores, [run_id for run_id in run_ids if run_id not in with_scores]


def _published(run_id: str, results: Path) -> bool:
    """Whether the one record that begins so has published scores."""
    if not is_part(run_id):
        return False
    names = {path.stem for path in (results / "records").glob(f"*/*/*/{run_id}*.json")}
    names = names & {run_id} or names
    return len(names) == 1 and (results / PUBLISHED / f"{names.pop()}.parquet").is_file()


def _from_scores(run_ids: list[str], arguments: argparse.Namespace) -> int:
    from openbench.cli.commands.publish import check_scores

    def done(record: "ResultRecord", found: "Recomputed") -> None:
        if arguments.keep:
            _keep(arguments.results, record, "scores", reproduces=found.agrees, said=str(found))

    code = check_scores(arguments.results, run_ids, done)
    if not arguments.scores:
        again = run_ids[0] if len(run_ids) == 1 and run_ids != [ALL] else "RUN_ID"
        way = f"from the images: python -m openbench verify --images {again}"
        print(f"computed from published scores, without images; {way}")
    return code


def _keep(results: Path, record: "ResultRecord", made_from: "MadeFrom", *, reproduces: bool, said: str) -> None:
    """Leave what came out where the site reads it."""
    from datetime import UTC, datetime

    from openbench.checkout import made_now
    from openbench.results.checks import Check, write_check
    from openbench.results.records.store import digest_of
    from openbench.results.scores.stored import ScoreStore

    utc = datetime.now(UTC).isoformat(timespec="seconds")
    scores = ScoreStore(results / PUBLISHED).state(record.run_id) if made_from == "scores" else ""
    made = Check(record.run_id, digest_of(record), made_from, reproduces, said, made_now(), utc, scores)
    print(f"kept in {write_check(results, made)}")


def _told(run_id: str, arguments: argparse.Namespace, node: dict[str, object]) -> int:
    """Verify a record; one that cannot be is said, and does not keep the others from it."""
    try:
        return _verify(run_id, arguments, node)
    except OpenbenchError as error:
        print(f"error: {console_lines(str(error))}", file=sys.stderr, flush=True)
        return BAD_INPUT


def _verify(run_id: str, arguments: argparse.Namespace, node: dict[str, object]) -> int:
    from openbench.cli.reproduce import GONE, again
    from openbench.cli.tables import headline
    from openbench.engine.prepare import prepare
    from openbench.engine.run import verify
    from openbench.engine.runtime import Runtime
    from openbench.results.records.store import RecordStore

    with left_out() as lost:
        found = RecordStore(arguments.results).look_up(run_id, lost.append)
    made = again(found[0], arguments.config_dir)
    if made is None:
        raise RecordError(f"record {found[0].run_id} cannot be verified: {GONE}")
    for target in made.foreign:
        print(f"runs code that is not openbench's: {target}, {_place(target)}", file=sys.stderr, flush=True)
    say = _say if node.get("progress", True) else silent
    print(headline(found[0]), flush=True)
    try:
        setting = Runtime.from_config(node)
        outcome = verify(prepare(made.config, setting, say, record=found[0]), setting, found, say)
    except NotReproducedError as error:
        print(f"error: {console_lines(str(error))}", file=sys.stderr, flush=True)
        if arguments.keep:
            _keep(arguments.results, found[0], "images", reproduces=False, said=str(error).partition(" — ")[0])
        return FAILED
    print("\n".join(map(console, [*outcome.notes, f"{outcome.status} {outcome.path}"])), flush=True)
    if arguments.keep:
        said = f"{outcome.status}: {outcome.notes[0]}"
        # `compared` is one more training: its numbers are others.
        _keep(arguments.results, found[0], "images", reproduces=outcome.status == "verified", said=said)
    return OK


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _threads(results: Path, run_id: str) -> int | None:
    """The number of threads that a record was made in; None if it does not say, or cannot be read."""
    if not is_part(run_id):
        return None
    found = {_threads_of(path) for path in (results / "records").glob(f"*/*/*/{run_id}*.json")} - {None}
    return found.pop() if len(found) == 1 else None


def _threads_of(path: Path) -> int | None:
    try:
        found = loads(read_regular(path, LARGEST).decode(), str(path))["provenance"]["threads"]
    except (OSError, ValueError, KeyError, TypeError, RecordError):
        return None
    return found if type(found) is int and 0 < found <= _MOST_THREADS else None


def _place(target: str) -> str:
    """Where the code of a class would come from; finding the outermost package imports nothing."""
    name = target.partition(".")[0]
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return "which Python does not find"
    return f"from {spec.origin or ', '.join(spec.submodule_search_locations or ())}"


def _runtime(overrides: list[str], arguments: argparse.Namespace) -> dict[str, object]:
    """The runtime node with what was typed.

    Raises:
        ConfigError: an override of anything else, which the record decides.
    """
    from openbench.compose.config import compose, runtime
    from openbench.compose.errors import Typed, explained

    for word in overrides:
        if not word.lstrip("+~").startswith("runtime"):
            raise ConfigError(
                f"`verify` takes a run's config from its record — found {word} — allowed: runtime.KEY=VALUE"
            )
    with explained(Typed("run", overrides, arguments.config_dir)):
        node = runtime(compose("run", overrides, arguments.config_dir))
    return node | {"results": str(arguments.results), "on_existing": "verify"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench verify",
        description="Compute records again, from their published scores or from the images, and compare.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="+", metavar="RUN_ID", help="a record, or `all`; or runtime.KEY=VALUE")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--scores", action="store_true", help="from the published scores only; a record without them is an error"
    )
    ways.add_argument("--images", action="store_true", help="from the images, though there are published scores")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave what comes out in results/checks.jsonl, where the leaderboard's site says it",
    )
    parser.add_argument("--results", type=Path, metavar="DIR", help="the results folder")
    parser.add_argument("--config-dir", type=Path, metavar="DIR", help="a folder of your own group files")
    return parser
