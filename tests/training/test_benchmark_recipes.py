"""Every training on every benchmark: the common recipe of OpenOOD v1.5, what its paper changes, what is typed."""

from functools import cache
from typing import Any

import pytest
from hydra import compose as hydra_compose, initialize_config_dir

from openbench import paths
from openbench.compose.config import VERSION_BASE, compose, composed as whole, plain
from openbench.config.build import build
from openbench.config.folders import shipped
from openbench.errors import ConfigError
from openbench.training.recipe import Recipe

TRAININGS = sorted(file.stem for file in (paths.config_dir() / "training").glob("*.yaml"))

# Copied from OpenOOD v1.5's scripts: data → epochs, images per step, highest rate, how images are cut.
COMMON = {
    "cifar10": (100, 128, 0.1, "RandomCrop"),
    "cifar100": (100, 128, 0.1, "RandomCrop"),
    "imagenet200": (90, 256, 0.1, "RandomResizedCrop"),
    "imagenet1k": (30, 256, 0.001, "RandomResizedCrop"),
}
# And what trainings have of their own: training → key → value, or a value for each of these data.
ON = tuple(COMMON)
OWN: dict[str, dict[str, Any]] = {
    "arpl": {"weight": 0.1, "recipe.weight_decay": 1e-4},
    "cider": {
        "keep": (0.95, 0.5, 0.95, 0.95),
        "weight": 2,
        "temperature": 0.1,
        "recipe.weight_decay": 1e-4,
        "recipe.lr": 0.5,
        "recipe.batch_size": 512,
        "recipe.warmup_epochs": 10,
    },
    "cider_last_stage": {"tuning.epochs": 10, "tuning.lr": (0.01, 0.01, 0.01, 0.001), "weight_decay": 1e-4},
    "conf_branch": {"weight": 0.1, "budget": 0.3},
    "csi": {"temperature": 0.07, "recipe.weight_decay": 1e-6, "recipe.batch_size": 64, "recipe.warmup_epochs": 10},
    "dropout": {"probability": 0.5},
    "energy_bounded": {"m_in": (-23, -27, -23, -23), "m_out": -5},
    "ish": {"percentile": 85, "tuning.lr": 0.003, "tuning.epochs": 10, "head_weight_decay": 5e-5},
    "logitnorm": {"temperature": 0.04},
    "mcd": {"margin": 1.2, "weight": 1},
    "mixoe": {"tuning.epochs": 10, "tuning.lr": 0.001, "alpha": 0.1, "weight": 1},
    "mos": {"groups": (2, 20, 6, 8), "tuning.epochs": (30, 30, 10, 5), "tuning.lr": 0.003},
    "npos": {
        "k": (300, 300, 400, 400),
        "sample_from": (600, 600, 1000, 1000),
        "keep_farthest": (200, 200, 300, 300),
        "select": 200,
        "pick": 2,
        "sigma": 0.1,
        "recipe.batch_size": 256,
        "recipe.weight_decay": 1e-4,
        "recipe.warmup_epochs": 10,
    },
    "outlier_exposure": {"weight": 0.5, "outliers_per_step": 256},
    "palm": {
        "keep": (0.9, 0.999, 0.999, 0.999),
        "recipe.batch_size": (16, 512, 256, 256),
        "recipe.warmup_epochs": 10,
        "recipe.lr": (0.1, 0.5, 0.1, 0.001),
        "recipe.weight_decay": 1e-4,
        "prototypes": 6,
        "top": 5,
    },
    "reweightood": {"recipe.batch_size": 512, "recipe.weight_decay": 1e-4, "recipe.warmup_epochs": 10, "m_b": 5},
    "rotpred": {"recipe.batch_size": (128, 128, 256, 64)},
    "supcon": {"recipe.lr": 0.5, "recipe.batch_size": 512, "recipe.warmup_epochs": 10, "recipe.weight_decay": 1e-4},
    "t2fnorm": {"temperature": (0.1, 0.1, 0.1, 0.05)},
    "udg": {"purity": 0.8, "dims": 256, "groups": 1000, "outlier_weight": 0.5, "group_weight": 0.1},
    "vos": {"weight": 0.1},
}
# Epochs that begin with outliers: how many come before, published as a number.
WITHOUT_OUTLIERS = {"mcd": {"cifar10": 90, "cifar100": 90, "imagenet200": 80}, "npos": dict.fromkeys(ON[:3], 40)}
WITHOUT_OUTLIERS["npos"]["imagenet1k"] = 1


def composed(*words: str) -> dict[str, Any]:
    return plain(compose("run", words), "training")


def at(node: dict[str, Any], path: str) -> Any:
    for key in path.split("."):
        node = node[key]
    return node


def cut(recipe: dict[str, Any]) -> str:
    return recipe["augment"][0]["_target_"].rpartition(".")[2]


@cache
def with_recipe(recipe: str) -> Any:
    """All trainings, composed at once: each under its own name, not `training`; the data are to be named."""
    words = [word for name in TRAININGS for word in (f"+training@{name}={name}", f"recipe@{name}.recipe={recipe}")]
    with initialize_config_dir(config_dir=str(paths.config_dir()), version_base=VERSION_BASE):
        return hydra_compose(overrides=[*words, "+benchmark.classes=null"])


def nodes_of(data: str) -> dict[str, Any]:
    """The nodes of all trainings on a benchmark."""
    cfg = compose("run", (f"+benchmark={data}", "training=palm"))
    found = with_recipe(cfg.hydra.runtime.choices["recipe@training.recipe"])
    found.benchmark.classes = cfg.benchmark.classes
    nodes = {name: plain(found, name) for name in TRAININGS}
    assert nodes["palm"] == plain(cfg, "training")  # a benchmark brings the recipe, and nothing else of a training
    return nodes


@pytest.mark.parametrize("data", COMMON)
def test_a_training_has_the_common_recipe_but_for_what_is_its_own(data: str) -> None:
    offenders = []
    for training, node in nodes_of(data).items():
        assert isinstance(build(node).recipe, Recipe)
        epochs, batch, lr, crop = COMMON[data]
        common = {"epochs": epochs, "batch_size": batch, "lr": lr, "momentum": 0.9, "weight_decay": 5e-4}
        common |= {"nesterov": True, "warmup_epochs": 0, "final_lr": 1e-6}
        wanted = {f"recipe.{key}": value for key, value in common.items()} | OWN.get(training, {})
        wanted = {k: v[ON.index(data)] if isinstance(v, tuple) else v for k, v in wanted.items()}
        found = {key: at(node, key) for key in wanted} | {"cut": cut(node["recipe"])}
        offenders += [(training, k, found[k], v) for k, v in (wanted | {"cut": crop}).items() if found[k] != v]
        before = WITHOUT_OUTLIERS.get(training, {}).get(data)
        late = next((e for e in range(epochs) if e >= node.get("start", 0) * epochs), None)
        offenders += [(training, "start", late, before)] if before is not None and late != before else []
    assert offenders == []


def test_what_is_typed_goes_before_all() -> None:
    words = ("+benchmark=cifar100", "training=palm", "training.keep=0.7", "training.recipe.batch_size=33")
    node = composed(*words)
    assert (node["keep"], node["recipe"]["batch_size"], node["recipe"]["lr"]) == (0.7, 33, 0.5)
    node = composed("+benchmark=imagenet200", "recipe@training.recipe=cifar", "training=cider")
    assert (node["recipe"]["epochs"], node["recipe"]["batch_size"], cut(node["recipe"])) == (100, 512, "RandomCrop")


@pytest.mark.parametrize(
    ("data", "crop", "randaugment", "alpha"),
    [
        ("cifar10", ["RandomCrop", "HorizontalFlip"], (1, 14), 20),
        ("imagenet200", ["RandomResizedCrop", "HorizontalFlip"], (1, 10), 10),
        ("imagenet1k", ["RandomResizedCrop", "HorizontalFlip"], (2, 9), 10),
        ("digits", ["RandomCrop"], (1, 14), 20),  # no mirror images
    ],
)
def test_an_augmentation_follows_the_recipes_own(data, crop, randaugment, alpha) -> None:
    words = [f"+benchmark={data}", "+augment=randaugment", "backbone=resnet18_cifar"]
    node = whole("train", words[::-1] if data.startswith("imagenet") else words).config["training"]
    *before, last = node["recipe"]["augment"]
    assert [a["_target_"].rpartition(".")[2] for a in before] == crop
    assert (node["_augment_"], "then" in node["recipe"]) == ("randaugment", False)
    assert (last["operations"], last["magnitude"]) == randaugment
    assert (shipped("augment", "regmixup", data) or {})["then"][0]["alpha"] == alpha


def test_a_list_that_a_benchmark_replaces_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\+augment=random_resized_crop has no effect, .* after \+benchmark"):
        whole("train", ["+augment=random_resized_crop", "+benchmark=digits"])
    node = whole("train", ["+benchmark=digits", "+augment=random_resized_crop"]).config["training"]
    assert cut(node["recipe"]) == "RandomResizedCrop"


def test_without_a_benchmark_a_training_is_what_it_generally_is() -> None:
    assert (shipped("training", "mos") or {})["groups"] == 2
    assert (shipped("augment", "randaugment") or {})["then"][0]["magnitude"] == 14
