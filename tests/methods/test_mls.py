import numpy as np
import pytest

from openbench.methods.logits import MLS

from .problems import KINDS, problem, scores, z


@pytest.mark.parametrize("kind", KINDS)
def test_is_the_negative_of_the_last_sorted_logit(kind):
    data = problem(kind)
    np.testing.assert_array_equal(scores(MLS(), data), -np.sort(z(data.test), axis=1)[:, -1])
