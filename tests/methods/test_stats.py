import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.methods._stats import mean_feature, sorted_rows


def features(n: int, d: int) -> FeatureSet:
    generator = torch.Generator().manual_seed(n)
    return FeatureSet({Field.FEATURES: (5 + torch.randn(n, d, generator=generator))})


def test_rows_are_sorted_beside_what_was_given():
    x = 100 * torch.randn(7, 501)
    kept = x.clone()
    torch.testing.assert_close(sorted_rows(x), x.sort(dim=1).values, rtol=0, atol=0)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("n", [1, 511, 513, 4097])
def test_mean_is_that_of_float64(n):
    x = features(n, 9)
    np.testing.assert_allclose(mean_feature(x), x.features.double().numpy().mean(axis=0), rtol=1e-13)


def test_mean_takes_memory_once():
    """Parts of a split as long as ImageNet's would else take gigabytes, as malloc reuses none of them."""

    class Sizes(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.large = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            own = {t.untyped_storage().data_ptr() for t in tree_leaves(args) if isinstance(t, torch.Tensor)}
            if isinstance(out, torch.Tensor) and out.untyped_storage().data_ptr() not in own:
                self.large += [str(func)] * (out.numel() >= 512 * 9)
            return out

    x = features(5000, 9)
    with Sizes() as made:
        mean_feature(x)
    assert len(made.large) == 1
