"""The outliers that a training learns from: a data set that shares no class with ID or with what is tested."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from openbench.core.benchmark import Benchmark, Split, canonical
from openbench.core.request import Role
from openbench.data.dataset import SetConfig, locate, missing_message, split_of
from openbench.errors import DataError, LeakageError

WHERE = "outliers"
_OTHERS = "dataset@outliers=NAME (python -m openbench list dataset)"


def with_outliers(benchmark: Benchmark, node: Mapping[str, Any]) -> Benchmark:
    """Return the benchmark as a training that learns from outliers sees it: they are its OOD training split.

    Args:
        benchmark: as it is scored; its digest does not cover these outliers.
        node: the config node of a data set.

    Raises:
        ConfigError: a key of the node is unknown or missing.
        DataError: images are missing or unreadable.
        LeakageError: the outliers have classes of the ID images, or of images that are tested or tuned on.
    """
    config = SetConfig.from_node({key: value for key, value in node.items() if not key.startswith("_")}, WHERE)
    located = locate(config)
    if located.count < located.wanted:
        missing = missing_message(config, located, WHERE, benchmark.name)
        raise DataError(f"{missing}; a training may learn from other outliers: {_OTHERS}")
    outliers = split_of(config, located, Role.OOD_TRAIN, (), WHERE)
    _check_apart(benchmark, outliers)
    return replace(benchmark, ood_train=outliers)


def outliers_name(split: Split) -> str:
    """Return the name of a set of outliers for records: what it is called, and how many there are if not all."""
    part = len(split) < split.expected
    return f"{split.name} ({len(split)} of {split.expected})" if part else split.name


def _check_apart(benchmark: Benchmark, outliers: Split) -> None:
    known = {canonical(name) for name in benchmark.known_overlap}
    names = {canonical(name) for name in outliers.classes}
    tested = [split for role in (Role.OOD_VAL, Role.NEAR, Role.FAR) for split in benchmark.of_role(role)]
    for where, shared in [
        ("the ID classes", names & {canonical(name) for name in benchmark.classes}),
        *((f"{s.role}/{s.name}", names & {canonical(name) for name in s.classes} - known) for s in tested),
    ]:
        if shared:
            raise LeakageError(
                f"outliers '{outliers.name}' and {where} of benchmark '{benchmark.name}' share the classes "
                f"{sorted(shared)} — a training must not have seen what it is tested on — choose other outliers, "
                f"{_OTHERS}, or name the classes to learn from: +outliers.keep=[…]"
            )
