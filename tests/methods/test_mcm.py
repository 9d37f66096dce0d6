import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import softmax

from openbench.core.features import Head
from openbench.methods.prompts import MCM

from .problems import KINDS, assert_equal, f, given, problem, scores


@pytest.mark.parametrize("temperature", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_softmax_of_scipys_cosines(kind, temperature):
    data = problem(kind)
    cosine = 1 - cdist(f(data.test), data.weight, metric="cosine")
    expected = 1 / data.head.num_classes - softmax(cosine / temperature, axis=1).max(axis=1)
    assert_equal(scores(MCM(temperature), data), expected)


def test_a_thousand_near_equal_probabilities_do_not_tie():
    generator = torch.Generator().manual_seed(0)
    head = Head(torch.randn(1000, 512, generator=generator), torch.zeros(1000))
    x = given(features=torch.randn(3000, 512, generator=generator))
    assert len(MCM().fit(None, head).score(x).unique()) > 0.999 * len(x)
