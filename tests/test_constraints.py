"""What fits an annotation, and how that is said."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from annotated_types import Ge, Interval, MinLen, MultipleOf, Unit

from openbench.config.constraints import (
    Decay,
    NonNegative,
    OneOf,
    Positive,
    Probability,
    Share,
    check_value,
    described,
    fits,
)
from openbench.errors import ConfigError

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
    assert fits(value, annotation)


@pytest.mark.parametrize(("annotation", "value"), REFUSED, ids=str)
def test_a_value_of_another_kind_does_not(annotation, value):
    assert not fits(value, annotation)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Path, "a path"),
        (int, "a whole number (of 64 bits at most)"),
        (float, "a finite number"),
        (int | None, "a whole number (of 64 bits at most), or null"),
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
