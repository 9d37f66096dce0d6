"""Shipped config files and typed values as plain values: what Hydra makes of them."""

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from omegaconf import OmegaConf

from openbench import paths
from openbench.compose.config import VERSION_BASE
from openbench.config.folders import data_of, named_for, names, resolved, shipped
from openbench.config.overrides import is_name, word

GROUPS = ("augment", "backbone", "dataset", "method", "recipe", "training")
# Files that are more than their own keys: they have defaults, or values that hold on some data.
COMPOSED = [
    (group, name)
    for group in GROUPS
    for name in names(group)
    if any(sign in (paths.config_dir() / group / f"{name}.yaml").read_text() for sign in ("\ndefaults:", "${by_data:"))
]


def by_hydra(data: str) -> dict:
    """{GROUP_FILE: its node} as Hydra composes all these files for a benchmark with the classes of some data."""
    files = [f"+{group}@{group}_{name}={name}" for group, name in COMPOSED]
    with initialize_config_dir(config_dir=str(paths.config_dir()), version_base=VERSION_BASE):
        cfg = compose(overrides=[*files, f"+benchmark.classes={data}/classes", "+name=NAME"])
    return OmegaConf.to_container(cfg, resolve=True)


@pytest.mark.parametrize("data", ["imagenet1k"])
def test_a_shipped_file_means_what_hydra_composes_of_it(data):
    expected = by_hydra(data)
    found = {f"{group}_{name}": OmegaConf.create(shipped(group, name, data)) for group, name in COMPOSED}
    differing = [name for name, node in found.items() if OmegaConf.to_container(node, resolve=True) != expected[name]]
    assert differing == []
    assert len(COMPOSED) > 25


@pytest.mark.parametrize("order", ["[base]", "[_self_, base]"])
def test_a_file_stands_among_its_defaults_where_hydra_puts_it(tmp_path, monkeypatch, order):
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "base.yaml").write_text("k: 1\nsteps: 2\n")
    (tmp_path / "method" / "one.yaml").write_text(f"defaults: {order}\nk: 3\n")
    with initialize_config_dir(config_dir=str(tmp_path), version_base=VERSION_BASE):
        expected = OmegaConf.to_container(compose(overrides=["+method=one"]).method)
    monkeypatch.setattr("openbench.config.folders.config_dir", lambda: tmp_path)
    assert shipped("method", "one") == expected


def test_values_hold_on_the_data_that_a_file_names():
    assert data_of("augment", "randaugment") == ["imagenet1k", "imagenet200"]
    magnitudes = [shipped("augment", "randaugment", data)["then"][0]["magnitude"] for data in ("", "imagenet200")]
    assert magnitudes == [14, 10]


@pytest.mark.parametrize("data", ["", "cifar100"])
def test_a_value_with_a_colon_is_the_one_that_hydra_reads(data):
    node = {"value": "${by_data:a:b,{cifar100:c:d, cifar10:e}}"}
    by_hydra = OmegaConf.create({**node, "benchmark": {"classes": f"{data}/classes"}})
    assert resolved(node, data) == {"value": by_hydra.value}


def test_a_file_that_is_not_shipped_means_nothing():
    assert shipped("method", "mine") is None


def test_a_class_is_typed_by_the_file_that_names_it():
    assert named_for("CrossEntropy", "training") == "cross_entropy"
    assert named_for("mine.Loss", "training") == "loss"


def read_by_hydra(text: str) -> object:
    """The value of an override, as Hydra reads it."""
    value = OverridesParser.create().parse_override(f"key={text}").value()
    return plain(value)


def plain(value: object) -> object:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


VALUES = [
    *(None, True, False, 0, -3, 2.5, 1e-30),
    *("text", "a b", "it's", 'say "x"', "a\\", "a\\'b", "null", "Yes", "nan"),
    *("1", "1_0", "1e5", "0x1f", "0b1", "a,b", "{a}", "[a]", "a=b", "a:b", "ü", "", "-", "a/b.c-d"),
    *([], [1, "a", None], {"a": [1, {"b": "c d"}]}),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_typed_value_is_read_as_it_was(value):
    assert read_by_hydra(word(value)) == value


@pytest.mark.parametrize("text", ["cat", "a1", "_x", "e5", "1", "12_3", "1e5", "0x1f", "0b1", "null", "Off", "nan"])
def test_a_name_is_what_hydra_and_yaml_read_as_text(text):
    assert is_name(text) == all(isinstance(value, str) for value in (read_by_hydra(text), yaml.safe_load(text)))
