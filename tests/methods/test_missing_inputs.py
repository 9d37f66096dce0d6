"""What every method does without the split or the head that it needs, and that batches do not change what it learns."""

import re

import pytest
import torch

from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.request import Role
from openbench.errors import MethodError

from .discovered import NODES, reading_columns, scores
from .problems import problem

METHODS = {name: method for name, method in reading_columns() if name in NODES}
HEADED = [name for name, method in METHODS.items() if method.request.head and method.request.fit_on is None]
FITTED = [name for name, method in METHODS.items() if method.request.fit_on is not None]


def again(name: str) -> Method:
    return type(METHODS[name])(**METHODS[name].params())


def refusal(name: str, train: FeatureSet | None, head: Head | None) -> str:
    """What a method says to what it cannot be fitted on."""
    with pytest.raises(MethodError) as raised:
        again(name).fit(train, head)
    return str(raised.value)


def unlike(said: dict[str, str], pattern: str) -> dict[str, str]:
    """The methods that do not say what they should, with their name in front."""
    return {n: text for n, text in said.items() if not re.match(rf"{type(METHODS[n]).__name__}{pattern}", text)}


def test_methods_refuse_by_their_name_what_they_cannot_be_fitted_on():
    data = problem()
    assert len(HEADED) > 3
    assert len(FITTED) > 40
    assert unlike({name: refusal(name, None, None) for name in HEADED}, r"(\.fit)?: .*found None") == {}
    assert unlike({name: refusal(name, None, data.head) for name in FITTED}, r"\.fit: .*found None") == {}
    assert unlike({n: refusal(n, data.train[:0], data.head) for n in FITTED}, r"\.fit: .* no rows") == {}


# Networks of their own are trained on batches, which there is no other way to draw.
STREAMED = [
    name
    for name in FITTED
    if METHODS[name].request.fit_on == Role.ID_TRAIN
    and not METHODS[name].request.layers
    and not {"epochs", "epoch", "max_train"} & METHODS[name].params().keys()
]


@pytest.mark.parametrize("name", STREAMED)
def test_what_is_learnt_does_not_depend_on_the_size_of_batches(name, monkeypatch):
    data = problem()
    try:
        whole = scores(again(name).fit(data.train, data.head), data.test)
    except MethodError as error:
        pytest.skip(f"not for this problem: {error}")
    monkeypatch.setattr(FeatureSet.batches, "__defaults__", (67,))
    assert len(list(data.train.batches())) > 2
    parts = scores(again(name).fit(data.train, data.head), data.test)
    torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-5)
