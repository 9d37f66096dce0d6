import numpy as np
import pytest
import torch

from openbench.methods.subspaces import Residual

from .problems import KINDS, assert_equal, f, given, problem, scores


@pytest.mark.parametrize("dim", [1, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_what_a_singular_value_decomposition_leaves(kind, dim):
    data = problem(kind)
    u = np.linalg.lstsq(data.weight, -data.bias, rcond=1e-5)[0]
    principal = np.linalg.svd(f(data.val) - u)[2][:dim].T
    shifted = f(data.test) - u
    assert_equal(scores(Residual(dim), data), np.linalg.norm(shifted - shifted @ principal @ principal.T, axis=1))


@pytest.mark.parametrize(("d", "kept"), [(24, 12), (700, 350), (1100, 588)])
def test_auto_leaves_residual_directions(d, kept):
    generator = torch.Generator().manual_seed(0)
    data = problem()
    head = type(data.head)(torch.randn(3, d, generator=generator), torch.zeros(3))
    split = given(features=torch.randn(50, d, generator=generator))
    assert Residual().fit(split, head).residual_.shape == (d, kept)
