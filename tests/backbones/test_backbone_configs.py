"""The yaml files of configs/backbone: complete, truthful, and buildable wherever nothing needs downloading."""

import inspect
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from openbench.backbones.network import NetworkBackbone
from openbench.config.build import build, target_of
from openbench.core.preprocess import Preprocess
from openbench.digest import file_sha256
from openbench.paths import config_dir

FILES = sorted((config_dir() / "backbone").glob("*.yaml"))
GENERIC = ("torchvision", "timm", "open_clip")
BENCHMARK = {"num_classes": 6, "preprocess": Preprocess(32, 32), "classes": ("a", "b", "c", "d", "e", "f")}


@cache
def node(path: Path) -> dict[str, Any]:
    resolved = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    assert isinstance(resolved, dict)
    # A default like `/backbone@member: resnet18_cifar` puts another file's node there.
    for default in resolved.pop("defaults", []):
        if isinstance(default, dict):
            ((place, name),) = default.items()
            resolved[place.partition("@")[2]] = node(path.with_name(f"{name}.yaml"))
    # An interpolation may reach into what a default has put there.
    resolved = OmegaConf.to_container(OmegaConf.create(resolved), resolve=True)
    return {str(key): value for key, value in resolved.items()}  # type: ignore[union-attr]


def test_every_key_of_the_factory_is_spelt_out() -> None:
    off = {}
    for path in FILES:
        found = node(path)
        differ = (set(found) - {"_target_"}) ^ set(inspect.signature(target_of(found)).parameters)
        if differ:
            off[path.stem] = differ
    assert off == {}


def test_name_is_what_users_type() -> None:
    off = {}
    for path in FILES:
        found = node(path)
        names = {name: f"{name}_{found.get('model')}" for name in GENERIC}
        if "start" in found:
            names["finetuned"] = f"{found['start']['name']}_finetuned"
        if found["name"] != names.get(path.stem, path.stem):
            off[path.stem] = found["name"]
    assert off == {}


def test_networks_of_openais_weights_have_quick_gelu_which_these_were_trained_with() -> None:
    models = {path.stem: node(path)["model"] for path in FILES if node(path).get("weights") == "openai"}
    assert len(models) == 4
    assert {name: model for name, model in models.items() if "quickgelu" not in model} == {}


def test_released_weights_have_the_hash_stated(real_data: Path) -> None:
    """Of every yaml that states the hash of a file of its own; not all authors publish one."""
    nodes = [node(path) for path in FILES if "sha256" in path.read_text()]
    stated = {n["weights"]: n["sha256"] for n in nodes if n.get("weights") and n.get("sha256")}
    here = {name: config_dir().parent / name for name in stated}  # those of results/weights
    files = {name: file if file.is_file() else real_data / name for name, file in here.items()}
    assert {name: file_sha256(file) for name, file in files.items()} == stated
    assert len(stated) > 3


def test_untrained_ones_take_classes_and_preprocessing_from_the_benchmark() -> None:
    untrained = [path for path in FILES if "weights: null" in path.read_text()]
    assert len(untrained) > 3
    for path in untrained:
        backbone = build(node(path), "backbone", **BENCHMARK)
        assert isinstance(backbone, NetworkBackbone), path.stem
        assert (backbone.trained, backbone.num_classes) == (False, 6), path.stem
        assert backbone.preprocess == BENCHMARK["preprocess"], path.stem
