"""`+augment=NAME`: what comes after a recipe's own augmentation, or in its place."""

from typing import Any

from openbench.config.overrides import AUGMENT
from openbench.config.shipped import shipped
from openbench.errors import ConfigError

_THEN = "then"


def augmented(training: dict[str, Any], name: str | None) -> None:
    """Append the list `then` of a training's recipe to its `augment`, and keep the name of the file that was chosen.

    Args:
        training: the node; changed.
        name: the file in configs/augment, None if none was chosen.

    Raises:
        ConfigError: a benchmark that came later has replaced the list of the file.
    """
    recipe = training.get("recipe")
    if not isinstance(recipe, dict):
        return
    if _THEN in recipe:
        recipe["augment"] = [*(recipe.get("augment") or ()), *recipe.pop(_THEN)]
    if name is None:
        return
    whole = (shipped("augment", name) or {}).get("augment")
    if whole is not None and whole != recipe["augment"]:
        raise ConfigError(
            f"+augment={name} has no effect — a later argument replaces the list training.recipe.augment — "
            f"write +augment={name} after +benchmark=NAME, and do not set the list"
        )
    training[AUGMENT] = name
