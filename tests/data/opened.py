"""A single data set as the benchmarks open it, without a benchmark around it."""

from openbench.data.dataset import SetConfig, locate, split_of
from openbench.errors import DataError


def open_split(node, role, classes=(), incomplete="error", where=""):
    """The split that a data set's config node describes; one with missing images only if they may be."""
    where = where or f"dataset {node.get('name')}"
    config = SetConfig.from_node(node, where)
    located = locate(config)
    if located.count == 0 or (located.count < located.expected and incomplete == "error"):
        raise DataError(f"incomplete — {located.count} of {located.expected} images found")
    return split_of(config, located, role, classes, where)
