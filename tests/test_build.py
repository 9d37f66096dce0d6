"""What fits an annotation, how that is said, and what is built of a config."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Ge, Interval, MinLen, MultipleOf, Unit

from openbench.config.build import build
from openbench.config.constraints import (
    Checked,
    Decay,
    NonNegative,
    OneOf,
    Positive,
    Probability,
    Seed,
    Share,
    check_value,
    described,
)
from openbench.errors import ConfigError


@dataclass
class Part:
    size: int = 1


@dataclass
class Whole:
    name: str
    part: "Part | Whole | None" = None
    parts: tuple[Part, ...] = ()
    extra: int | None = None


WHOLE = f"{__name__}.Whole"
PART = f"{__name__}.Part"


def test_nested_nodes_are_built():
    node = {"_target_": WHOLE, "name": "x", "part": {"_target_": PART, "size": 3}, "parts": [{"_target_": PART}]}
    assert build(node) == Whole("x", Part(3), [Part(1)])


def test_extra_values_reach_nodes_within():
    node = {"_target_": WHOLE, "name": "x", "part": {"_target_": WHOLE, "name": "y"}, "parts": [{"_target_": PART}]}
    whole = build(node, extra=5, size=3)
    assert (whole.extra, whole.part.extra, whole.parts) == (5, 5, [Part(3)])
    node["parts"][0]["size"] = 2
    assert build(node, size=3).parts == [Part(2)]


def test_extra_values_fill_only_what_is_absent_or_null():
    node = {"_target_": WHOLE, "name": "x", "extra": None}
    assert build(node, extra=5, unknown=1).extra == 5
    assert build({**node, "extra": 2}, extra=5).extra == 2


def test_a_misspelt_key_of_a_nested_node_names_its_place():
    with pytest.raises(ConfigError, match=r"method\.part has no key 'sise'; did you mean 'size'"):
        build({"_target_": WHOLE, "name": "x", "part": {"_target_": PART, "sise": 3}}, "method")


@dataclass
class Drawn(Checked):
    seed: Seed | None = None


def test_no_seed_is_taken_where_the_annotation_allows_it():
    assert build({"_target_": f"{__name__}.Drawn", "seed": None}) == Drawn() == Drawn(None)
    with pytest.raises(ConfigError, match=r"config\.seed — found -1, allowed: a whole number from 0 to"):
        build({"_target_": f"{__name__}.Drawn", "seed": -1})


class Open:
    def __init__(self, needed: int, *more: int, **rest: int) -> None:
        self.given = (needed, more, rest)


def test_a_target_that_takes_any_key_is_still_told_what_it_needs():
    assert build({"_target_": f"{__name__}.Open", "needed": 1, "other": 2}).given == (1, (), {"other": 2})
    with pytest.raises(ConfigError, match="missing needed — the target"):
        build({"_target_": f"{__name__}.Open", "other": 2})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        *((text, "missing or not a dotted path") for text in (None, "..x.Y", "x.", "a\0b.C", "os;system.x")),
        ("nowhere", "is not the name of anything that fits here in openbench"),
        ("no_such_module.Thing", "cannot be imported"),
        ("no_such_module.inside.Thing", "cannot be imported — .* — start in the folder of its file"),
        (f"{__name__}.Hole", "did you mean 'Whole'"),
    ],
)
def test_a_bad_target_is_explained(target, message):
    with pytest.raises(ConfigError, match=message):
        build({"_target_": target})


def test_a_class_of_openbench_is_found_where_an_earlier_version_had_it():
    assert build({"_target_": "openbench.methods.vim.ViM", "dim": 3}).dim == 3


def test_a_module_that_lacks_another_is_not_taken_for_absent(tmp_path, monkeypatch):
    (tmp_path / "lacking_another.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be imported — No module named 'no_such_module'$"):
        build({"_target_": "lacking_another.Thing"})


CALLED = []


def called(name: str = "") -> Whole:
    CALLED.append(name)
    return Whole(name)


def nameless(name=""):
    CALLED.append(name)


@pytest.mark.parametrize("target", ["os.system", f"{__name__}.nameless", f"{__name__}.CALLED", PART])
def test_another_kind_of_target_is_refused_before_it_is_called(target, tmp_path):
    mark = tmp_path / "mark"
    with pytest.raises(ConfigError, match=rf"`_target_: {re.escape(target)}` is not a .*test_build\.Whole"):
        build({"_target_": target, "name": f"touch {mark}", "args": f"touch {mark}"}, "method", Whole)
    assert not mark.exists()
    assert CALLED == []


def test_a_function_makes_what_its_annotation_says():
    assert build({"_target_": f"{__name__}.called", "name": "x"}, "method", Whole) == Whole("x")
    CALLED.clear()


@pytest.mark.parametrize("key", ["part", "parts"])
def test_a_nested_target_is_held_to_the_annotation_of_its_parameter(key):
    node = {"_target_": f"{__name__}.nameless"}
    with pytest.raises(ConfigError, match=rf"method\.{key}: `_target_: .*nameless` is not a .*\.Part"):
        build({"_target_": WHOLE, "name": "x", key: [node] if key == "parts" else node}, "method", Whole)
    assert CALLED == []


def test_a_nested_target_where_none_is_expected_is_refused():
    node = {"_target_": f"{__name__}.called"}
    with pytest.raises(ConfigError, match=r"method\.name: found a node with `_target_`, but the parameter is not"):
        build({"_target_": WHOLE, "name": node}, "method", Whole)
    assert CALLED == []


def test_a_base_class_is_refused():
    from openbench.core.method import Method

    with pytest.raises(ConfigError, match="is an abstract base class"):
        build({"_target_": "openbench.core.method.Method"}, "method", Method)


TAKEN = [
    (Path, Path("x")),
    (int, 3),
    (int, -(2**63)),
    (float, 3),
    (float, 0.5),
    (int | None, None),
    (Literal["a", 1], 1),
    (Sequence[int], [1, 2]),
    (tuple[int, str], [1, "a"]),
    (Mapping[str, int], {"a": 1}),
    (int, np.int64(3)),
    (Annotated[int, MultipleOf(2)], 4),
    (Annotated[str, OneOf(("a", "b"))], "a"),
    (Counter | None, Counter()),
    (Any, [object]),
]
REFUSED = [
    (str, "a\0b"),
    (Path, "a\0b"),
    (int, True),
    (int, 2**63),
    (int, 3.0),
    (float, float("nan")),
    (float, "3"),
    (bool, 1),
    (Literal["a", 1], True),
    (Sequence[int], "12"),
    (Sequence[int], [1, "2"]),
    (tuple[int, str], [1]),
    (Mapping[str, int], {"a": "1"}),
    (Annotated[int, MultipleOf(2)], 3),
    (Annotated[str, OneOf(("a", "b"))], "c"),
    (Annotated[Sequence[str], MinLen(1)], []),
    (Literal[1, 2], 1.0),
    (Counter, {}),
]


@pytest.mark.parametrize(("annotation", "value"), TAKEN, ids=str)
def test_a_value_of_the_kind_fits(annotation, value):
    check_value(value, annotation, "method.k")


@pytest.mark.parametrize(("annotation", "value"), REFUSED, ids=str)
def test_a_value_of_another_kind_does_not(annotation, value):
    with pytest.raises(ConfigError, match=r"method\.k — found"):
        check_value(value, annotation, "method.k")


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Path, "a path"),
        (int, "a whole number (of 64 bits at most)"),
        (float, "a finite number"),
        (int | None, "a whole number (of 64 bits at most), or null"),
        (dict[str, list[Any]], "a mapping from text to a list, each item anything"),
        (OneOf, "a node with the `_target_` of an OneOf"),
        (Counter, "a node with the `_target_` of a Counter"),
        (NonNegative, "a number ≥ 0"),
        (Positive, "a number > 0"),
        (Probability, "a number from 0 to 1"),
        (Decay, "a number ≥ 0 and < 1"),
        (Share, "a number > 0 and ≤ 1"),
        (Annotated[int, Ge(4), MultipleOf(2)], "a whole number ≥ 4, a multiple of 2"),
        (Annotated[str, MinLen(1)], "text (not empty)"),
        (Annotated[float, Interval(gt=0), Unit("in pixels")], "a number > 0 (in pixels)"),
    ],
    ids=str,
)
def test_kinds_have_their_words(annotation, words):
    assert described(annotation) == words


@pytest.mark.parametrize(("value", "found"), [(True, "true"), (None, "null"), ("x", "'x'")])
def test_what_was_found_is_shown_as_it_is_written_in_yaml(value, found):
    with pytest.raises(ConfigError, match=rf"method\.k — found {found}, allowed: a whole number"):
        check_value(value, int, "method.k")
