"""Keys of a training or its outliers that nothing reads: an error that says what would read them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

from openbench.compose.sweep import parse
from openbench.config.overrides import NAME, OUTLIERS
from openbench.config.shipped import names, shipped
from openbench.errors import NotApplicableError

_SOURCES = ("weights", "checkpoint", "pretrained")
Node = Mapping[str, Any]


def refuse_unread(command: str, overrides: Sequence[str], config: Mapping[str, Node]) -> None:
    """Refuse keys of a training that released weights would ignore, and outliers that a training would.

    A training, or an augmentation, that is chosen by name for released weights is refused where the weights are known.

    Args:
        command: `check` reads outliers whatever the weights, the others only where there is something to train.
        overrides: as typed for this job.
        config: the scientific nodes.

    Raises:
        NotApplicableError: something would be ignored; a sweep skips the combination as not applicable.
    """
    typed = parse(overrides)
    outliers, recipe = list(_of(typed, OUTLIERS)), list(_of(typed, "training"))
    if command != "check" and comes_with_weights(config["backbone"]) and (recipe or outliers):
        raise NotApplicableError(
            f"{' '.join(recipe + outliers)} would be ignored — backbone '{_name(config['backbone'])}' comes with "
            "weights, so nothing is trained — choose a backbone that is trained, e.g. backbone=resnet18_cifar "
            "(python -m openbench list backbone), or leave it out"
        )
    if outliers and not _learns_from_outliers(config["training"]):
        raise NotApplicableError(
            f"{' '.join(outliers)} would be ignored — training '{_name(config['training'])}' does not learn from "
            f"outliers — trainings that do: {', '.join(_that_learn_from_outliers())} (training=NAME) — choose one, or "
            "leave it out"
        )


def comes_with_weights(backbone: Node) -> bool:
    """Whether the node of a backbone names weights, so that there is nothing to train; False where it does not tell."""
    if "start" in backbone:
        return False
    found = [backbone[key] for key in _SOURCES if key in backbone]
    member = backbone.get("member")
    return any(found) or (isinstance(member, Mapping) and comes_with_weights(member))


def _of(typed: Sequence[Override], node: str) -> Iterator[str]:
    """The overrides below a node, or that put a group there; removing outliers is always allowed."""
    for override in typed:
        below = override.key_or_group.startswith(f"{node}.") or (override.package or "").split(".")[0] == node
        if below and not (node == OUTLIERS and override.is_delete()):
            yield override.input_line or override.key_or_group


def _name(node: Node) -> str:
    return str(node.get(NAME) or node.get("name"))


def _learns_from_outliers(training: Node) -> bool:
    from openbench.config.build import target_of

    return bool(getattr(target_of(training, "training"), "uses_outliers", False))


def _that_learn_from_outliers() -> Iterator[str]:
    """The shipped trainings that do."""
    for name in names("training"):
        if _learns_from_outliers(shipped("training", name) or {}):
            yield name
