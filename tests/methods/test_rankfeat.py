import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from openbench.backbones.rows import Identity
from openbench.core.preprocess import Preprocess
from openbench.errors import NotApplicableError
from openbench.methods.maps import RankFeat, top_direction, without_top

from .problems import small_network


@pytest.fixture(scope="module")
def network():
    return small_network(16, (1.0, 1.0, 1.0))


@pytest.fixture(scope="module")
def images():
    return torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def by_svd(maps: torch.Tensor) -> torch.Tensor:
    """The paper's recipe: each map's own SVD, its first term subtracted."""
    out = np.empty(maps.shape)
    for i, one in enumerate(maps.double().numpy()):
        u, s, vt = np.linalg.svd(one.reshape(len(one), -1), full_matrices=False)
        out[i] = ((u[:, 1:] * s[1:]) @ vt[1:]).reshape(one.shape)
    return torch.tensor(out)


def logits_with(network, images, changed: int) -> np.ndarray:
    """The network's stages called one after the other, without hooks; stage `changed` loses its rank-1 part."""
    module = network.module().eval()
    with torch.no_grad():
        x = torch.relu(module.bn1(module.conv1(images)))
        for k in (1, 2, 3):
            x = module.get_submodule(f"layer{k}")(x)
            x = by_svd(x).float() if k == changed else x
        return module.fc(x.mean(dim=(2, 3))).double().numpy()


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_equals_svd_between_the_stages_of_a_real_network(network, images, temperature):
    mean = (logits_with(network, images, 2) + logits_with(network, images, 3)) / 2
    found = RankFeat(temperature=temperature).score_images(images, network)
    np.testing.assert_allclose(found, -temperature * logsumexp(mean / temperature, axis=1), rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 8, 2, 2), (3, 4, 5, 6), (2, 1, 3, 3), (2, 5, 1, 1)])
def test_without_top_equals_the_svd(shape):
    maps = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(without_top(maps, top_direction), by_svd(maps), atol=1e-6)


def test_a_map_of_rank_one_or_zero_vanishes():
    rank_one = torch.einsum("nc,nl->ncl", torch.rand(3, 7), torch.rand(3, 4)).view(3, 7, 2, 2)
    for maps in (rank_one, torch.zeros(2, 7, 2, 2)):
        for direction in (top_direction, RankFeat(solver="power")._iterated):
            assert float(without_top(maps, direction).abs().max()) < 1e-6


def test_many_power_iterations_reach_the_exact_direction(network, images):
    exact = RankFeat().score_images(images, network)
    power = [RankFeat(solver="power", iterations=k).score_images(images, network) for k in (1, 20, 200)]
    np.testing.assert_allclose(power[2], exact, rtol=1e-4)
    errors = [float((p - exact).abs().max()) for p in power]
    assert errors[0] > errors[1] >= errors[2]


def test_backbones_without_the_maps_are_named(network, images):
    with pytest.raises(NotApplicableError, match=r"no layer 'stage9'.*stage1, stage2, stage3"):
        RankFeat(["stage9"]).score_images(images, network)
    table = Identity("table", Preprocess(8, 8), columns=5)
    with pytest.raises(NotApplicableError, match="table"):
        RankFeat().score_images(torch.zeros(2, 5), table)


@pytest.mark.parametrize(("layer", "number"), [("stage1", 1), ("stage3", 3)])
def test_layers_choose_where_the_part_is_removed(network, images, layer, number):
    found = RankFeat([layer]).score_images(images, network)
    np.testing.assert_allclose(found, -logsumexp(logits_with(network, images, number), axis=1), rtol=1e-4)


def test_each_layer_costs_one_pass(network, images):
    before = network.passes
    RankFeat().score_images(images, network)
    assert network.passes - before == 2 * len(images)
