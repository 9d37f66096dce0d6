import pytest

from openbench.core.search import grid
from openbench.errors import ConfigError


def test_the_first_list_varies_fastest():
    assert grid({"a": [1, 2], "b": [10, 20]}, ["a", "b"]) == [
        {"a": 1, "b": 10},
        {"a": 2, "b": 10},
        {"a": 1, "b": 20},
        {"a": 2, "b": 20},
    ]


def test_an_unknown_hyper_parameter_is_named():
    with pytest.raises(ConfigError, match=r"KNN: `_space_` names 'K', which is not a hyper-parameter.*allowed: k"):
        grid({"K": [1]}, ["k"], "KNN")


@pytest.mark.parametrize("values", [[], 5, "abc"])
def test_a_space_must_be_lists(values):
    with pytest.raises(ConfigError, match="list of at least one value"):
        grid({"k": values}, ["k"])
