import numpy as np
import pytest
import torch
from sklearn.covariance import EmpiricalCovariance

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.errors import MethodError
from openbench.methods.maps import LayerMDS, MDSEnsemble, SteppedLayerMDS

from .problems import STD, small_network

WIDTHS = {"stage1": 6, "stage2": 9}


def columns(n: int, c: int, seed: int, dead: bool = False) -> FeatureSet:
    """Pooled maps of two layers; class 1 has no samples where there are more than two."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([k for k in range(c) if k != 1 or c == 2], size=n)
    centres = np.random.default_rng(99).normal(size=(c, 9))
    maps = {}
    for layer, d in WIDTHS.items():
        x = centres[labels, :d] + rng.normal(size=(n, d)) * np.linspace(0.3, 2, d)
        if dead:
            x[:, 0], x[:, 2] = 0.5, x[:, 1]
        maps[layer] = torch.tensor(x, dtype=torch.float32)
    return FeatureSet({Field.LABELS: torch.from_numpy(labels)}, maps)


def by_sklearn(train: FeatureSet, x: np.ndarray, layer: str) -> np.ndarray:
    """Distances class by class with scikit-learn's pseudo-inverse, over the rank."""
    f, y = train.map(layer).double().numpy(), train.labels.numpy()
    means = {c: f[y == c].mean(axis=0) for c in np.unique(y)}
    residuals = np.concatenate([f[y == c] - m for c, m in means.items()])
    precision = EmpiricalCovariance(assume_centered=True).fit(residuals).precision_
    rank = np.linalg.matrix_rank(residuals)
    return np.min([np.einsum("nd,de,ne->n", x - m, precision, x - m) for m in means.values()], axis=0) / rank


def fitted(method: MDSEnsemble, train: FeatureSet) -> MDSEnsemble:
    return method.fit_parts(lambda part: part.fit(train, None), lambda part: torch.zeros(3))


@pytest.mark.parametrize(
    ("n", "c", "dead"), [(300, 2, False), (300, 5, False), (1500, 1000, False), (300, 5, True), (8, 5, False)]
)
def test_equals_scikit_learns_covariances_weighed(n, c, dead):
    train, test = columns(n, c, 0, dead), columns(50, c, 1, dead)
    method = fitted(MDSEnsemble(list(WIDTHS), [0.7, -1.5]), train)
    each = [by_sklearn(train, test.map(layer).double().numpy(), layer) for layer in WIDTHS]
    expected = 0.7 * each[0] - 1.5 * each[1]
    np.testing.assert_allclose(method.score(test.without_labels()), expected, rtol=1e-3, atol=1e-3 * np.abs(each).max())


def test_equal_weights_are_the_mean_and_training_samples_are_one_from_their_class():
    train = columns(400, 5, 0)
    method = fitted(MDSEnsemble(list(WIDTHS)), train)
    each = torch.stack([part.score(train) for part in method.fitted_parts.values()])
    torch.testing.assert_close(method.score(train), each.mean(dim=0))
    one_class = FeatureSet({Field.LABELS: torch.zeros(400, dtype=torch.int64)}, train.maps)
    for layer in WIDTHS:
        own = LayerMDS(layer, list(WIDTHS)).fit(one_class, None).score(one_class)
        assert float(own.double().mean()) == pytest.approx(1, rel=1e-5)


@pytest.fixture(scope="module")
def network():
    return small_network(12, STD)


def stage_means(module: torch.nn.Module, x: torch.Tensor, number: int) -> torch.Tensor:
    """The network's stages called one after the other, without hooks."""
    x = torch.relu(module.bn1(module.conv1(x)))
    for k in range(1, number + 1):
        x = module.get_submodule(f"layer{k}")(x)
    return x.mean(dim=(2, 3))


@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [0.0014, 0.05])
def test_the_step_goes_towards_the_nearest_class_of_that_layer(network, number, epsilon):
    """Lee et al.'s recipe image by image in float64: the gradient of the distance to the nearest mean alone."""
    generator, layer = torch.Generator().manual_seed(0), f"stage{number}"
    images, known = (torch.randn(n, 3, 12, 12, generator=generator) for n in (5, 200))
    module = network.module().eval().double()
    with torch.no_grad():
        f = stage_means(module, known.double(), number)
    labels = torch.arange(200) % 4
    train = FeatureSet({Field.LABELS: labels}, {layer: f.float()})
    means = torch.stack([f[labels == c].mean(dim=0) for c in range(4)])
    residuals = f - means[labels]
    precision = torch.linalg.pinv(residuals.T @ residuals / 200)

    def distances(x: torch.Tensor) -> torch.Tensor:
        gap = stage_means(module, x, number) - means
        return torch.einsum("cd,de,ce->c", gap, precision, gap)

    expected = []
    for image in images.double():
        x = image[None].clone().requires_grad_(True)
        d = distances(x)
        d[d.argmin()].backward()
        step = epsilon * torch.where(x.grad >= 0, 1.0, -1.0) / torch.tensor(STD).double().view(1, 3, 1, 1)
        expected.append(float(distances(image[None] - step).min().detach()) / f.shape[1])
    module.float()
    found = SteppedLayerMDS(layer, [layer], epsilon).fit(train, None).score_images(images, network)
    # The sign of a gradient near zero may differ in float32 and moves one element the other way.
    np.testing.assert_allclose(found, expected, rtol=5e-3)
    still = SteppedLayerMDS(layer, [layer], 0.0).fit(train, None).score_images(images, network)
    assert bool((found < still).all()), "it goes towards the class"


def test_weights_to_be_found_are_refused_without_tuning():
    with pytest.raises(MethodError, match="tune=validation"):
        fitted(MDSEnsemble(list(WIDTHS), "logistic"), columns(50, 3, 0))


def test_one_weight_per_layer_is_needed():
    method = MDSEnsemble(None, [1.0, 2.0])
    method.parts_ = {"a": None, "b": None, "c": None}
    with pytest.raises(MethodError, match="2 weights for 3 layers"):
        method.combine({name: torch.zeros(2) for name in "abc"})
