from functools import cache
from pathlib import Path

import pytest
import yaml

from openbench import paths
from openbench.compose.config import compose, published_scorer, scientific
from openbench.config.build import target_of
from openbench.errors import ConfigError

TRAININGS = sorted(file.stem for file in (paths.config_dir() / "training").glob("*.yaml"))


def nodes(*overrides: str) -> dict[str, object]:
    names = ("backbone", "training", "method", "tune", "metrics")
    chosen = dict(override.split("=") for override in overrides if not override.startswith("+"))
    choices = dict.fromkeys(names, "x") | {"method": "msp", "training": "cross_entropy"} | chosen
    return scientific(compose("run", ["+benchmark=digits", *overrides]), choices)


@cache
def method_typed(name: str) -> dict[str, object]:
    """The node of a method; most trainings share one, and none changes it."""
    found = nodes(f"method={name}")["method"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("training", TRAININGS)
def test_published_scorer_is_what_typing_its_name_gives(training: str) -> None:
    cls = target_of(yaml.safe_load((paths.config_dir() / "training" / f"{training}.yaml").read_text()))
    typed = method_typed(cls.scorer) | cls.scorer_params
    assert nodes(f"training={training}", "+scorer=published")["method"] == typed


def test_t2fnorm_is_scored_without_ties() -> None:
    assert published_scorer({"_target_": "openbench.training.methods.t2fnorm.T2FNorm"})["exact"] is True


def test_without_it_the_method_is_the_one_chosen() -> None:
    assert nodes("training=cider")["method"]["_name_"] == "msp"


def test_a_training_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is not an openbench\.training\.base\.TrainingMethod"):
        published_scorer({"_target_": "openbench.training.recipe.Recipe"})


def test_a_scorer_without_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openbench.training.methods.cross_entropy.CrossEntropy.scorer", "nobody")
    with pytest.raises(ConfigError, match="'nobody' — no such file in configs/method"):
        published_scorer({"_target_": "openbench.training.methods.cross_entropy.CrossEntropy"})
