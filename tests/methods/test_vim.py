import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from openbench.core.features import Head
from openbench.errors import MethodError
from openbench.methods.subspaces import ViM

from .problems import KINDS, Problem, assert_equal, changed, f, given, problem, scores, z


def by_svd(data: Problem, dim: int) -> np.ndarray:
    """The principal subspace from the singular vectors of the shifted features, the residual by subtraction."""
    u = np.linalg.lstsq(data.weight, -data.bias, rcond=1e-5)[0]
    _, _, directions = np.linalg.svd(f(data.train) - u, full_matrices=True)
    principal = directions[:dim].T

    def residual(features: np.ndarray) -> np.ndarray:
        shifted = features - u
        return np.linalg.norm(shifted - shifted @ principal @ principal.T, axis=1)

    alpha = z(data.train).max(axis=1).mean() / residual(f(data.train)).mean()
    return alpha * residual(f(data.test)) - logsumexp(z(data.test), axis=1)


@pytest.mark.parametrize("dim", [1, 12, 19])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dead"])
def test_equals_a_singular_value_decomposition(kind, dim):
    data = problem(kind)
    assert_equal(scores(ViM(dim), data), by_svd(data, dim))


def test_rows_of_the_head_that_sum_to_zero_do_not_invert_noise():
    """Centred rows lower the rank of W by one; a cut-off near float32's ε would invert what rounding left."""
    data = problem()
    weight = data.head.weight - data.head.weight.mean(dim=0)
    head = Head(weight, data.head.bias)
    centred = Problem(
        *(changed(x, logits=head(x.features)) for x in (data.train, data.val, data.test)),
        head,
    )
    assert np.linalg.matrix_rank(weight.double().numpy(), tol=1e-5) == 5
    assert_equal(scores(ViM(12), centred), by_svd(centred, 12))


@pytest.mark.parametrize(("d", "dim"), [(24, 12), (300, 256)])
def test_auto_leaves_residual_directions_in_small_networks(d, dim):
    generator = torch.Generator().manual_seed(0)
    head = Head(torch.randn(4, d, generator=generator), torch.zeros(4))
    features = torch.randn(400, d, generator=generator)
    split = given(features=features, logits=head(features))
    auto, fixed = ViM().fit(split, head), ViM(dim).fit(split, head)
    assert auto.residual_.shape == (d, d - dim)
    assert torch.equal(auto.score(split), fixed.score(split))
    assert auto.params() == {"dim": "auto"}


def test_features_of_lower_rank_than_the_subspace_are_an_error():
    """What is left is the rounding of float32: a score of noise."""
    data = problem()
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(600, 5, generator=generator) @ torch.randn(5, 24, generator=generator)
    head = Head(data.head.weight, torch.zeros(6))  # without a bias the origin lies in the subspace
    flat = given(features=features, logits=head(features))
    assert bool(ViM(4).fit(flat, head).score(flat).isfinite().all())
    for dim in (5, 12):
        with pytest.raises(MethodError, match="lower dim"):
            ViM(dim).fit(flat, head)
