"""Map reductions against loops in NumPy's double precision."""

import numpy as np
import pytest
import torch

from openbench.backbones.anatomy import reduce_map

POOLS = pytest.mark.parametrize(("pool", "powers"), [("gram", range(1, 6)), ("gram10", range(1, 11))])


def gram_by_matrices(maps: np.ndarray, powers: range) -> np.ndarray:
    """Row sums of every Gram matrix, formed whole, and their signed roots."""
    n, c = maps.shape[:2]
    out = np.zeros((n, c, len(powers)))
    for i in range(n):
        for k, p in enumerate(powers):
            f = maps[i].reshape(c, -1).astype(np.float64) ** p
            rows = (f @ f.T).sum(axis=1)
            out[i, :, k] = np.sign(rows) * np.abs(rows) ** (1 / p)
    return out


@POOLS
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_gram_equals_the_matrices_written_out(shift: float, pool, powers: range) -> None:
    maps = torch.randn(3, 6, 4, 5, generator=torch.Generator().manual_seed(1)) + shift
    expected = gram_by_matrices(maps.numpy(), powers)
    np.testing.assert_allclose(reduce_map(maps, pool).numpy(), expected, rtol=1e-5, atol=1e-6)


@POOLS
def test_gram_of_large_maps_does_not_overflow(pool, powers: range) -> None:
    maps = torch.full((1, 2, 3, 3), 1e5)
    # Every entry x: row sum c·hw·x^(2p), root (c·hw)^(1/p)·x².
    expected = [18 ** (1 / p) * 1e10 for p in powers]
    np.testing.assert_allclose(reduce_map(maps, pool)[0, 0].numpy(), expected, rtol=1e-6)


def test_mean_and_max_are_over_positions() -> None:
    maps = torch.randn(2, 3, 4, 5)
    exact = maps.double().numpy().reshape(2, 3, 20)
    rounding = 20 * np.finfo(np.float32).eps * np.abs(exact).mean(-1)  # of the sum, whose terms cancel
    assert (np.abs(reduce_map(maps, "mean").numpy() - exact.mean(-1)) <= rounding).all()
    np.testing.assert_array_equal(reduce_map(maps, "max").numpy(), exact.max(-1))


def test_unreduced_maps_are_a_copy() -> None:
    maps = torch.ones(1, 2, 3, 3)
    kept = reduce_map(maps, "none")
    maps.zero_()
    assert kept.sum() == 18
