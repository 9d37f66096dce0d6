"""Keys that nothing would read are errors that say who would, and `+scorer=published`."""

from typing import Any

import pytest

from openbench import paths
from openbench.cli.app import carry_out
from openbench.compose.config import compose, composed, published_scorer, scientific
from openbench.config.build import target_of
from openbench.config.folders import shipped
from openbench.errors import ConfigError, NotApplicableError


def refused(*typed: str, command="run", **chosen: str) -> str:
    names = {"backbone": "resnet20_cifar10", "training": "cross_entropy", "method": "msp", **chosen}
    words = [*(f"{group}={name}" for group, name in names.items()), *typed]
    try:
        composed(command, ["+benchmark.name=any", *words])
    except NotApplicableError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("command", ["run", "train"])
def test_keys_of_a_training_beside_released_weights_are_refused(command):
    words = ["training.recipe.epochs=3", "recipe@training.recipe=cifar"]
    message = refused(*words, command=command)
    assert message.startswith(f"{' '.join(words)} has no effect, as backbone 'resnet20_cifar10' comes with weights")
    assert "backbone=resnet18_cifar" in message


def test_outliers_that_a_training_does_not_learn_from_are_refused():
    typed = ["dataset@outliers=tin597", "outliers.limit=5"]
    message = refused(*typed, backbone="resnet18_cifar")
    assert message.startswith(f"{' '.join(typed)} has no effect, as training 'cross_entropy' does not learn from outl")
    assert "energy_bounded, mcd, mixoe, outlier_exposure, udg (training=NAME)" in message
    assert "comes with weights" in refused(*typed)


def test_a_check_of_outliers_asks_for_a_training_that_learns_from_them():
    outliers = "dataset@outliers=tin597"
    assert "does not learn from outliers" in refused(outliers, command="check")
    assert not refused(outliers, command="check", training="outlier_exposure")


@pytest.mark.parametrize("backbone", ["ensemble", "torchvision_resnet18_finetuned"])
def test_what_is_trained_reads_both(backbone):
    assert not refused("training.recipe.epochs=3", "dataset@outliers=tin597", backbone=backbone, training="mixoe")


def test_an_ensemble_of_released_weights_reads_neither():
    word = "training.recipe.epochs=3"
    assert "comes with weights" in refused(word, "backbone@backbone.member=resnet20_cifar10", backbone="ensemble")


def test_outliers_may_be_taken_away_everywhere():
    assert "outliers" in composed("run", ["+benchmark=digits"]).config
    assert "outliers" not in composed("run", ["+benchmark=digits", "~dataset@outliers"]).config


TRAININGS = sorted(file.stem for file in (paths.config_dir() / "training").glob("*.yaml"))


def nodes(*overrides: str) -> dict[str, Any]:
    names = ("backbone", "training", "method", "tune", "metrics")
    chosen = dict(override.split("=") for override in overrides if not override.startswith("+"))
    choices = dict.fromkeys(names, "x") | {"method": "msp", "training": "cross_entropy"} | chosen
    return scientific(compose("run", ["+benchmark.name=any", *overrides]), choices)


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
    with pytest.raises(ConfigError, match=r"has no `scorer` that is a name in configs/method"):
        published_scorer({"_target_": "openbench.training.recipe.Recipe"})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("show method knn --format json --explain", "--format, --explain has no effect, as show method does not read"),
        ("verify --submission mine 36e6c0 --images", "RUN_ID…, --images has no effect, as --submission does not read"),
        ("study tuning/digits --to tables --format csv", "--format has no effect, as study without --table does not"),
        ("data list cifar10c --format json", "--format has no effect, as data list cifar10c does not read it"),
        ("data verify digits --fast --show 3", "--show has no effect, as --fast does not read it"),
        ("data new t --features train=a.npy --epochs 3", "--epochs has no effect, as --features does not read it"),
        ("data list noise", "data set 'noise' has no download: it is computed, or made of files that are here"),
        ("monitor a.csv b.csv --reset", "--reset has no effect without --state"),
        ("report latest --out run.pdf", "--out 'run.pdf' — allowed: a name that ends in .html"),
    ],
)
def test_options_and_names_that_a_command_does_not_read_are_refused(line, said):
    with pytest.raises(ConfigError) as caught:
        carry_out(line.split())
    assert str(caught.value).startswith(said)
