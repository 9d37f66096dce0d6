from typing import Any

import pytest

from openbench import paths
from openbench.compose.config import compose, published_scorer, scientific
from openbench.config.build import target_of
from openbench.config.folders import shipped
from openbench.errors import ConfigError

TRAININGS = sorted(file.stem for file in (paths.config_dir() / "training").glob("*.yaml"))


def nodes(*overrides: str) -> dict[str, Any]:
    names = ("backbone", "training", "method", "tune", "metrics")
    chosen = dict(override.split("=") for override in overrides if not override.startswith("+"))
    choices = dict.fromkeys(names, "x") | {"method": "msp", "training": "cross_entropy"} | chosen
    return scientific(compose("run", ["+benchmark=digits", *overrides]), choices)


def test_published_scorer_is_what_typing_its_name_gives() -> None:
    for training in sorted({*TRAININGS[::5], "t2fnorm"}):
        node = shipped("training", training)
        assert node is not None
        cls = target_of(node)
        typed = nodes(f"method={cls.scorer}")["method"] | cls.scorer_params
        assert published_scorer(node) == typed, training
        if training == "t2fnorm":
            assert nodes(f"training={training}", "+scorer=published")["method"] == typed


def test_a_training_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is not an openbench\.training\.base\.TrainingMethod"):
        published_scorer({"_target_": "openbench.training.recipe.Recipe"})
