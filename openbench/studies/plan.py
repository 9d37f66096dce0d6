"""What of a study is done, what is to do, and what that costs according to the records there are."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from openbench.studies.cells import Asked, States, planned, states_of
from openbench.studies.made import Archive, Made
from openbench.studies.study import Study
from openbench.studies.wanted import Wanted, key_of

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
    found = {run.words: {archive.state(one, run) for one in archive.fitting(run)} for run in runs}
    done = tuple(run for run in runs if states.get(run.form) in found[run.words])
    missing = tuple(run for run in runs if states.get(run.form) not in found[run.words])
    partial = tuple(run for run in missing if found[run.words])
    extracted = {_network(one) for one in archive.of_benchmark(every[0].benchmark)}
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


def _network(one: Made) -> tuple[str, ...]:
    return (one.run.benchmark, *(one.names[key] for key in ("backbone", "training", "augment", "seed")))


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
