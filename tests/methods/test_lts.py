import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from openbench.methods.shaping import LTS

from .problems import KINDS, assert_equal, f, given, problem, scores, z


def factors(data, percentile: float) -> np.ndarray:
    result = []
    for row in f(data.test):
        active = np.sort(np.maximum(row, 0))
        result.append((active.sum() / active[int(np.round(24 * percentile / 100)) :].sum()) ** 2)
    return np.array(result)


@pytest.mark.parametrize("percentile", [0, 65, 95])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_scaling_sample_by_sample(kind, percentile):
    data = problem(kind)
    expected = -logsumexp(z(data.test) * factors(data, percentile)[:, None], axis=1)
    assert_equal(scores(LTS(percentile), data), expected)


def test_a_sample_without_activations_keeps_its_logits():
    logits = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    found = LTS().score(given(features=-torch.ones(2, 24), logits=logits))
    torch.testing.assert_close(found, -torch.logsumexp(logits, dim=1))


def test_class_scores_are_what_scaled_probabilities_lack():
    data = problem()
    expected = 1 - softmax(z(data.test) * factors(data, 85)[:, None], axis=1)
    np.testing.assert_allclose(LTS(85).class_scores(data.test), expected, atol=1e-5)
