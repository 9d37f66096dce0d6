"""A single data set as the benchmarks open it, without a benchmark around it."""

from openbench.data.dataset import BenchmarkSet, SetConfig, locate, split_of
from openbench.errors import DataError


def open_split(node, role, classes=(), incomplete="error", where=""):
    """The split that a data set's config node describes; one with missing images only if they may be."""
    where = where or f"dataset {node.get('name')}"
    located = locate(BenchmarkSet(where, role, SetConfig.from_node(node, where)))
    if not located.found or (located.missing and incomplete == "error"):
        raise DataError(f"incomplete — {located.found} of {located.expected} images found")
    return split_of(located, classes)
