"""Open-set benchmarks: one data set, some of its classes known, the others unknown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from openbench.config.constraints import check_values, hints_of
from openbench.data.manifests.manifest import load_classes
from openbench.errors import ConfigError, check_known, did_you_mean

KEEP = ("known", "unknown")


@dataclass(frozen=True)
class ClassSplit:
    """Which classes of a data set a classifier knows.

    Args:
        known: the classes it is trained on, in the list's order.
        unknown: the others, which are OOD.
    """

    known: tuple[str, ...]
    unknown: tuple[str, ...]

    def keep(self, part: str, where: str) -> tuple[str, ...]:
        """Return the classes of `known` or `unknown`.

        Raises:
            ConfigError: another word.
        """
        if part not in KEEP:
            raise ConfigError(f"{where}.keep — found {part!r}{did_you_mean(part, KEEP)} — allowed: {', '.join(KEEP)}")
        return self.known if part == "known" else self.unknown


@dataclass(frozen=True)
class _Drawing:
    of: str
    known: int
    seed: int = 0


def class_split(node: Mapping[str, Any]) -> ClassSplit:
    """Return the split of classes that a `benchmark.openset` node describes.

    The classes are put into the order of `numpy.random.default_rng(seed).permutation`; the first ones are known.

    Args:
        node: `of`, the name of a class list; `known`, how many are known; `seed`.

    Raises:
        ConfigError: a key that is not one of these, or a number of known classes that leaves none on one side.
    """
    check_known(node, [f.name for f in fields(_Drawing)], "benchmark.openset")
    if not {"of", "known"} <= set(node):
        raise ConfigError(f"benchmark.openset: found {sorted(node)} — `of` (a class list) and `known` are needed")
    check_values(node, hints_of(_Drawing), "benchmark.openset")
    drawing = _Drawing(**node)
    names: Sequence[str] = load_classes(drawing.of)
    if not 2 <= drawing.known < len(names):
        raise ConfigError(
            f"benchmark.openset.known — found {drawing.known} — allowed: 2 to {len(names) - 1}, so that "
            "some classes are left to be unknown"
        )
    first = set(np.random.default_rng(drawing.seed).permutation(len(names))[: drawing.known].tolist())
    return ClassSplit(
        tuple(name for i, name in enumerate(names) if i in first),
        tuple(name for i, name in enumerate(names) if i not in first),
    )
