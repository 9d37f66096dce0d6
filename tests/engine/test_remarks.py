"""Scores that rank nothing are said, in the record and before the numbers made of them."""

import numpy as np
import pytest

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.engine.provenance import WARNINGS, score_warnings


def split(scores, role=Role.FAR, name="cars"):
    n = len(scores)
    return SetScores.of_split(name, role, np.array(scores, dtype=np.float32), np.zeros(n, int), np.zeros(n, int))


@pytest.mark.parametrize("value", [0.25, np.inf])
def test_equal_scores_of_all_sets_are_said_once(value):
    (said,) = score_warnings("method 'msp'", [split([value] * 3), split([value] * 2)])[WARNINGS]
    assert f"method 'msp' gives all 5 images of all sets the score {value:g}" in said
    assert "AUROC is 50" in said


def test_equal_scores_of_one_set_are_said_with_its_name():
    assert score_warnings("method 'msp'", [split([0, 1]), split([1, 2, 1]), split([5])]) == {}
    (said,) = score_warnings("method 'msp'", [split([1, 2]), split([3, 3, 3], Role.NEAR, "fish")])[WARNINGS]
    assert "all 3 images of near fish the score 3" in said


def test_infinite_scores_are_counted():
    (said,) = score_warnings("method 'knn'", [split([1, 2]), split([3, np.inf, -np.inf])])[WARNINGS]
    assert "method 'knn': 2 of 3 scores of far cars are infinite" in said
