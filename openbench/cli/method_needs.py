"""What a method needs besides logits and features of the image, read from its config and source without torch."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from openbench import paths
from openbench.cli.commands.listing import Registry
from openbench.cli.method_source import Needs, method_source
from openbench.detect.recommend.choose import OF_TEXT
from openbench.errors import OpenbenchError

_TARGET, _SPACE = "_target_", "_space_"
_STEP = "epsilon"  # of every method that has it: length of a step along the gradient by the image; 0 for none


def needs_of(name: str, params: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return what a method needs, of `training data`, `outliers`, `gradients`, `text`; None if it is not known.

    Args:
        name: what users type after `method=`.
        params: its hyper-parameters.
    """
    found = _sources().get(name)
    if found is None:
        return None
    needed = found.values()
    wanted = {
        "training data": any(needs.fit_on == "id_train" for needs in needed),
        "outliers": any(needs.fit_on == "ood_train" for needs in needed),
        "gradients": bool(params.get(_STEP)) or any(needs.perturb or needs.images for needs in needed),
        "text": any(needs.texts or target.rpartition(".")[2] in OF_TEXT for target, needs in found.items()),
    }
    return tuple(need for need, asked in wanted.items() if asked)


@cache
def _sources() -> dict[str, dict[str, Needs]]:
    """What each shipped method reads, and each method that it is made of, by their classes."""
    found = {}
    for entry in Registry((paths.config_dir(),)).entries("method"):
        try:
            found[entry.name] = {target: method_source(target).needs for target in _targets(entry.config())}
        except OpenbenchError:  # a config of a user's checkout that is not finished
            continue
    return found


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if isinstance(node.get(_TARGET), str):
            yield node[_TARGET]
        for key, child in node.items():
            if key != _SPACE:
                yield from _targets(child)
    elif isinstance(node, list):
        for child in node:
            yield from _targets(child)
