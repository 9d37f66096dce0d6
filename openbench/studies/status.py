"""How far a study is, in words: what it needs, what is done, and what is to do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from openbench.results.tables.render import Column, Table, to_console
from openbench.studies.plan import Estimated, Part
from openbench.studies.study import Study

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
