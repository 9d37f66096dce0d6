"""Under which licences the weights and the training images of a detector are, as openbench's manifests say."""

from collections.abc import Mapping
from typing import Any

from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.data.download import DataSource, data_sources
from openbench.data.weights import released_weights

_WHICH = ("model", "weights", "checkpoint", "pretrained")  # keys of a config that say which weights are loaded
_UNKNOWN = "not known to openbench — those that they came with apply"


def licences(node: Mapping[str, Any], images: str = "") -> dict[str, str]:
    """Return in words the licence of a network's weights, and of the images of a data set where one is named.

    Args:
        node: the config of the network; empty for one of the user's own. Weights that openbench's config of that name
            does not load are not the released ones.
        images: name of the data set; empty = it is not named.
    """
    name = str(node.get(NAME, ""))
    own = shipped("backbone", name) or {}
    same = all(node.get(key) == own.get(key) for key in _WHICH)
    released = released_weights().get(name) if same else None
    found = {"weights": _told(released.source if released else None)}
    return found | ({"images": _told(data_sources().get(images))} if images else {})


def _told(source: DataSource | None) -> str:
    return f"{source.title}: {source.licence} ({source.page})" if source else _UNKNOWN
