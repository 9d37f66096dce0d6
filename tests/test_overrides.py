"""Values as they are typed, read again by Hydra's own parser."""

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

from openbench.config.overrides import is_name, word


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
