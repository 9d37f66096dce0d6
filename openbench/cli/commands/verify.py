"""`verify` and `publish`: records computed again, from published scores or from the images, and their scores copied."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openbench.cli import options
from openbench.cli.output import LeftOut, left_out
from openbench.cli.process import BAD_INPUT, FAILED, OK
from openbench.errors import ConfigError, NotReproducedError, OpenbenchError, RecordError, check_known
from openbench.progress import messages
from openbench.results.escape import console, console_lines
from openbench.results.names import is_part
from openbench.results.scores.recompute import PUBLISHED

if TYPE_CHECKING:
    from openbench.core.record import ResultRecord
    from openbench.results.checks import MadeFrom
    from openbench.results.records.store import OnError, RecordStore
    from openbench.results.scores.recompute import Recomputed
    from openbench.results.scores.stored import ScoreStore
    from openbench.results.submissions import Checked, Known

ALL = "all"
DESCRIPTION = "description.yaml"
_MOST_THREADS = 1024
_KEYS = ("benchmark", "method", "reference", "backbone", "training", "scores", "notes")
_NEEDED = ("benchmark", "method", "reference", "backbone", "scores")

_VERIFY_EPILOG = """\
Where the scores of a record are published beside it (results/scores), every metric is computed again from them: no
image, no network, a second. --images begins with the images and the network instead, as is done for a record without
published scores; so does any runtime.KEY=VALUE.

From the images it ends in `verified` (the same weights: areas and accuracies are equal to rounding, counts to a few
samples), in `compared` (a training here ended in other weights, and the numbers are those of one more seed), or in the
values that differ, with exit code 1. No record is written; networks that are trained, and features, are kept in the
cache. It computes in as many threads as the record was made in, unless OMP_NUM_THREADS is set. Run ids are the names of
the files in results/records/<benchmark>/<backbone>/<method>/; the beginning of one is enough.

--submission checks what is to be sent in: a results folder with `records`, and the `scores` that `publish` puts beside
them; everything that can be computed from scores is computed again. Without records: a file of scores as `evaluate`
reads it, and beside it description.yaml with the keys benchmark, method, reference, backbone, training, scores, notes;
such results are shown apart, as their images and network cannot be checked. Exit code 1: something is refused.

  python -m openbench verify 36e6c0dc2b0d35da
  python -m openbench verify --images 36e6c0dc2b0d35da
  python -m openbench verify all --keep
  python -m openbench verify 36e6c0dc2b0d35da runtime.device=cpu --results my_results
  python -m openbench verify --submission mine
"""
_PUBLISH_EPILOG = """\
Each record's metrics are first computed from its scores; where they are not those of the record, nothing is copied.
`python -m openbench verify RUN_ID` does the same for whoever receives the folder.

  python -m openbench publish all
  python -m openbench publish 36e6c0dc2b0d35da --cache /scratch/openbench
"""


@click.command(cls=options.Command, epilog=_VERIFY_EPILOG)
@click.argument("words", nargs=-1, metavar="RUN_ID…")
@click.option("--scores", is_flag=True, help="from the published scores only; a record without them is an error")
@click.option("--images", is_flag=True, help="from the images, though there are published scores")
@click.option(
    "--keep", is_flag=True, help="leave what comes out in results/checks.jsonl, where the leaderboard's site says it"
)
@click.option("--submission", type=options.FILE, metavar="FOLDER", help="check results that are sent in, instead")
@options.results
@options.config_dir
def verify(
    *,
    words: tuple[str, ...],
    scores: bool,
    images: bool,
    keep: bool,
    submission: Path | None,
    results: Path,
    config_dir: Path | None,
) -> int:
    """Compute records again, from their published scores or from the images, and compare.

    RUN_ID is a record, the beginning of its id, or `all`; runtime.KEY=VALUE may stand there too.
    """
    if submission is not None:
        return _check_submission(submission, results)
    overrides = [word for word in words if "=" in word]
    run_ids = [word for word in words if "=" not in word]
    if not run_ids:
        raise ConfigError("no run id — found no argument without '=' — type: python -m openbench verify RUN_ID")
    if scores and (images or overrides):
        raise ConfigError(
            f"`verify --scores` computes nothing but metrics — found {' '.join(['--images'] * images + overrides)} — "
            "allowed: run ids, or `all`"
        )
    if ALL in run_ids and (images or overrides or len(run_ids) > 1):
        raise ConfigError(
            f"`{ALL}` stands for every record with published scores — found it with "
            f"{' '.join(['--images'] * images + overrides) or 'run ids'} — name the records instead"
        )
    from_scores = [
        run_id
        for run_id in run_ids
        if scores or run_id == ALL or (not (images or overrides) and _published(run_id, results))
    ]
    from_images = [run_id for run_id in run_ids if run_id not in from_scores]
    code = OK
    if from_scores:
        code = _verify_scores(results, from_scores, keep)
        if not scores:
            again = from_scores[0] if len(from_scores) == 1 and from_scores != [ALL] else "RUN_ID"
            way = f"from the images: python -m openbench verify --images {again}"
            print(f"computed from published scores, without images; {way}")
    if not from_images:
        return code
    node = _runtime(overrides, results, config_dir)
    for run_id in from_images:
        try:
            code = max(code, _verify_images(run_id, config_dir, node, keep))
        except OpenbenchError as error:  # it does not keep the others from being verified
            print(f"error: {console_lines(str(error))}", file=sys.stderr, flush=True)
            code = BAD_INPUT
    return code


@click.command(cls=options.Command, epilog=_PUBLISH_EPILOG)
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID…")
@options.results
@options.cache
def publish(run_ids: tuple[str, ...], results: Path, cache: Path) -> int:
    """Copy the kept scores of records to results/scores, once they give the records' metrics.

    RUN_ID is a record, the beginning of its id, or `all`.
    """
    from openbench.results.records.store import RecordStore
    from openbench.results.scores.stored import ScoreStore

    kept, published, wrong, copied = ScoreStore(cache / "scores"), ScoreStore(results / PUBLISHED), 0, 0
    with left_out() as lost:
        for record in _chosen(RecordStore(results), run_ids, lost.append):
            done, here = published.path(record.run_id).is_file(), kept.path(record.run_id).is_file()
            if run_ids == (ALL,) and (done or not here):
                continue
            found = _recomputed(record, kept, lost)
            if found is not None and found.agrees:
                published.write(record.run_id, kept.read_whole(record.run_id))
                copied += 1
            elif found is not None:
                wrong += 1
                _say_difference(record, found)
    print(f"copied the scores of {copied} records to {results / PUBLISHED}")
    return (FAILED if wrong else OK) or lost.code


def _recomputed(record: "ResultRecord", scores: "ScoreStore", lost: LeftOut) -> "Recomputed | None":
    """A record's metrics from its scores, compared; None, and noted as left out, where they cannot be computed."""
    from openbench.results.scores.recompute import recompute

    try:
        return recompute(record, scores.read_whole(record.run_id))
    except OpenbenchError as error:
        lost.append(error)
        return None


def _verify_scores(results: Path, run_ids: Sequence[str], keep: bool) -> int:
    """Compute the metrics of records from their published scores; the exit code is 1 if any differs.

    Raises:
        ConfigError: no record that is named has scores here.
    """
    from openbench.results.records.store import RecordStore
    from openbench.results.scores.stored import ScoreStore

    published, wrong, checked = ScoreStore(results / PUBLISHED), 0, 0
    with left_out() as lost:
        for record in _chosen(RecordStore(results), run_ids, lost.append):
            if [*run_ids] == [ALL] and not published.path(record.run_id).is_file():
                continue
            found = _recomputed(record, published, lost)
            if found is None:
                continue
            checked += 1
            wrong += not found.agrees
            if keep:
                _keep(results, record, "scores", reproduces=found.agrees, said=str(found))
            if found.agrees:
                print(console(f"{record.run_id} {record.method['name']}: {found}"))
            else:
                _say_difference(record, found)
    if not checked and not lost:
        raise ConfigError(
            f"no scores in '{results / PUBLISHED}' — they come with published records; those of your own runs are put "
            "there by: python -m openbench publish all"
        )
    print(f"{checked - wrong} of {checked} records are what their scores say")
    return (FAILED if wrong else OK) or lost.code


def _chosen(records: "RecordStore", run_ids: Sequence[str], on_error: "OnError") -> Iterator["ResultRecord"]:
    """Yield the records that are named, or every one for `all`; of several, those that are there.

    Raises:
        RecordError: the only one that is named is not there.
    """
    if [*run_ids] == [ALL]:
        yield from records.readable(on_error)
        return
    for name in run_ids:
        try:
            found = records.look_up(name, on_error)[0]
        except RecordError as error:
            if len(run_ids) == 1:
                raise
            on_error(error)
        else:
            yield found


def _say_difference(record: "ResultRecord", found: "Recomputed") -> None:
    """Print in which numbers a record is not what its scores say."""
    first = "; ".join(str(difference) for difference in found.different[:3])
    more = len(found.different) - 3
    rest = f"; {more} more" if more > 0 else ""
    print(console(f"{record.run_id} {record.method['name']}: not what its scores say: {first}{rest}"))


def _published(run_id: str, results: Path) -> bool:
    """Whether the one record that begins so has published scores."""
    if not is_part(run_id):
        return False
    names = {path.stem for path in (results / "records").glob(f"*/*/*/{run_id}*.json")}
    names = names & {run_id} or names
    return len(names) == 1 and (results / PUBLISHED / f"{names.pop()}.parquet").is_file()


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


def _verify_images(run_id: str, config_dir: Path | None, node: dict[str, Any], keep: bool) -> int:
    from openbench.cli.output import headline
    from openbench.cli.reproduce import again, foreign
    from openbench.core.runtime import Runtime
    from openbench.engine.prepare import prepare
    from openbench.engine.run import verify
    from openbench.results.records.store import RecordStore

    results = Path(node["results"])
    with left_out() as lost:
        found = RecordStore(results).look_up(run_id, lost.append)
    config = again(found[0], config_dir)
    for target in foreign(config):
        print(f"runs code that is not openbench's: {target}", file=sys.stderr, flush=True)
    print(headline(found[0]), flush=True)
    _use_threads(found[0])
    try:
        setting = Runtime.from_config(node)
        with messages(setting.progress):
            outcome = verify(prepare(config, setting, record=found[0]), setting, found)
    except NotReproducedError as error:
        print(f"error: {console_lines(str(error))}", file=sys.stderr, flush=True)
        if keep:
            _keep(results, found[0], "images", reproduces=False, said=str(error).partition(" — ")[0])
        return FAILED
    print("\n".join(map(console, [*outcome.notes, f"{outcome.status} {outcome.path}"])), flush=True)
    if keep:
        said = f"{outcome.status}: {outcome.notes[0]}"
        # `compared` is one more training: its numbers are others.
        _keep(results, found[0], "images", reproduces=outcome.status == "verified", said=said)
    return OK


def _use_threads(record: "ResultRecord") -> None:
    """Compute in as many threads as a record was made in: sums in another number round differently."""
    import torch

    threads = record.provenance.get("threads")
    if type(threads) is int and 0 < threads <= _MOST_THREADS and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)


def _runtime(overrides: list[str], results: Path, config_dir: Path | None) -> dict[str, Any]:
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
    with explained(Typed("run", overrides, config_dir)):
        node = runtime(compose("run", overrides, config_dir))
    return node | {"results": str(results), "on_existing": "verify"}


def _check_submission(folder: Path, results: Path) -> int:
    """Say what speaks against results that are sent in; the exit code is 1 if any of it is refused."""
    from openbench.results.submissions import Known, check_submission, counted

    known = Known.of(results)
    found = [_described(folder, known)] if (folder / DESCRIPTION).is_file() else check_submission(folder, known)
    for one in found:
        _say_checked(one)
    counts = counted(found)
    print(", ".join(f"{n} {'may be ranked' if v == 'ranked' else v}" for v, n in counts.items()))
    return FAILED if counts["refused"] else OK


def _say_checked(found: "Checked") -> None:
    heading = {"ranked": "may be ranked", "apart": "shown apart, not ranked", "refused": "refused"}[found.verdict]
    print(console(f"{found.run_id} {found.method}: {heading}; {found.numbers} numbers computed again from its scores"))
    for text in (*(f"refused: {reason}" for reason in found.refused), *(f"apart: {reason}" for reason in found.apart)):
        print(console(f"  {text}"))


def _described(folder: Path, known: "Known") -> "Checked":
    """A file of scores with a description.

    Raises:
        ConfigError: the description is not one.
        OpenbenchError: the scores cannot be read, or give no metrics.
    """
    from openbench.metrics.suite import evaluate
    from openbench.results.scores.cells import read_sets
    from openbench.results.submissions import Checked, check_scores
    from openbench.storage.yaml_file import read_yaml

    about: Any = read_yaml(folder / DESCRIPTION)
    if not isinstance(about, dict):
        raise ConfigError(f"'{folder / DESCRIPTION}' holds no keys — write {', '.join(_KEYS)}, a line each")
    check_known(map(str, about), _KEYS, DESCRIPTION)
    lacking = [key for key in _NEEDED if not isinstance(about.get(key), str) or not about[key].strip()]
    if lacking:
        raise ConfigError(f"'{folder / DESCRIPTION}' lacks {', '.join(lacking)} — a text is needed for each")
    path = folder / about["scores"]
    if path.resolve().parent != folder.resolve():
        raise ConfigError(
            f"'{folder / DESCRIPTION}': scores — found {about['scores']!r} — the name of a file beside it"
        )
    sets = read_sets(path)
    refused, apart = check_scores(about["benchmark"], sets, known)
    numbers = 0
    try:
        numbers = sum(map(len, evaluate(sets).values()))
    except OpenbenchError as error:
        refused.append(str(error))
    return Checked(path.name, about["method"], tuple(refused), tuple(apart), numbers)
