"""`publish`: copy kept scores beside the records that they prove, so that anybody can compute the numbers again."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from openbench import paths
from openbench.cli.left_out import left_out
from openbench.cli.process import FAILED, OK
from openbench.core.record import ResultRecord
from openbench.errors import CacheError, ConfigError, OpenbenchError, RecordError
from openbench.results.escape import console
from openbench.results.records.store import OnError, RecordStore
from openbench.results.scores.recompute import PUBLISHED, Recomputed, recompute
from openbench.results.scores.stored import ScoreStore

ALL = "all"
Done = Callable[[ResultRecord, Recomputed], None]
_EPILOG = """\
Each record's metrics are first computed from its scores; where they are not those of the record, nothing is copied.
`python -m openbench verify RUN_ID` does the same for whoever receives the folder.

  python -m openbench publish all
  python -m openbench publish 36e6c0dc2b0d35da --cache /scratch/openbench
"""


def main(argv: list[str]) -> int:
    """Publish the scores of records and return the exit code: 1 if a record is not what its scores say."""
    arguments = _parser().parse_args(argv)
    results = arguments.results or paths.results_dir()
    cache = arguments.cache or paths.cache_dir()
    kept, published, wrong, copied = ScoreStore(cache / "scores"), ScoreStore(results / PUBLISHED), 0, 0
    with left_out() as lost:
        for record in chosen(RecordStore(results), arguments.run_ids, lost.append):
            if published.path(record.run_id).is_file() and arguments.run_ids == [ALL]:
                continue
            try:
                scores = kept.read_whole(record.run_id)
                found = recompute(record, scores)
            except CacheError as error:
                if kept.path(record.run_id).is_file() or arguments.run_ids != [ALL]:
                    lost.append(error)
                continue
            except OpenbenchError as error:
                lost.append(error)
                continue
            if not found.agrees:
                wrong += 1
                say_difference(record, found)
                continue
            published.write(record.run_id, scores)
            copied += 1
    print(f"copied the scores of {copied} records to {results / PUBLISHED}")
    return (FAILED if wrong else OK) or lost.code


def check_scores(results: Path, run_ids: list[str], done: Done) -> int:
    """Compute the metrics of records from their published scores, and return the exit code: 1 if any differs.

    Args:
        results: the results folder.
        run_ids: as typed, or `all`.
        done: receives each record that could be computed again, and how it compares.

    Raises:
        ConfigError: no record that is named has scores here.
    """
    published, wrong, checked = ScoreStore(results / PUBLISHED), 0, 0
    with left_out() as lost:
        for record in chosen(RecordStore(results), run_ids, lost.append):
            if run_ids == [ALL] and not published.path(record.run_id).is_file():
                continue
            try:
                found = recompute(record, published.read_whole(record.run_id))
            except OpenbenchError as error:
                lost.append(error)
                continue
            checked += 1
            wrong += not found.agrees
            done(record, found)
            if not found.agrees:
                say_difference(record, found)
            else:
                print(console(f"{record.run_id} {record.method['name']}: {found}"))
    if not checked and not lost:
        raise ConfigError(
            f"no scores in '{results / PUBLISHED}' — they come with published records; those of your own runs are put "
            "there by: python -m openbench publish all"
        )
    print(f"{checked - wrong} of {checked} records are what their scores say")
    return (FAILED if wrong else OK) or lost.code


def chosen(records: RecordStore, run_ids: list[str], on_error: OnError) -> Iterator[ResultRecord]:
    """Yield the records that are named, or every one for `all`; of several, those that are there.

    Raises:
        RecordError: the only one that is named is not there.
    """
    if run_ids == [ALL]:
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


def say_difference(record: ResultRecord, found: Recomputed) -> None:
    """Print in which numbers a record is not what its scores say."""
    first = "; ".join(str(difference) for difference in found.different[:3])
    more = len(found.different) - 3
    rest = f"; {more} more" if more > 0 else ""
    print(console(f"{record.run_id} {record.method['name']}: not what its scores say: {first}{rest}"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench publish",
        description="Copy the kept scores of records to results/scores, once they give the records' metrics.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_ids", nargs="+", metavar="RUN_ID", help="a record, the beginning of its id, or `all`")
    parser.add_argument("--results", type=Path, metavar="DIR", help="the results folder")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="folder that holds scores/")
    return parser
