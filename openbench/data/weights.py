"""Released weights: where they come from, and what their network was trained on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench import paths
from openbench.core.benchmark import canonical
from openbench.data.download import DataSource, parse_source
from openbench.data.manifests import load_classes
from openbench.storage.yaml_file import read_yaml


@dataclass(frozen=True, kw_only=True)
class Weights(DataSource):
    """Released weights of a backbone: their origin and licence, and the data that the network was trained on.

    Args:
        images: the images.
        labels: their labels; `none` for self-supervised networks.
        classes: names of the class lists of these labels.
        wordnet: whether the labels are ImageNet-21k's, which include every WordNet id.
        unknown: why it is not known whether a class was seen; empty = it is.
    """

    images: str
    labels: str
    classes: Sequence[str] = ()
    wordnet: bool = False
    unknown: str = ""

    def labelled(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return the classes that were among the labels, compared as ID and OOD classes are.

        Args:
            classes: names, of which some may be WordNet ids.
        """
        named = {canonical(name) for part in self.classes for name in load_classes(part)}
        return tuple(name for name in classes if canonical(name) in named or (self.wordnet and _is_wordnet_id(name)))

    def seen(self, classes: Sequence[str]) -> str:
        """Return in words whether the classes of a set were among the labels; the set may name none."""
        if not classes:
            return "the set names no classes"
        count = len(self.labelled(classes))
        if self.unknown and not count:
            return f"not known: {self.unknown}"
        if self.wordnet and not all(map(_is_wordnet_id, classes)):
            return f"{count} or more of {len(classes)}: only WordNet ids can be looked up in ImageNet-21k"
        return f"{count} of {len(classes)}" if count else "none"


@lru_cache(maxsize=1)
def released_weights() -> Mapping[str, Weights]:
    """Return the entries of `data_manifests/weights.yaml` by the backbone's name."""
    entries = read_yaml(paths.manifest_dir() / "weights.yaml")
    # Their own name is what users type after `data prepare`.
    return {name: parse_source(f"backbone={name}", entry, Weights) for name, entry in entries.items()}


def are_missing(backbone: Mapping[str, Any]) -> bool:
    """Return whether weights are known by their file and not in a data root, the working folder or torch hub's cache.

    Args:
        backbone: its config node.
    """
    from torch.hub import get_dir

    weights, entry = str(backbone.get("weights") or ""), released_weights().get(str(backbone.get("name")))
    files = [weights] if "/" in weights else [f.gives for f in entry.files] if entry and weights else []
    places = [place for file in files for place in paths.places(file)]
    places += [Path(get_dir()) / "checkpoints" / Path(file).name for file in files]
    return bool(files) and not any(place.is_file() for place in places)


def _is_wordnet_id(name: str) -> bool:
    return len(name) == 9 and name[0] == "n" and name[1:].isdigit()
