import numpy as np
import pytest
import torch

from openbench.core.features import FeatureSet
from openbench.methods._stats import mean_feature, sorted_rows

from .problems import given


def features(n: int, d: int) -> FeatureSet:
    generator = torch.Generator().manual_seed(n)
    return given(features=5 + torch.randn(n, d, generator=generator))


def test_rows_are_sorted_beside_what_was_given():
    x = 100 * torch.randn(7, 501)
    kept = x.clone()
    torch.testing.assert_close(sorted_rows(x), x.sort(dim=1).values, rtol=0, atol=0)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("n", [1, 511, 513, 4097])
def test_mean_is_that_of_float64(n):
    x = features(n, 9)
    np.testing.assert_allclose(mean_feature(x), x.features.double().numpy().mean(axis=0), rtol=1e-13)
