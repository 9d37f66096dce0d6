"""Where released weights come from, and what their networks have seen."""

import re
from dataclasses import replace

import pytest
import yaml

from openbench import _compat
from openbench.cli.app import carry_out
from openbench.cli.process import OK
from openbench.data.download import Weights, released_weights
from openbench.paths import config_dir

SEEN = {"title": "", "licence": "", "page": "", "images": "pictures", "labels": "classes"}
IMAGENET = Weights("toy", **SEEN, classes=("imagenet1k/classes", "imagenet1k/wnids"))


def test_every_backbone_with_released_weights_says_where_they_come_from():
    """Those without are trained on the benchmark, take a model by name, or run no network."""
    without = {
        "array_features", "ensemble", "features", "finetuned", "identity", "open_clip", "timm", "torchvision",
        "resnet8_digits",
        *(f"resnet{n}_cifar" for n in (18, 20, 32, 44, 56)),
    }  # fmt: skip
    assert {path.stem for path in (config_dir() / "backbone").glob("*.yaml")} - without == set(released_weights())


def test_torchvisions_weights_have_the_address_that_torchvision_states():
    models = _compat.library("torchvision").models
    wrong = {}
    for name, weights in released_weights().items():
        node = yaml.safe_load((config_dir() / f"backbone/{name}.yaml").read_text())
        node = node.get("start", node)
        if "torchvision_model" in node["_target_"] and "/" not in (node["weights"] or "/"):
            stated = models.get_model_weights(node["model"])[node["weights"]].url
            (file,) = weights.files
            if (file.url, file.gives) != (stated, f"weights/{stated.rpartition('/')[2]}"):
                wrong[name] = file
    assert wrong == {}


def test_classes_are_seen_where_the_labels_named_them():
    assert IMAGENET.labelled(["tabby", "cobwebbed", "n01440764", "n00007846"]) == ("tabby", "n01440764")
    assert IMAGENET.seen(["Tabby", "cobwebbed"]) == "1 of 2"
    assert IMAGENET.seen(["cobwebbed"]) == "none"
    assert IMAGENET.seen([]) == "the set names no classes"


def test_imagenet_21k_is_looked_up_by_wordnet_ids_alone():
    larger = replace(IMAGENET, wordnet=True)
    assert larger.seen(["n00470682", "n00007846"]) == "2 of 2"
    assert larger.seen(["n00470682", "donuts"]).startswith("1 or more of 2: ")


def test_every_entry_has_a_licence_and_says_what_its_labels_were():
    for name, weights in released_weights().items():
        assert weights.licence, name
        assert weights.files or weights.by_hand, name
        assert weights.classes or weights.unknown, name


@pytest.fixture
def told(monkeypatch, tmp_path, capsys):
    """Run a `data` command with an empty data folder; what it returns and prints."""
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = carry_out(["data", *words])
        return code, capsys.readouterr().out

    return run


def test_weights_that_are_there_are_not_downloaded_again(told, tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/cifar10_resnet20.safetensors").write_bytes(b"stand-in")
    code, text = told("prepare", "backbone=resnet20_cifar10")
    assert (code, text) == (OK, "weights/cifar10_resnet20.safetensors: is there\n")


def test_a_benchmark_is_told_which_ood_classes_the_labels_named(told):
    code, text = told("list", "backbone=timm_bit_r101x1", "imagenet1k")
    assert code == OK
    assert re.search(r"near\.ssb_hard +980 +980 of 980", text)
    assert re.search(r"near\.ninco +64 +\d+ or more of 64", text)
    assert re.search(r"far\.inaturalist +0 +the set names no classes", text)
