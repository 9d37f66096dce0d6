"""What fits an annotation and how that is said; values as they are typed, read again by Hydra's own parser."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import yaml
from annotated_types import Ge, MinLen, MultipleOf
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

from openbench.config.constraints import OneOf, check_value, described, fits
from openbench.config.overrides import changes, is_name, word
from openbench.errors import ConfigError

TAKEN = [
    (str, "x"),
    (Path, "x"),
    (Path, Path("x")),
    (int, 3),
    (int, -(2**63)),
    (float, 3),
    (float, 0.5),
    (bool, True),
    (NoneType, None),
    (int | None, None),
    (Literal["a", 1], 1),
    (Sequence[int], [1, 2]),
    (tuple[int, str], [1, "a"]),
    (tuple[int, ...], []),
    (Mapping[str, int], {"a": 1}),
    (dict, {}),
    (Annotated[int, Ge(2)], 2),
    (int, np.int64(3)),
    (Annotated[int, MultipleOf(2)], 4),
    (Annotated[str, OneOf(("a", "b"))], "a"),
    (Annotated[Sequence[str], MinLen(1)], ["a"]),
    (Counter | None, Counter()),
    (Any, [object]),
]
REFUSED = [
    (str, Path("x")),
    (str, 3),
    (str, "a\0b"),
    (Path, "a\0b"),
    (Path, 3),
    (int, True),
    (int, 2**63),
    (int, 3.0),
    (float, float("nan")),
    (float, float("inf")),
    (float, True),
    (float, "3"),
    (bool, 1),
    (NoneType, 0),
    (Literal["a", 1], True),
    (Sequence[int], "12"),
    (Sequence[int], [1, "2"]),
    (tuple[int, str], [1]),
    (tuple[int, str], ["a", 1]),
    (Mapping[str, int], {"a": "1"}),
    (Mapping[str, int], [1]),
    (Annotated[int, Ge(2)], 1),
    (Annotated[int, MultipleOf(2)], 3),
    (Annotated[str, OneOf(("a", "b"))], "c"),
    (Annotated[Sequence[str], MinLen(1)], []),
    (Literal[1, 2], 1.0),
    (Counter, {}),
]


@pytest.mark.parametrize(("annotation", "value"), TAKEN, ids=str)
def test_a_value_of_the_kind_fits(annotation, value):
    assert fits(value, annotation)


@pytest.mark.parametrize(("annotation", "value"), REFUSED, ids=str)
def test_a_value_of_another_kind_does_not(annotation, value):
    assert not fits(value, annotation)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (str, "text"),
        (Path, "a path"),
        (bool, "true or false"),
        (int, "a whole number (of 64 bits at most)"),
        (float, "a finite number"),
        (int | None, "a whole number (of 64 bits at most), or null"),
        (OneOf, "a node with the `_target_` of an OneOf"),
        (Counter, "a node with the `_target_` of a Counter"),
    ],
    ids=str,
)
def test_kinds_have_their_words(annotation, words):
    assert described(annotation) == words


@pytest.mark.parametrize(("value", "found"), [(True, "true"), (False, "false"), (None, "null"), ("x", "'x'")])
def test_what_was_found_is_shown_as_it_is_written_in_yaml(value, found):
    with pytest.raises(ConfigError, match=rf"method\.k — found {found} — allowed: a whole number"):
        check_value(value, int, "method.k")


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
    *(
        None,
        True,
        False,
        0,
        -3,
        2.5,
        1e-30,
        "text",
        "a b",
        "it's",
        'say "x"',
        "a\\",
        "a\\'b",
        "null",
        "Yes",
        "nan",
        "-",
    ),
    *("1", "1_0", "1e5", "0x1f", "0b1", "a,b", "{a}", "[a]", "a=b", "a:b", "ü", "", "-", "a/b.c-d"),
    *([], [1, "a", None], {"a": [1, {"b": "c d"}]}),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_typed_value_is_read_as_it_was(value):
    assert read_by_hydra(word(value)) == value


@pytest.mark.parametrize("text", ["cat", "a1", "_x", "e5", "1", "12_3", "1e5", "0x1f", "0b1", "null", "Off", "nan"])
def test_a_name_is_what_hydra_and_yaml_read_as_text(text):
    assert is_name(text) == all(isinstance(value, str) for value in (read_by_hydra(text), yaml.safe_load(text)))


def test_the_changes_from_one_node_to_another():
    now, wanted = {"a": 1, "b": {"c": 2, "d": 3}, "_name_": "x"}, {"a": 1, "b": {"c": 4}, "e": "f g", "_name_": "y"}
    assert sorted(changes("n", now, wanted)) == sorted(["~n.b.d", "n.b.c=4", "+n.e='f g'", "n._name_=y"])
