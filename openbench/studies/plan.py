"""What of a study is done, what is to do, and what that costs according to the records there are."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from openbench.results.tables.render import Column, Table, to_console
from openbench.studies.cells import Asked, States, planned, states_of
from openbench.studies.runs import Archive, Made, Wanted, key_of, state
from openbench.studies.study import Study

_FEATURES = "features"
_FLOAT = 4  # bytes


@dataclass(frozen=True)
class Estimated:
    """Time or space, as far as records tell.

    Args:
        amount: seconds or bytes of those runs that something is known of.
        unknown: of how many nothing is known.
    """

    amount: float
    unknown: int = 0


@dataclass(frozen=True)
class Part:
    """The runs of a study on one benchmark.

    Args:
        benchmark: its config's name.
        done: runs with a record that a table shows.
        partial: of the missing ones, those with a record on another state of the benchmark, such as parts of its data.
        missing: runs without one.
        time: of the missing ones, training aside.
        space: of the missing ones: features, records and scores.
        trainings: networks that the missing ones need and no record has.
        refused: those that cannot be made, which are neither done nor missing.
    """

    benchmark: str
    done: tuple[Wanted, ...]
    partial: tuple[Wanted, ...]
    missing: tuple[Wanted, ...]
    time: Estimated
    space: Estimated
    trainings: int
    refused: tuple[Wanted, ...] = ()


def parts(study: Study, asked: Asked, archive: Archive) -> list[Part]:
    """Return what is done and to do, by benchmark, in the order of the columns.

    Args:
        study: narrowed or not.
        asked: on the command line.
        archive: the records.
    """
    cells = planned(study, asked).values()
    states = states_of(cells, archive, asked)
    runs = {run.words: run for many in cells for run in many.values()}
    by_benchmark: dict[str, list[Wanted]] = {}
    for run in runs.values():
        by_benchmark.setdefault(run.names["benchmark"], []).append(run)
    return [_part(name, many, archive, states) for name, many in by_benchmark.items()]


def _part(name: str, every: Sequence[Wanted], archive: Archive, states: States) -> Part:
    runs = [run for run in every if not run.refused]
    found = {run.words: {state(one, run) for one in archive.fitting(run)} for run in runs}
    done = tuple(run for run in runs if states.get(run.form) in found[run.words])
    missing = tuple(run for run in runs if states.get(run.form) not in found[run.words])
    partial = tuple(run for run in missing if found[run.words])
    extracted = {one.network for one in archive.of_benchmark(every[0].benchmark)}
    networks = {run.network for run in missing if run.trained}
    return Part(
        benchmark=name,
        done=done,
        partial=partial,
        missing=missing,
        time=_time(missing, archive),
        space=_space(missing, archive, extracted),
        trainings=len(networks - extracted),
        refused=tuple(run for run in every if run.refused),
    )


def _time(missing: Sequence[Wanted], archive: Archive) -> Estimated:
    """Of each run the median over records of its method on its benchmark, and the features of each network once."""
    total, unknown, networks = 0.0, 0, set[tuple[str, ...]]()
    for run in missing:
        alike = archive.made.get((run.benchmark, run.names["method"]), [])
        others = archive.of_benchmark(run.benchmark)
        if not others:
            unknown += 1
            continue
        total += median(_own_seconds(one) for one in alike or others)
        if run.network not in networks:
            networks.add(run.network)
            total += max(one.seconds.get(_FEATURES, 0.0) for one in others)
    return Estimated(total, unknown)


def _own_seconds(one: Made) -> float:
    return sum(seconds for stage, seconds in one.seconds.items() if stage != _FEATURES)


def _space(missing: Sequence[Wanted], archive: Archive, extracted: set[tuple[str, ...]]) -> Estimated:
    """Features and logits of every new network, and scores of every run; four bytes a number."""
    total, unknown, networks = 0.0, 0, set[tuple[str, ...]]()
    for run in missing:
        others = archive.of_benchmark(run.benchmark)
        if not others:
            unknown += 1
            continue
        images = fmean(one.images for one in others)
        total += _FLOAT * images
        if run.network not in networks | extracted:
            networks.add(run.network)
            total += _FLOAT * images * max(one.width for one in others)
    return Estimated(total, unknown)


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


_SECONDS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True)
class Need:
    """What a benchmark of a study needs.

    Args:
        data: a line for every set that is missing or incomplete.
        weights: a line for every file of weights that is missing.
    """

    data: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()


def status(study: Study, parts: Sequence[Part], needs: Mapping[str, Need], free: int | None, again: str) -> str:
    """Return how far a study is.

    Args:
        study: narrowed or not.
        parts: its runs, by benchmark.
        needs: what each benchmark needs, by its config's name.
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
    every = len(part.done) + len(part.missing)
    time = _words(part.time, len(part.missing), duration(part.time.amount))
    space = _words(part.space, len(part.missing), size(part.space.amount))
    return part.benchmark, every, len(part.done), len(part.missing), part.trainings, time, space


def _words(found: Estimated, missing: int, amount: str) -> str:
    if not missing:
        return "–"
    if found.unknown == missing:
        return "not known"
    return f"about {amount}" + f", {found.unknown} not known" * bool(found.unknown)


def _notes(study: Study, parts: Sequence[Part], needs: Mapping[str, Need], free: int | None) -> Iterator[str]:
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
        need = needs.get(part.benchmark, Need())
        if need.data:
            how = f"python -m openbench data list {part.benchmark}"
            yield f"{part.benchmark} lacks data: {'; '.join(need.data)} — {how}"
        for line in need.weights:
            yield f"{part.benchmark} lacks weights: {line}"
    if study.source:
        yield f"paper: {study.source}"
    yield from (f"deviates: {text}" for text in study.deviations)


def duration(seconds: float) -> str:
    """Return a time in its two largest units, e.g. `3 h 20 min`."""
    left, parts = max(1, round(seconds)), list[str]()
    for unit, length in _SECONDS:
        if left >= length or (parts and len(parts) < 2):
            count, left = divmod(left, length)
            parts += [f"{count} {unit}"] * bool(count)
        if len(parts) == 2:
            break
    return " ".join(parts)


def size(amount: float) -> str:
    """Return bytes as people say them, e.g. `1.2 GB`."""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if amount >= length:
            return f"{amount / length:.1f} {unit}"
    return f"{max(1, round(amount / 1e3))} kB"
