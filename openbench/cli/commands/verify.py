"""`verify` and `publish`: records computed again from their scores or images, and the scores copied beside them."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openbench.cli import options
from openbench.cli.output import LeftOut, left_out, note, print_tables
from openbench.cli.process import BAD_INPUT, FAILED, OK
from openbench.core.names import is_part
from openbench.errors import ConfigError, NotReproducedError, OpenbenchError, RecordError, listed
from openbench.progress import messages
from openbench.results.escape import console, console_lines
from openbench.results.scores.recompute import PUBLISHED
from openbench.results.tables.render import Column, Table

if TYPE_CHECKING:
    from openbench.core.record import ResultRecord
    from openbench.results.checks import MadeFrom
    from openbench.results.records.store import OnError, RecordStore
    from openbench.results.scores.recompute import Recomputed
    from openbench.results.scores.stored import ScoreStore

ALL = "all"
_MOST_THREADS = 1024
_DIFFERS = "differs"
_VERDICTS = {"ranked": "may be ranked", "apart": "shown apart, not ranked", "refused": "refused"}


class Outcomes:
    """The outcomes of checks: a line each on a terminal as they come, else one table at the end.

    Args:
        form: of tables.
    """

    def __init__(self, form: str) -> None:
        self.form = form
        self.rows: list[tuple[str, str, str, str]] = []

    def add(self, run_id: str, method: str, outcome: str, *details: str) -> None:
        """Add the outcome of one record."""
        self.rows.append((run_id, method, outcome, "; ".join(details)))
        self.note("\n  ".join(map(console, (f"{run_id} {method}: {details[0]}", *details[1:]))))

    def note(self, text: str) -> None:
        """Print lines for people."""
        note(text, self.form)

    def end(self, title: str) -> None:
        """Print the table."""
        if self.form != "console":
            columns = tuple(map(Column, ("record", "method", "outcome", "details")))
            print_tables([Table(title, columns, tuple(self.rows))], self.form)


@click.command(cls=options.Command)
@click.argument("words", nargs=-1, metavar="RUN_ID…")
@click.option("--scores", is_flag=True, help="from the published scores only; a record without them is an error")
@click.option("--images", is_flag=True, help="from the images, even if there are published scores")
@click.option("--keep", is_flag=True, help="save the outcome in results/checks.jsonl, which the site shows")
@options.file_option("--submission", "FOLDER", "check results that are to be submitted, instead")
@options.table_format()
@options.results
@options.config_dir
def verify(
    *,
    words: tuple[str, ...],
    scores: bool,
    images: bool,
    keep: bool,
    submission: Path | None,
    form: str,
    results: Path,
    config_dir: Path | None,
) -> int:
    """Compute records again, from their published scores or from the images, and compare.

    RUN_ID is a record, the beginning of its id, or `all`; runtime.KEY=VALUE is allowed too. Run ids are the names of
    the files in results/records/<benchmark>/<backbone>/<method>/.

    If the scores of a record are published (results/scores), every metric is computed from them, in about a second.
    Else, and with --images or runtime.KEY=VALUE, images and network are needed. The outcome is then `verified` (the
    same weights: areas and accuracies equal to rounding, counts to a few samples), `compared` (a training here ended in
    other weights: the numbers are those of one more seed), or the values that differ, with exit code 1. No record is
    written. The number of threads is that of the record, unless OMP_NUM_THREADS is set.

    --submission checks a results folder with `records`, and the `scores` of `publish`: all that follows from scores is
    computed again; `import scores` makes such a folder of scores from elsewhere. Exit code 1: something is refused.

    Examples:
      python -m openbench verify 36e6c0dc2b0d35da
      python -m openbench verify --images 36e6c0dc2b0d35da
      python -m openbench verify all --keep
      python -m openbench verify 36e6c0dc2b0d35da runtime.device=cpu --results my_results
      python -m openbench verify --submission mine
    """
    if submission is not None:
        return _check_submission(submission, results, form)
    overrides = [word for word in words if "=" in word]
    run_ids = [word for word in words if "=" not in word]
    others = " ".join(["--images"] * images + overrides)
    if not run_ids:
        raise ConfigError("no run id — type: python -m openbench verify RUN_ID")
    if (others and (scores or ALL in run_ids)) or (ALL in run_ids and len(run_ids) > 1):
        raise ConfigError(
            f"`{ALL}` and --scores read published scores only, found {others or 'run ids'} beside them — allowed: run "
            f"ids with --scores, or `{ALL}`"
        )
    from_scores = [r for r in run_ids if scores or r == ALL or (not others and _has_scores(r, results))]
    outcomes, code = Outcomes(form), OK
    if from_scores:
        code = _verify_scores(results, from_scores, keep, outcomes)
        if not scores:
            again = from_scores[0] if len(from_scores) == 1 and from_scores != [ALL] else "RUN_ID"
            outcomes.note(
                f"computed from published scores; from the images: python -m openbench verify --images {again}"
            )
    from_images = [run_id for run_id in run_ids if run_id not in from_scores]
    node = _runtime(overrides, results, config_dir) if from_images else {}
    for run_id in from_images:
        try:
            code = max(code, _verify_images(run_id, config_dir, node, keep, outcomes))
        except OpenbenchError as error:  # the others are verified all the same
            print(f"error: {console_lines(str(error))}", file=sys.stderr, flush=True)
            code = BAD_INPUT
    outcomes.end("verify")
    return code


@click.command(cls=options.Command)
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID…")
@options.results
@options.cache
def publish(run_ids: tuple[str, ...], results: Path, cache: Path) -> int:
    """Copy the cached scores of records to results/scores, if they give the records' metrics.

    RUN_ID is a record, the beginning of its id, or `all`. `python -m openbench verify RUN_ID` makes the same check for
    anybody who has the folder.

    Examples:
      python -m openbench publish all
      python -m openbench publish 36e6c0dc2b0d35da --cache /scratch/openbench
    """
    from openbench.results.records.store import RecordStore
    from openbench.results.scores.stored import ScoreStore

    cached, published, wrong, copied = ScoreStore(cache / "scores"), ScoreStore(results / PUBLISHED), 0, 0
    with left_out() as lost:
        for record in _chosen(RecordStore(results), run_ids, lost.append):
            done, here = published.path(record.run_id).is_file(), cached.path(record.run_id).is_file()
            if run_ids == (ALL,) and (done or not here):
                continue
            recomputed = _recomputed(record, cached, lost)
            if recomputed is not None and recomputed.agrees:
                published.write(record.run_id, cached.read_whole(record.run_id))
                copied += 1
            elif recomputed is not None:
                wrong += 1
                print(console(f"{record.run_id} {record.method['name']}: {_differences(recomputed)}"))
    print(f"copied the scores of {copied} records to {results / PUBLISHED}")
    return (FAILED if wrong else OK) or lost.code


def _recomputed(record: "ResultRecord", scores: "ScoreStore", lost: LeftOut) -> "Recomputed | None":
    """A record's metrics from its scores, compared; None, with the error in `lost`, where they cannot be computed."""
    from openbench.results.scores.recompute import recompute

    try:
        return recompute(record, scores.read_whole(record.run_id))
    except OpenbenchError as error:
        lost.append(error)
        return None


def _differences(found: "Recomputed") -> str:
    """The first numbers in which a record is not what its scores say."""
    return f"not what its scores say: {listed(found.different, 3, '; ', '; ')}"


def _verify_scores(results: Path, run_ids: Sequence[str], keep: bool, outcomes: Outcomes) -> int:
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
            recomputed = _recomputed(record, published, lost)
            if recomputed is None:
                continue
            checked += 1
            wrong += not recomputed.agrees
            if keep:
                _save_check(results, record, "scores", reproduces=recomputed.agrees, details=str(recomputed))
            details = str(recomputed) if recomputed.agrees else _differences(recomputed)
            outcomes.add(record.run_id, record.method["name"], "verified" if recomputed.agrees else _DIFFERS, details)
    if not checked and not lost:
        raise ConfigError(
            f"no scores in '{results / PUBLISHED}', which come with published records — put those of your own runs "
            "there: python -m openbench publish all"
        )
    outcomes.note(f"{checked - wrong} of {checked} records are what their scores say")
    return (FAILED if wrong else OK) or lost.code


def _chosen(records: "RecordStore", run_ids: Sequence[str], on_error: "OnError") -> Iterator["ResultRecord"]:
    """Yield the records that are named, or every one for `all`.

    Raises:
        RecordError: the only one that is named does not exist; of several, `on_error` receives the error.
    """
    if [*run_ids] == [ALL]:
        yield from records.readable(on_error)
        return
    for name in run_ids:
        try:
            yield records.look_up(name)[0]
        except RecordError as error:
            if len(run_ids) == 1:
                raise
            on_error(error)


def _has_scores(run_id: str, results: Path) -> bool:
    """Whether the one record whose id begins so has published scores."""
    if not is_part(run_id):
        return False
    names = {path.stem for path in (results / "records").glob(f"*/*/*/{run_id}*.json")}
    names = names & {run_id} or names
    return len(names) == 1 and (results / PUBLISHED / f"{names.pop()}.parquet").is_file()


def _save_check(
    results: Path, record: "ResultRecord", made_from: "MadeFrom", *, reproduces: bool, details: str
) -> None:
    """Save the outcome of a check where the site reads it."""
    from datetime import UTC, datetime

    from openbench.checkout import made_now
    from openbench.results.checks import Check, write_check
    from openbench.results.records.store import digest_of
    from openbench.results.scores.stored import ScoreStore

    utc = datetime.now(UTC).isoformat(timespec="seconds")
    scores = ScoreStore(results / PUBLISHED).state(record.run_id) if made_from == "scores" else ""
    check = Check(record.run_id, digest_of(record), made_from, reproduces, details, made_now(), utc, scores)
    print(f"saved in {write_check(results, check)}", file=sys.stderr)


def _verify_images(run_id: str, config_dir: Path | None, node: dict[str, Any], keep: bool, outcomes: Outcomes) -> int:
    """Compute a record from its images; the exit code is 1 if its numbers differ."""
    from openbench.cli.output import headline
    from openbench.cli.reproduce import again
    from openbench.core.runtime import Runtime
    from openbench.engine.prepare import prepare
    from openbench.engine.run import verify
    from openbench.public import foreign_targets
    from openbench.results.records.store import RecordStore

    results = Path(node["results"])
    existing = RecordStore(results).look_up(run_id)
    record = existing[0]
    config = again(record, config_dir)
    for target in foreign_targets(config):
        print(f"runs code that is not openbench's: {target}", file=sys.stderr, flush=True)
    outcomes.note(headline(record))
    _use_threads(record)
    setting = Runtime.from_config(node)
    try:
        with messages(setting.progress):
            outcome = verify(prepare(config, setting, record=record), setting, existing)
    except NotReproducedError as error:
        print(f"error: {console_lines(str(error))}", file=sys.stderr, flush=True)
        status, details, code = _DIFFERS, str(error).partition(" — ")[0], FAILED
    else:
        status, details, code = outcome.status, "; ".join(outcome.notes), OK
    outcomes.add(record.run_id, record.method["name"], status, f"{status}, {details}")
    if keep:  # `compared` is one more training, which has other numbers
        _save_check(results, record, "images", reproduces=status == "verified", details=f"{status}: {details}")
    return code


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
            raise ConfigError(f"`verify` takes its config from the record — found {word}, allowed: runtime.KEY=VALUE")
    with explained(Typed("run", overrides, config_dir)):
        node = runtime(compose("run", overrides, config_dir))
    return node | {"results": str(results), "on_existing": "verify"}


def _check_submission(folder: Path, results: Path, form: str) -> int:
    """Check results that are to be submitted; the exit code is 1 if any of them is refused."""
    from openbench.results.submissions import KnownRecords, check_submission, counted

    checked = check_submission(folder, KnownRecords.of(results))
    outcomes = Outcomes(form)
    for one in checked:
        heading = f"{_VERDICTS[one.verdict]}; {one.numbers} numbers computed again from its scores"
        reasons = [*(f"refused: {why}" for why in one.refused), *(f"apart: {why}" for why in one.apart)]
        outcomes.add(one.run_id, one.method, one.verdict, heading, *reasons)
    counts = counted(checked)
    outcomes.note(", ".join(f"{n} {'may be ranked' if v == 'ranked' else v}" for v, n in counts.items()))
    outcomes.end("submission")
    return FAILED if counts["refused"] else OK
