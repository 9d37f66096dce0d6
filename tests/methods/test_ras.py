import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import rankdata

from openbench.core.features import Head
from openbench.methods.shaping import RAS

from .problems import KINDS, assert_equal, f, given, problem, scores


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_profile_read_by_rank(kind):
    """Ranks as scipy gives them, ties in the order of the row."""
    data = problem(kind)
    profile = mean_of_sorted(f(data.train))
    ranks = rankdata(f(data.test), method="ordinal", axis=1).astype(int) - 1
    logits = profile[ranks] @ data.weight.T + data.bias
    assert_equal(scores(RAS(), data), -logsumexp(logits, axis=1))


def mean_of_sorted(features):
    total = 0.0
    for row in features:
        row = row.copy()
        row.sort()
        total = total + row
    return total / len(features)


def test_among_equal_features_the_earlier_takes_the_smaller_value():
    train = given(features=torch.tensor([[4.0, 0.0, 2.0], [2.0, 4.0, 0.0]]))
    head = Head(torch.eye(3), torch.zeros(3))
    found = RAS().fit(train, head).reshape(torch.tensor([[1.0, 0.0, 0.0], [5.0, 5.0, 5.0]]))
    assert found.tolist() == [[4.0, 0.0, 2.0], [0.0, 2.0, 4.0]]
