"""The progress of a study: runs that are done and missing, what they cost, and the sweeps that make them."""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from rich.filesize import decimal

from openbench.progress import duration
from openbench.results.frame import Run
from openbench.results.tables.render import Column, Table
from openbench.studies.cells import StudyOptions, different_runs, planned, shown_records, states_of
from openbench.studies.runs import Network, PlannedRun, Records, key_of, network_of
from openbench.studies.study import Study

_FLOAT = 4  # bytes


@dataclass
class Progress:
    """The runs of a study on one benchmark.

    Args:
        benchmark: its config's name.
        done: runs with a record that the table shows.
        partial: missing runs with a record on another state of the benchmark, such as part of its data.
        missing: runs without a record for the table.
        refused: runs that cannot be made, which are neither done nor missing.
        seconds: that the missing runs take without training, estimated from records.
        size: bytes of their features, records and scores, likewise.
        unknown: how many missing runs there is no estimate for.
        trainings: networks that the missing runs need and no record has.
    """

    benchmark: str
    done: list[PlannedRun] = field(default_factory=list)
    partial: list[PlannedRun] = field(default_factory=list)
    missing: list[PlannedRun] = field(default_factory=list)
    refused: list[PlannedRun] = field(default_factory=list)
    seconds: float = 0.0
    size: float = 0.0
    unknown: int = 0
    trainings: int = 0


def progress(study: Study, options: StudyOptions, records: Records) -> list[Progress]:
    """Return what is done and missing on each benchmark, in the order of the columns.

    Args:
        study: narrowed or not.
        options: of the command line.
        records: of the results folder.
    """
    runs, parts = different_runs(planned(study, options)), dict[str, Progress]()
    states = states_of(runs, records, options)
    for run in runs:
        part = parts.setdefault(run.names["benchmark"], Progress(run.names["benchmark"]))
        if run.refused:
            part.refused.append(run)
        elif shown_records(run, records, states):
            part.done.append(run)
        else:
            part.missing.append(run)
            part.partial += [run] * bool(records.matching(run))
    for part in parts.values():
        _estimate(part, records)
    return list(parts.values())


def _estimate(part: Progress, records: Records) -> None:
    """Add the cost of the missing runs.

    For each run the median over records of its method on its benchmark, and for each network the features once.
    """
    timed, extracted = set[Network](), set[Network]()
    for run in part.missing:
        others = records.of_benchmark(run.benchmark)
        extracted |= {network_of(record) for record in others}
        if not others:
            part.unknown += 1
            continue
        same_method = records.of_benchmark(run.benchmark, run.names["method"]) or others
        part.seconds += median(sum(record.seconds.values()) - _extraction(record) for record in same_method)
        images = fmean(record.images for record in others)
        part.size += _FLOAT * images
        if run.network not in timed:
            timed.add(run.network)
            part.seconds += max(map(_extraction, others))
            part.size += _FLOAT * images * max(record.width for record in others) * (run.network not in extracted)
    part.trainings = len({run.network for run in part.missing if run.trained} - extracted)


def _extraction(record: Run) -> float:
    return record.seconds.get("features", 0.0)


def sweeps(study: Study, missing: Iterable[PlannedRun], more: Sequence[str]) -> list[list[str]]:
    """Return the arguments after `run` of as few sweeps as possible: methods and seeds are joined.

    Args:
        study: whose runs.
        missing: those to be made.
        more: further overrides, e.g. `runtime=slurm`.
    """
    values: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for run in missing:
        rest = {key_of(word): word for word in run.words}
        value, method = (rest.pop(key, "") for key in (study.repeat, "method"))
        values.setdefault((tuple(rest.values()), method), []).append(value)
    methods: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for (words, method), several in values.items():
        methods.setdefault((words, _swept(several)), []).append(method)
    return [["-m", *words, *filter(None, (_swept(of), value)), *more] for (words, value), of in methods.items()]


def _swept(words: Sequence[str]) -> str:
    """Overrides of one key as one of all their values, e.g. `seed=0,1`."""
    return ",".join([words[0], *(word.partition("=")[2] for word in words[1:])])


def free_space(folder: Path) -> int:
    """Return the bytes that are free where a folder is or would be made."""
    return shutil.disk_usage(next(place for place in (folder, *folder.absolute().parents) if place.exists())).free


def status(
    study: Study, parts: Sequence[Progress], needs: Mapping[str, Sequence[str]], free: int, again: str
) -> tuple[Table, str]:
    """Return the progress of a study as a table with notes, and a line on what to type next.

    Args:
        study: narrowed or not.
        parts: its runs, by benchmark.
        needs: {benchmark: a line for each set or file of weights that is missing}.
        free: bytes that are free in the cache.
        again: the command that makes the missing runs.
    """
    columns = Column.of("benchmark", ("runs", "count"), ("done", "count"), ("to do", "count"), ("trainings", "count"))
    columns += Column.of("time, estimated", "space, estimated")
    table = Table(study.title, columns, tuple(map(_row, parts)), notes=tuple(_notes(study, parts, needs, free)))
    missing = any(part.missing for part in parts)
    return table, f"to make them: {again}" if missing else "nothing is to do: add --table"


def _row(part: Progress) -> tuple[str | int, ...]:
    done, missing = len(part.done), len(part.missing)
    more = f", {part.unknown} not known" * bool(part.unknown)
    costs = [f"about {cost}{more}" for cost in (duration(part.seconds), decimal(round(part.size)))]
    if missing == part.unknown:
        costs = ["not known" if missing else "–"] * 2
    return part.benchmark, done + missing, done, missing, part.trainings, *costs


def _notes(study: Study, parts: Sequence[Progress], needs: Mapping[str, Sequence[str]], free: int) -> Iterator[str]:
    if any(part.missing for part in parts):
        yield "estimated from records of the same benchmark and method; without the time that trainings take"
        yield f"free in the cache: {decimal(free)}"
    for part in parts:
        if part.partial:
            there = f"{len(part.partial)} of the runs to do are there, but on part or other images of its data"
            yield f"{part.benchmark}: {there}; --allow incomplete counts those of the state that most runs have"
        for reason, count in Counter(run.refused for run in part.refused).items():
            yield f"{part.benchmark}: {count} run{'s' * (count > 1)} cannot be made: {reason}"
        yield from (f"{part.benchmark} lacks {line}" for line in needs.get(part.benchmark, ()))
    yield from study.about
