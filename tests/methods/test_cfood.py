import numpy as np
import pytest
import torch

from openbench.methods.neighbours import CFOOD

from .problems import assert_blocks_leave_no_trace, assert_equal, f, given, problem, scores, unit

KINDS = ["rectified", "signed", "dead", "two_classes"]
GRID = [*np.linspace(0.001, 0.1, 100), *np.linspace(0.105, 0.5, 81), *np.linspace(0.51, 0.99, 49)]


def by_definition(data, share: float) -> np.ndarray:
    """With all training samples as references: grow the neighbourhoods until enough of them hold the sample."""
    references, m = unit(f(data.train)), len(data.train)
    own = np.sort(np.linalg.norm(references[:, None] - references, axis=2), axis=1)
    found = []
    for row in unit(f(data.test)):
        distances = np.linalg.norm(references - row, axis=1)
        kappa = 1.0
        for candidate in GRID:
            neighbour = max(int(candidate * m - 1), 0) + 1  # the sample itself is the zeroth
            if np.mean(distances <= own[:, neighbour]) >= share:
                kappa = candidate
                break
        found.append(kappa)
    return np.array(found)


# 0.07 · 300 is a little more than 21 in floating point, and 21 references are enough.
@pytest.mark.parametrize("share", [0.0115, 0.07, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_growing_neighbourhoods(kind, share):
    data = problem(kind, n=300)
    found = scores(CFOOD(1, share), data)
    assert_equal(found, by_definition(data, share))
    assert len(np.unique(found)) > 10


def test_references_are_a_seeded_share_of_training_samples():
    data = problem(n=500)
    fitted = CFOOD(0.1, seed=3).fit(data.train, None)
    rows = {tuple(row) for row in np.round(unit(f(data.train)), 6)}
    assert fitted.references_.shape == (50, 24)
    assert {tuple(row) for row in np.round(fitted.references_.numpy(), 6)} <= rows
    assert not torch.equal(fitted.references_, CFOOD(0.1, seed=4).fit(data.train, None).references_)


def test_a_sample_that_no_reference_reaches_scores_one():
    """References close together; the sample on the far side of the sphere."""
    rows = torch.eye(8)[:1] + 0.01 * torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    fitted = CFOOD(1.0).fit(given(features=rows), None)
    assert fitted.score(given(features=-rows[:3])).tolist() == [1.0, 1.0, 1.0]


def test_blocks_leave_no_trace(monkeypatch):
    assert_blocks_leave_no_trace(CFOOD(1), problem(n=300), monkeypatch, _ENTRIES=1000)
