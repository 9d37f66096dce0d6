"""YAML is read plainly: no key twice, no other types, nothing that grows when its aliases are followed."""

import re
import tracemalloc

import pytest
from omegaconf import OmegaConf

from openbench import paths
from openbench.errors import ConfigError
from openbench.storage.yaml_file import MOST_VALUES, parse_yaml, read_yaml

TIMES = ",".join(["*{0}"] * 9)
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{TIMES.format(before)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = {
    "aliases": (LAUGHS, "values, aliases followed"),
    "within itself": ("a: &a [*a]", "line 1: values nested deeper than 64, aliases followed"),
    "merged into itself": ("a: &a {<<: *a}", "nested deeper than 64"),
    "deep": ("[" * 100 + "]" * 100, "nested deeper than 64"),
    "open and deep": ("[" * 100_000, "not valid YAML"),
    "doubled": ("a: 1\nb: 2\na: 3", "line 3 has the key 'a' twice"),
    "doubled in another spelling": ("1: x\n0x1: y", "line 2 has the key '0x1' twice"),
    "an object": ("a: !!python/object/apply:os.system [x]", "line 1 has the tag tag:yaml.org,2002:python"),
    "bytes": ("a: !!binary YWJj", "the tag tag:yaml.org,2002:binary"),
    "no number": ("a: !!int x", "not valid YAML"),
    "a long number": (f"a: {'1' * 5000}", "not valid YAML"),
    "two documents": ("a: 1\n---\nb: 2", "not valid YAML"),
    "open": ("k: [1\n", "not valid YAML"),
    "a list as a key": ("? [a]\n: 1", "not valid YAML"),
    "NUL": ("a: \0", "not valid YAML"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_plain_yaml_is_refused_at_once(name):
    text, words = REFUSED[name]
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=re.escape(words)):
            parse_yaml(text, "'it'")
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 10 * 2**20


def test_as_many_values_as_allowed_are_read_and_one_more_is_not():
    listed = "\n".join(["- x"] * (MOST_VALUES - 1))
    assert len(parse_yaml(listed, "it")) == MOST_VALUES - 1
    with pytest.raises(ConfigError, match="10,000 values"):
        parse_yaml(listed + "\n- x", "it")
    # The list around, and 99 times the 100 values of the list within: an alias counts as all that it stands for.
    assert len(parse_yaml("- &a [" + "x," * 98 + "x]\n" + "- *a\n" * 98, "it")) == 99
    with pytest.raises(ConfigError, match="10,000 values"):
        parse_yaml("- &a [" + "x," * 98 + "x]\n" + "- *a\n" * 99, "it")


def test_aliases_and_merged_mappings_that_stay_small_are_read():
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a", "it") == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 2},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.", 1.0),
        ("-.5", "-.5"),  # as OmegaConf reads it
        (".inf", float("inf")),
        ("010", 8),
        ("0x1F", 31),
        ("1_000", 1000),
        ("yes", True),
        ("~", None),
        ("2020-01-01", "2020-01-01"),
        ("1:30", "1:30"),
        ("", None),
    ],
)
def test_a_scalar_is_read_as_its_kind(text, value):
    found = parse_yaml(text, "it")
    assert (type(found), found) == (type(value), value)


def test_our_own_files_are_read_as_omegaconf_reads_them():
    files = sorted(paths.config_dir().rglob("*.yaml"))[::4]  # OmegaConf takes long
    differing = [f for f in files if repr(read_yaml(f) or {}) != repr(OmegaConf.to_container(OmegaConf.load(f)))]
    assert len(files) > 50
    assert differing == []


@pytest.mark.parametrize(
    ("content", "words"), [(b"a: \xff", "not UTF-8"), (b"#" * (2**20 + 1), "found more than 1,048,576 bytes")]
)
def test_a_file_that_is_not_text_or_too_large_is_refused(tmp_path, content, words):
    file = tmp_path / "a.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_yaml(file)
    with pytest.raises(ConfigError, match=r"none\.yaml' cannot be read — No such file"):
        read_yaml(tmp_path / "none.yaml")
