"""`+scorer=published`: the method that a training's paper evaluates it with, in place of the one chosen."""

from collections.abc import Mapping
from typing import Any

from openbench.config.build import target_of
from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.errors import ConfigError
from openbench.public import TARGET

# A key of the method node; configs/scorer/published.yaml sets it.
SCORER_OF_TRAINING = "_scorer_of_training_"


def published_scorer(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the method node that the class of a training node names, as its yaml has it.

    Raises:
        ConfigError: the target is not a training method, or what it names is not in configs/method.
    """
    from openbench.training.base import TrainingMethod

    target = target_of(training, "training", (TrainingMethod,))
    if not (isinstance(target, type) and issubclass(target, TrainingMethod)):
        raise ConfigError(f"training: `{TARGET}: {training[TARGET]}` is not an openbench.training.base.TrainingMethod")
    node = shipped("method", target.scorer)
    if node is None:
        raise ConfigError(
            f"training '{target.__name__}' is evaluated with '{target.scorer}' — no such file in configs/method — "
            "choose a method by name instead of +scorer=published"
        )
    return {**node, **target.scorer_params, NAME: target.scorer}
