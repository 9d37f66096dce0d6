"""What is missing of a benchmark: all sets in one message, each place searched once, and the commands that help."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from openbench import paths
from openbench.core.request import Role


@dataclass(frozen=True)
class SetStatus:
    """What was found of one data set.

    Args:
        path: where it stands below `benchmark`.
        name: the data set.
        role: what it is for.
        found: images found.
        expected: images listed.
        searched: every place that was looked at.
        message: what is wrong and what can be done; empty if it is complete.
    """

    path: str
    name: str
    role: Role
    found: int
    expected: int
    searched: tuple[Path, ...]
    message: str

    @property
    def droppable(self) -> bool:
        """Whether the benchmark can be run without it."""
        return self.path.startswith(("near.", "far.", "csid.", "ood_"))

    def __str__(self) -> str:
        return f"{self.path}: {self.name}, {self.found:,} of {self.expected:,} images"


def missing_sets(gaps: Sequence[SetStatus], total: int, benchmark: str, reader: str = "") -> str:
    """Return one message on all sets that are missing: a first line that can be read alone, and the details below.

    Args:
        gaps: the sets that are missing or incomplete.
        total: how many sets were looked for.
        benchmark: what users type after `+benchmark=`.
        reader: what reads the ID training images, e.g. `method 'knn', which is fitted on it`; empty = not known.
    """
    train = [gap.path for gap in gaps if gap.role == Role.ID_TRAIN and reader]
    named = ", ".join(gap.path + f" (needed by {reader})" * (gap.path in train[-1:]) for gap in gaps)
    verb = "is" if len(gaps) == 1 else "are"
    first = f"benchmark '{benchmark}': {len(gaps)} of {total} data sets {verb} missing or incomplete: {named}"
    if _shipped(benchmark):
        first += f" — `python -m openbench data list {benchmark}` says how to get what is missing"
    return "\n".join([first, *(f"  {gap}" for gap in gaps), *advice(gaps, benchmark)])


def advice(gaps: Sequence[SetStatus], benchmark: str) -> list[str]:
    """Return the lines that say where the sets were searched, each place once, and what can be done.

    Args:
        gaps: the sets that are missing or incomplete.
        benchmark: what users type after `+benchmark=`.
    """
    lines = [*_places(place.absolute() for gap in gaps for place in gap.searched), "what to do:"]
    if _shipped(benchmark):
        lines.append(f"  download what may be downloaded: python -m openbench data prepare {benchmark}")
    named = "" if os.environ.get("OPENBENCH_DATA") else " (it is not set)"
    lines.append(f"  put the sets into one of these places; OPENBENCH_DATA names the folder of all data{named}")
    dropped = " ".join(f"~benchmark.{gap.path}" for gap in gaps if gap.droppable)
    if dropped:
        lines.append(f"  or go on without them, which is recorded: {dropped}")
    if dropped or any(gap.found for gap in gaps):
        lines.append("  or go on with what is there, which is recorded: benchmark.incomplete=allow")
    if any(gap.path == "id.train" for gap in gaps):
        lines.append("  or use a network with weights and a method that is not fitted on id.train, e.g. method=energy")
    return lines


def _shipped(benchmark: str) -> bool:
    """Whether the commands find the benchmark by its name alone."""
    return (paths.config_dir() / "benchmark" / f"{benchmark.split()[0]}.yaml").is_file()


def _places(places: Iterable[Path]) -> list[str]:
    """The places searched: those below the data roots once for all roots, others by themselves."""
    roots = [root.absolute() for root in paths.data_roots()]
    below: dict[str, None] = {}
    others: dict[str, None] = {}
    for place in places:
        root = next((root for root in roots if place.is_relative_to(root)), None)
        (others if root is None else below)[str(place if root is None else place.relative_to(root))] = None
    lines = [f"searched below {' and '.join(map(str, roots))}:", *(f"  {folder}" for folder in below)] if below else []
    return [*lines, *(["searched:"] if others else []), *(f"  {place}" for place in others)]
