import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from openbench.methods.shaping import ASH, SCALE

from .problems import KINDS, assert_equal, f, given, problem, scores


def one_by_one(features: np.ndarray, percentile: float, variant: str) -> np.ndarray:
    shaped = np.zeros_like(features)
    d = features.shape[1]
    removed = int(np.round(d * percentile / 100))  # halves to even, as Python and NumPy round
    for i, row in enumerate(features):
        kept = np.argsort(row)[removed:]
        if variant == "b":
            shaped[i, kept] = row.sum() / len(kept)
        else:
            factor = np.exp(row.sum() / row[kept].sum()) if variant == "s" else 1
            shaped[i, kept] = factor * row[kept]
    return shaped


@pytest.mark.parametrize("variant", ["b", "p", "s"])
@pytest.mark.parametrize("percentile", [0, 65, 90])
@pytest.mark.parametrize("kind", ["rectified", "signed", "hot", "two_classes", "many_classes"])
def test_equals_shaping_sample_by_sample(kind, percentile, variant):
    data = problem(kind)
    shaped = one_by_one(f(data.test), percentile, variant)
    expected = -logsumexp(shaped @ data.weight.T + data.bias, axis=1)
    ordered = np.sort(f(data.test), axis=1)
    cut = int(np.round(24 * percentile / 100))
    # Which of equal entries (zeros) B fills is anybody's choice; S divides sums that nearly cancel if signed.
    clear = ordered[:, cut] > (ordered[:, cut - 1] if cut else -np.inf)
    found = scores(ASH(percentile, variant), data)
    assert clear.mean() > 0.9
    assert_equal(found[clear], expected[clear], rtol=1e-4 if (kind, variant) == ("signed", "s") else 1e-5)


@pytest.mark.parametrize("method", [ASH(90, "b"), ASH(90, "p"), ASH(90, "s"), SCALE()])
def test_a_sample_without_activations_scores_the_energy_of_the_bias(method):
    data = problem()
    found = method.fit(None, data.head).score(given(features=torch.zeros(2, 24)))
    torch.testing.assert_close(found, (-torch.logsumexp(data.head.bias, dim=0)).expand(2))


def test_halves_of_the_kept_count_round_to_even():
    """d = 5 at 50 %: 2.5 removed rounds to 2, so 3 of 5 stay."""
    shaped = ASH(50, "p").reshape(torch.tensor([[5.0, 1.0, 4.0, 2.0, 3.0]]))
    assert shaped.tolist() == [[5.0, 0.0, 4.0, 0.0, 3.0]]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_removed_by_p_is_the_energy(kind):
    data = problem(kind)
    assert_equal(scores(ASH(0, "p"), data), -logsumexp(f(data.test) @ data.weight.T + data.bias, axis=1))
