"""What of a study is done, what is to do, and what that costs according to the records there are."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from openbench.results.tables.render import Column, Table, to_console
from openbench.studies.cells import Asked, planned, states_of
from openbench.studies.runs import Archive, Wanted, key_of, state
from openbench.studies.study import Study

_FEATURES = "features"
_FLOAT = 4  # bytes
_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


@dataclass
class Part:
    """The runs of a study on one benchmark.

    Args:
        benchmark: its config's name.
        done: runs with a record that a table shows.
        partial: of the missing ones, those with a record on another state of the benchmark, such as parts of its data.
        missing: runs without one.
        refused: those that cannot be made, which are neither done nor missing.
        seconds: that the missing ones take, as far as records tell, training aside.
        size: of their features, records and scores in bytes, likewise.
        unknown: of how many of the missing ones records tell nothing.
        trainings: networks that the missing ones need and no record has.
    """

    benchmark: str
    done: list[Wanted] = field(default_factory=list)
    partial: list[Wanted] = field(default_factory=list)
    missing: list[Wanted] = field(default_factory=list)
    refused: list[Wanted] = field(default_factory=list)
    seconds: float = 0.0
    size: float = 0.0
    unknown: int = 0
    trainings: int = 0


def parts(study: Study, asked: Asked, archive: Archive) -> list[Part]:
    """Return what is done and to do, by benchmark, in the order of the columns.

    Args:
        study: narrowed or not.
        asked: on the command line.
        archive: the records.
    """
    cells = planned(study, asked).values()
    states, found = states_of(cells, archive, asked), dict[str, Part]()
    for run in {run.words: run for many in cells for run in many.values()}.values():
        part = found.setdefault(run.names["benchmark"], Part(run.names["benchmark"]))
        there = set() if run.refused else {state(one, run) for one in archive.fitting(run)}
        if run.refused:
            part.refused.append(run)
        elif states.get(run.form) in there:
            part.done.append(run)
        else:
            part.missing.append(run)
            part.partial += [run] * bool(there)
    for part in found.values():
        _estimate(part, archive)
    return list(found.values())


def _estimate(part: Part, archive: Archive) -> None:
    """Add what the missing runs of a part cost.

    Of each run the median over records of its method on its benchmark, and of each network the features once.
    """
    timed, extracted, trained = set[tuple[str, ...]](), set[tuple[str, ...]](), set[tuple[str, ...]]()
    for run in part.missing:
        others = archive.of_benchmark(run.benchmark)
        extracted |= {one.network for one in others}
        trained |= {run.network} if run.trained else set()
        if not others:
            part.unknown += 1
            continue
        alike = archive.made.get((run.benchmark, run.names["method"]), others)
        part.seconds += median(sum(s for stage, s in one.seconds.items() if stage != _FEATURES) for one in alike)
        images = fmean(one.images for one in others)
        part.size += _FLOAT * images
        if run.network not in timed:
            timed.add(run.network)
            part.seconds += max(one.seconds.get(_FEATURES, 0.0) for one in others)
            part.size += _FLOAT * images * max(one.width for one in others) * (run.network not in extracted)
    part.trainings = len(trained - extracted)


def sweeps(study: Study, missing: Iterable[Wanted], more: Sequence[str]) -> list[list[str]]:
    """Return the command lines after `run` that make runs: as few sweeps as there are, methods and seeds joined.

    Args:
        study: whose runs.
        missing: those to be made.
        more: further overrides, e.g. `runtime=slurm`.
    """
    groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for run in missing:
        apart = {key_of(word): word for word in run.words}
        value = apart.pop(study.repeat, "").partition("=")[2]
        method = apart.pop("method", "")
        groups.setdefault((tuple(apart.values()), method), []).append(value)
    joined: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (rest, method), values in groups.items():
        joined.setdefault((rest, tuple(dict.fromkeys(values))), []).append(method.partition("=")[2])
    found = []
    for (rest, several), methods in joined.items():
        named = [f"method={','.join(methods)}"] if methods[0] else []
        repeated = [f"{study.repeat}={','.join(several)}"] if several[0] else []
        found.append(["-m", *rest, *named, *repeated, *more])
    return found


def free_space(folder: Path) -> int | None:
    """Return the bytes that are free where a folder is or would be made; None where that cannot be told."""
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), None)
    return None if there is None else shutil.disk_usage(there).free


def status(
    study: Study, parts: Sequence[Part], needs: Mapping[str, Sequence[str]], free: int | None, again: str
) -> str:
    """Return how far a study is.

    Args:
        study: narrowed or not.
        parts: its runs, by benchmark.
        needs: {benchmark: a line for each set or file of weights that is missing}.
        free: bytes that are free where features are kept; None where that is not known.
        again: the command that makes what is missing.
    """
    kinds = ("text", "count", "count", "count", "count", "text", "text")
    titles = ("benchmark", "runs", "done", "to do", "trainings", "time, estimated", "space, estimated")
    columns = tuple(Column(title, kind) for title, kind in zip(titles, kinds, strict=True))  # type: ignore[arg-type]
    rows = tuple(_row(part) for part in parts)
    table = Table(study.title, columns, rows, notes=tuple(_notes(study, parts, needs, free)))
    missing = sum(len(part.missing) for part in parts)
    last = f"to make them: {again}" if missing else "nothing is to do: add --table"
    return f"{to_console(table)}{last}\n"


def _row(part: Part) -> tuple[str | int, ...]:
    every, missing = len(part.done) + len(part.missing), len(part.missing)
    costs = (duration(part.seconds), size(part.size))
    more = f", {part.unknown} not known" * bool(part.unknown)
    told = [f"about {cost}{more}" if missing > part.unknown else "not known" if missing else "–" for cost in costs]
    return part.benchmark, every, len(part.done), missing, part.trainings, *told


def _notes(study: Study, parts: Sequence[Part], needs: Mapping[str, Sequence[str]], free: int | None) -> Iterator[str]:
    if any(part.missing for part in parts):
        yield (
            "estimated from the seconds and images of records of the same benchmark and method; not known where there "
            "is no record; the trainings themselves are not counted, since records do not say how long theirs took"
        )
    if free is not None and any(part.missing for part in parts):
        yield f"free where features are kept: {size(free)}"
    for part in parts:
        if part.partial:
            yield (
                f"{part.benchmark}: {len(part.partial)} of the runs to do are there, but on another state of the "
                "benchmark (parts or other images of its data); --allow incomplete counts those of the state that most "
                "runs have"
            )
        for reason in dict.fromkeys(run.refused for run in part.refused):
            count = sum(run.refused == reason for run in part.refused)
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
    found = [(days, "d"), (hours, "h"), (minutes, "min"), (left, "s")]
    first = next(at for at, (count, _) in enumerate(found) if count)
    return " ".join(f"{count} {unit}" for count, unit in found[first : first + 2] if count)


def size(amount: float) -> str:
    """Return bytes as people say them, e.g. `1.2 GB`."""
    unit, length = next((pair for pair in _UNITS if amount >= pair[1]), _UNITS[-1])
    return f"{amount / length:.1f} {unit}" if unit != "kB" else f"{max(1, round(amount / length))} kB"
