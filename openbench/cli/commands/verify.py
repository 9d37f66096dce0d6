"""`verify` and `publish`: records computed again from their scores or images, and the scores copied beside them."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from openbench.cli import options
from openbench.cli.output import LeftOut, headline, left_out, note, print_tables
from openbench.cli.process import BAD_INPUT, FAILED, OK
from openbench.config.overrides import OUTLIERS, choices, command_line
from openbench.core.names import is_part
from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.errors import ConfigError, NotReproducedError, OpenbenchError, RecordError, listed
from openbench.progress import messages
from openbench.public import foreign_targets, public, targets
from openbench.results.checks import Check, MadeFrom, write_check
from openbench.results.escape import console, console_lines
from openbench.results.records.settings import given_of, is_per_set
from openbench.results.records.store import RecordStore, digest_of
from openbench.results.scores.recompute import Recomputed, recompute
from openbench.results.scores.stored import PUBLISHED, ScoreStore
from openbench.results.submissions import KnownRecords, check_submission
from openbench.results.tables.render import Column, Table
from openbench.source import made_now

ALL = "all"
_MOST_THREADS = 1024
_DIFFERS = "differs"
_VERDICTS = {"ranked": "may be ranked", "apart": "shown apart, not ranked", "refused": "refused"}


class Outcomes:
    """The outcomes of checks: a line each on a terminal as they come, else one table at the end.

    Args:
        args: of the command.
    """

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.rows: list[tuple[str, str, str, str]] = []

    def add(self, run_id: str, method: str, outcome: str, *details: str) -> None:
        """Add the outcome of one record."""
        self.rows.append((run_id, method, outcome, "; ".join(details)))
        self.note("\n  ".join(map(console, (f"{run_id} {method}: {details[0]}", *details[1:]))))

    def save(self, record: ResultRecord, made_from: MadeFrom, *, reproduces: bool, details: str) -> None:
        """Save an outcome where the site reads it, if the user asked for that."""
        if self.args.keep:
            results, utc = self.args.results, datetime.now(UTC).isoformat(timespec="seconds")
            scores = ScoreStore(results / PUBLISHED).state(record.run_id) if made_from == "scores" else ""
            check = Check(record.run_id, digest_of(record), made_from, reproduces, details, made_now(), utc, scores)
            print(f"saved in {write_check(results, check)}", file=sys.stderr)

    def note(self, text: str) -> None:
        """Print lines for people."""
        note(text, self.args.form)

    def end(self, title: str) -> None:
        """Print the table."""
        if self.args.form != "console":
            columns = tuple(map(Column, ("record", "method", "outcome", "details")))
            print_tables([Table(title, columns, tuple(self.rows))], self.args.form)


@click.command(cls=options.Command)
@click.argument("words", nargs=-1, metavar="RUN_ID…")
@click.option("--scores", is_flag=True, help="from the published scores only; a record without them is an error")
@click.option("--images", is_flag=True, help="from the images, even if there are published scores")
@click.option("--keep", is_flag=True, help="save the outcome in results/checks.jsonl, which the site shows")
@options.file_option("--submission", "FOLDER", "check results that are to be submitted, instead")
@options.table_format()
@options.results
@options.config_dir
def verify(args: Namespace) -> int:
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
      python -m openbench verify 0f1eafcfb5ce08fb
      python -m openbench verify --images 0f1eafcfb5ce08fb
      python -m openbench verify all --keep
      python -m openbench verify 0f1eafcfb5ce08fb runtime.device=cpu --results my_results
      python -m openbench verify --submission mine
    """
    outcomes = Outcomes(args)
    if args.submission is not None:
        options.check_read("--submission", "--format")
        return _check_submission(args.submission, args.results, outcomes)
    overrides = [word for word in args.words if "=" in word]
    run_ids = [word for word in args.words if "=" not in word]
    others = " ".join(["--images"] * args.images + overrides)
    if not run_ids:
        raise ConfigError("no run id — type: python -m openbench verify RUN_ID")
    if (others and (args.scores or ALL in run_ids)) or (ALL in run_ids and len(run_ids) > 1):
        raise ConfigError(
            f"`{ALL}` and --scores read published scores only, found {others or 'run ids'} beside them — allowed: run "
            f"ids with --scores, or `{ALL}` alone; to begin with the images, name the run ids"
        )
    from_scores = [r for r in run_ids if args.scores or r == ALL or (not others and _has_scores(r, args.results))]
    code = _verify_scores(args.results, from_scores, outcomes) if from_scores else OK
    if from_scores and not args.scores:
        again = from_scores[0] if len(from_scores) == 1 and from_scores != [ALL] else "RUN_ID"
        outcomes.note(f"computed from published scores; from the images: python -m openbench verify --images {again}")
    from_images = [run_id for run_id in run_ids if run_id not in from_scores]
    node = _runtime(overrides, args.results, args.config_dir) if from_images else {}
    for run_id in from_images:
        try:
            code = max(code, _verify_images(run_id, args.config_dir, node, outcomes))
        except OpenbenchError as error:  # the others are verified all the same
            print(f"error: {console_lines(str(error))}", file=sys.stderr, flush=True)
            code = BAD_INPUT
    outcomes.end("verify")
    return code


@click.command(cls=options.Command)
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID…")
@options.results
@options.cache
def publish(args: Namespace) -> int:
    """Copy the cached scores of records to results/scores, if they give the records' metrics.

    RUN_ID is a record, the beginning of its id, or `all`. `python -m openbench verify RUN_ID` makes the same check for
    anybody who has the folder.

    Examples:
      python -m openbench publish all
      python -m openbench publish 0f1eafcfb5ce08fb --cache /scratch/openbench
    """
    cached, published = ScoreStore(args.cache / "scores"), ScoreStore(args.results / PUBLISHED)
    wrong = copied = 0

    def is_new(run_id: str) -> bool:
        return cached.path(run_id).is_file() and not published.path(run_id).is_file()

    with left_out() as lost:
        for record, recomputed in _recomputed(args.results, args.run_ids, cached, lost, is_new):
            if recomputed.agrees:
                published.write(record.run_id, cached.read_whole(record.run_id))
                copied += 1
            else:
                wrong += 1
                print(console(f"{record.run_id} {record.method['name']}: {_differences(recomputed)}"))
    print(f"copied the scores of {copied} record{'s' * (copied != 1)} to {args.results / PUBLISHED}")
    return (FAILED if wrong else OK) or lost.code


def _recomputed(
    results: Path, run_ids: Sequence[str], scores: ScoreStore, lost: LeftOut, wanted: Callable[[str], bool]
) -> Iterator[tuple[ResultRecord, Recomputed]]:
    """Yield records with their metrics computed from their scores; what cannot be computed is left out.

    Args:
        results: the folder of the records.
        run_ids: which; of `all`, those that are wanted.
        scores: where theirs are.
        lost: receives errors.
        wanted: a condition on a run id.
    """
    for record in _chosen(RecordStore(results), run_ids, lost):
        if [*run_ids] != [ALL] or wanted(record.run_id):
            try:
                sets = () if is_per_set(record) else scores.read_whole(record.run_id)
                recomputed = recompute(record, sets)
            except OpenbenchError as error:
                lost.append(error)
            else:
                yield record, recomputed


def _chosen(records: RecordStore, run_ids: Sequence[str], lost: LeftOut) -> Iterator[ResultRecord]:
    """Yield the records that are named, or every one for `all`.

    Raises:
        OpenbenchError: the only one that is named does not exist; of several, `lost` receives the error.
    """
    if [*run_ids] == [ALL]:
        yield from records.readable(lost.append)
        return
    for name in run_ids:
        try:
            yield records.look_up(name)[0]
        except OpenbenchError as error:
            if len(run_ids) == 1:
                raise
            lost.append(error)


def _differences(found: Recomputed) -> str:
    """The first numbers in which a record is not what its scores say."""
    return f"not what its scores say: {listed(found.different, 3, '; ', '; ')}"


def _verify_scores(results: Path, run_ids: Sequence[str], outcomes: Outcomes) -> int:
    """Compute the metrics of records from their published scores; the exit code is 1 if any differs.

    Raises:
        ConfigError: no record that is named has scores here.
    """
    published, agree = ScoreStore(results / PUBLISHED), list[bool]()
    with left_out() as lost:
        for record, found in _recomputed(results, run_ids, published, lost, lambda r: published.path(r).is_file()):
            agree.append(found.agrees)
            outcomes.save(record, "scores", reproduces=found.agrees, details=str(found))
            verdict = ("verified", str(found)) if found.agrees else (_DIFFERS, _differences(found))
            outcomes.add(record.run_id, record.method["name"], *verdict)
    if not agree and not lost:
        raise ConfigError(
            f"no scores in '{results / PUBLISHED}', which come with published records — put those of your own runs "
            "there: python -m openbench publish all"
        )
    if agree:
        outcomes.note(f"{sum(agree)} of {len(agree)} records are what their scores say")
    return (OK if all(agree) else FAILED) or lost.code


def _has_scores(run_id: str, results: Path) -> bool:
    """Whether the one record whose id begins so has published scores."""
    if not is_part(run_id):
        return False
    names = {path.stem for path in (results / "records").glob(f"*/*/*/{run_id}*.json")}
    names = names & {run_id} or names
    return len(names) == 1 and (results / PUBLISHED / f"{names.pop()}.parquet").is_file()


def _verify_images(run_id: str, config_dir: Path | None, node: dict[str, Any], outcomes: Outcomes) -> int:
    """Compute a record from its images; the exit code is 1 if its numbers differ."""
    from openbench.core.runtime import Runtime
    from openbench.engine.prepare import prepare
    from openbench.engine.run import verify

    existing = RecordStore(Path(node["results"])).look_up(run_id)
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
    # `compared` is one more training, which has other numbers.
    outcomes.save(record, "images", reproduces=status == "verified", details=f"{status}: {details}")
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
    from openbench.compose.config import compose, runtime  # which loads Hydra, as all that composes

    for word in overrides:
        if not word.lstrip("+~").startswith("runtime"):
            raise ConfigError(f"`verify` takes its config from the record — found {word}, allowed: runtime.KEY=VALUE")
    return runtime(compose("run", overrides, config_dir)) | {"results": str(results), "on_existing": "verify"}


def _check_submission(folder: Path, results: Path, outcomes: Outcomes) -> int:
    """Check results that are to be submitted; the exit code is 1 if any of them is refused."""
    checked = check_submission(folder, KnownRecords.of(results))
    for one in checked:
        heading = f"{_VERDICTS[one.verdict]}; {one.numbers} numbers computed again from its scores"
        reasons = [*(f"refused: {why}" for why in one.refused), *(f"apart: {why}" for why in one.apart)]
        outcomes.add(one.run_id, one.method, one.verdict, heading, *reasons)
    verdicts: list[str] = [one.verdict for one in checked]
    counts = {verdict: verdicts.count(verdict) for verdict in _VERDICTS}
    outcomes.note(", ".join(f"{n} {'may be ranked' if v == 'ranked' else v}" for v, n in counts.items()))
    outcomes.end("submission")
    return FAILED if counts["refused"] else OK


_SHOWN = 200  # characters of an override in a message


def command(record: ResultRecord, config_dir: Path | None = None) -> str:
    """Return the command by which a record was made, quoted for the shell; empty if it has none.

    Args:
        record: any.
        config_dir: the user's folder of group files that the run was given.
    """
    return "" if _problem(record) else command_line("run", record.overrides, config_dir)


def again(record: ResultRecord, config_dir: Path | None = None) -> dict[str, Any]:
    """Return the config of a record as its overrides compose it now.

    Its keys are in the order of the config files, in which sets are read and settings are tried. Nothing that only the
    record names is imported.

    Raises:
        RecordError: the record has no overrides, they name code, or they compose to another config.
    """
    from openbench.compose.config import compose, scientific

    if problem := _problem(record):
        raise RecordError(f"record {record.run_id} {problem}")
    try:
        nodes = scientific(compose("run", record.overrides, config_dir), choices(record.config))
    except ConfigError:
        nodes = {}
    nodes = {key: node for key, node in nodes.items() if key != OUTLIERS or key in record.config}
    if digest(public(nodes)) != digest(record.config):
        raise RecordError(
            f"record {record.run_id}: no command gives its config any more: it was made from other config files — "
            "check out that commit, or give your config folder as --config-dir"
        )
    return nodes


def _problem(record: ResultRecord) -> str:
    """Why there is no command: a record may come from anybody, so its overrides may not name code or its place."""
    from openbench.compose.config import HYDRA, RUNTIME, parse

    if given_of(record):
        return "has given scores: nobody here ran the code that made them, so that no command makes them again"
    if not record.overrides:
        return (
            "does not say which overrides made it: an earlier version of openbench wrote it, or its network or method "
            "was an object in Python"
        )
    for override in parse(record.overrides):
        key = override.key_or_group
        named = targets({key.rpartition(".")[2]: override.value()})
        if key.startswith((HYDRA, RUNTIME)) or not all(map(str.isidentifier, named)):
            return (
                f"names code that is not openbench's and was not imported: {str(override.input_line)[:_SHOWN]} — if "
                "you trust it, name it in a group file of your own (--config-dir) and run that"
            )
    return ""
