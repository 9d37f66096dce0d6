import numpy as np
import pytest

from openbench.methods.geometry import NCI

from .problems import KINDS, assert_equal, f, problem, scores, z


@pytest.mark.parametrize("alpha", [0.0, 1e-4, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_one_sample_at_a_time(kind, alpha):
    data = problem(kind)
    mean = f(data.train).mean(axis=0)
    expected = []
    for row, logits in zip(f(data.test), z(data.test), strict=True):
        away = row - mean
        expected.append(-data.weight[logits.argmax()] @ away / np.sqrt(away @ away) - alpha * np.abs(row).sum())
    assert_equal(scores(NCI(alpha), data), np.array(expected))
