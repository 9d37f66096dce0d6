"""Under which licences the weights and the training images of a detector are, as openbench's manifests say."""

from collections.abc import Mapping
from typing import Any

from openbench.config.overrides import NAME
from openbench.data.download.prepare import DataSource, data_sources
from openbench.data.download.weights import released_weights

_UNKNOWN = "not known to openbench — those that they came with apply"


def licences(node: Mapping[str, Any], images: str = "") -> dict[str, str]:
    """Return in words the licence of a network's weights, and of the images of a data set where one is named.

    Args:
        node: the config of the network; empty for one of the user's own.
        images: name of the data set; empty = it is not named.
    """
    released = released_weights().get(str(node.get(NAME, "")))
    found = {"weights": _told(released.source if released else None)}
    return found | ({"images": _told(data_sources().get(images))} if images else {})


def _told(source: DataSource | None) -> str:
    return f"{source.title}: {source.licence} ({source.page})" if source else _UNKNOWN
