"""The progress of a study: runs that are done and missing, what they cost, and the sweeps that make them."""

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from openbench.results.frame import Run
from openbench.results.tables.render import Column, Table
from openbench.studies.cells import StudyOptions, planned, states_of
from openbench.studies.runs import Network, PlannedRun, Records, key_of, network_of
from openbench.studies.study import Study

_FLOAT = 4  # bytes
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


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
    runs, parts = planned(study, options), dict[str, Progress]()
    states = states_of(runs, records, options)
    for run in {run.words: run for many in runs.values() for run in many.values()}.values():
        part = parts.setdefault(run.names["benchmark"], Progress(run.names["benchmark"]))
        if run.refused:
            part.refused.append(run)
            continue
        digests = {record.digest for record in records.matching(run)}
        if states.get(run.benchmark_key) in digests:
            part.done.append(run)
        else:
            part.missing.append(run)
            part.partial += [run] * bool(digests)
    for part in parts.values():
        _estimate(part, records)
    return list(parts.values())


def _estimate(part: Progress, records: Records) -> None:
    """Add the cost of the missing runs.

    For each run the median over records of its method on its benchmark, and for each network the features once.
    """
    timed, extracted, trained = set[Network](), set[Network](), set[Network]()
    for run in part.missing:
        others = records.of_benchmark(run.benchmark)
        extracted |= {network_of(record) for record in others}
        trained |= {run.network} if run.trained else set()
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
    part.trainings = len(trained - extracted)


def _extraction(record: Run) -> float:
    return record.seconds.get("features", 0.0)


def sweeps(study: Study, missing: Iterable[PlannedRun], more: Sequence[str]) -> list[list[str]]:
    """Return the arguments after `run` of as few sweeps as possible: methods and seeds are joined.

    Args:
        study: whose runs.
        missing: those to be made.
        more: further overrides, e.g. `runtime=slurm`.
    """
    groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for run in missing:
        rest = {key_of(word): word for word in run.words}
        value, method = (rest.pop(key, "").partition("=")[2] for key in (study.repeat, "method"))
        groups.setdefault((tuple(rest.values()), method), []).append(value)
    joined: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (words, method), values in groups.items():
        joined.setdefault((words, tuple(dict.fromkeys(values))), []).append(method)
    lines = []
    for (words, several), methods in joined.items():
        named = [f"method={','.join(methods)}"] if methods[0] else []
        repeated = [f"{study.repeat}={','.join(several)}"] if several[0] else []
        lines.append(["-m", *words, *named, *repeated, *more])
    return lines


def free_space(folder: Path) -> int | None:
    """Return the bytes that are free where a folder is or would be made; None if no parent exists."""
    place = next((place for place in (folder, *folder.absolute().parents) if place.exists()), None)
    return None if place is None else shutil.disk_usage(place).free


def status(
    study: Study, parts: Sequence[Progress], needs: Mapping[str, Sequence[str]], free: int | None, again: str
) -> tuple[Table, str]:
    """Return the progress of a study as a table with notes, and a line on what to type next.

    Args:
        study: narrowed or not.
        parts: its runs, by benchmark.
        needs: {benchmark: a line for each set or file of weights that is missing}.
        free: bytes that are free in the cache; None if that is not known.
        again: the command that makes the missing runs.
    """
    columns = Column.of("benchmark", ("runs", "count"), ("done", "count"), ("to do", "count"), ("trainings", "count"))
    columns += Column.of("time, estimated", "space, estimated")
    table = Table(study.title, columns, tuple(map(_row, parts)), notes=tuple(_notes(study, parts, needs, free)))
    missing = any(part.missing for part in parts)
    return table, f"to make them: {again}" if missing else "nothing is to do: add --table"


def _row(part: Progress) -> tuple[str | int, ...]:
    every, missing = len(part.done) + len(part.missing), len(part.missing)
    costs = (duration(part.seconds), size(part.size))
    more = f", {part.unknown} not known" * bool(part.unknown)
    texts = [f"about {cost}{more}" if missing > part.unknown else "not known" if missing else "–" for cost in costs]
    return part.benchmark, every, len(part.done), missing, part.trainings, *texts


def _notes(
    study: Study, parts: Sequence[Progress], needs: Mapping[str, Sequence[str]], free: int | None
) -> Iterator[str]:
    if any(part.missing for part in parts):
        yield (
            "estimated from the seconds and images of records of the same benchmark and method; not known where there "
            "is no record; the trainings themselves are not counted, since records do not say how long theirs took"
        )
    if free is not None and any(part.missing for part in parts):
        yield f"free in the cache: {size(free)}"
    for part in parts:
        if part.partial:
            yield (
                f"{part.benchmark}: {len(part.partial)} of the runs to do are there, but on another state of the "
                "benchmark (parts or other images of its data); --allow incomplete counts those of the state that most "
                "runs have"
            )
        for reason, count in Counter(run.refused for run in part.refused).items():
            yield f"{part.benchmark}: {count} run{'s' * (count > 1)} cannot be made: {reason}"
        yield from (f"{part.benchmark} lacks {line}" for line in needs.get(part.benchmark, ()))
    if study.source:
        yield f"paper: {study.source}"
    yield from (f"deviates: {text}" for text in study.deviations)


def duration(seconds: float) -> str:
    """Return a time in its two largest units, e.g. `3 h 20 min`."""
    minutes, left = divmod(max(1, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (left, "s")]
    first = next(at for at, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def size(amount: float) -> str:
    """Return bytes as people say them, e.g. `1.2 GB`."""
    unit, length = next((pair for pair in _UNITS if amount >= pair[1]), _UNITS[-1])
    return f"{amount / length:.1f} {unit}" if unit != "kB" else f"{max(1, round(amount / length))} kB"
