import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import PowerTransformer, StandardScaler

from openbench.methods.neighbours import CombOOD, best_exponents, yeo_johnson

from .problems import assert_equal, f, given, problem, scores, unit

KINDS = ["signed", "two_classes", "many_classes", "rectified"]


def by_sklearn(data, k: int) -> np.ndarray:
    """Scaler, power transform, covariance plus identity, brute-force neighbours: the authors' steps."""
    train, test = unit(f(data.train)), unit(f(data.test))
    distance = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(train).kneighbors(test)[0][:, -1]
    scaler, power = StandardScaler(), PowerTransformer()
    shaped = power.fit_transform(scaler.fit_transform(train))
    inverse = np.linalg.inv(np.cov(shaped, rowvar=False) + np.identity(24))
    rows = power.transform(scaler.transform(test))
    far = np.array([mahalanobis(row, np.zeros(24), inverse) ** 2 for row in rows])
    return np.sqrt(24) * np.log(distance**2) + far


@pytest.mark.parametrize("k", [1, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_steps_with_sklearn(kind, k):
    data = problem(kind)
    assert_equal(scores(CombOOD(k), data), by_sklearn(data, k), rtol=2e-4)


@pytest.mark.parametrize("exponent", [-3.0, 0.0, 0.5, 1.0, 2.0, 5.0])
def test_the_transform_equals_scipys(exponent):
    from scipy.stats import yeojohnson

    x = np.concatenate([np.linspace(-5, 5, 41), [1e-9, -1e-9]])
    found = yeo_johnson(torch.tensor(x)[:, None], torch.tensor([exponent], dtype=torch.float64))
    np.testing.assert_allclose(found[:, 0], yeojohnson(x, exponent), rtol=1e-9, atol=1e-12)


def test_exponents_maximise_the_likelihood():
    """Against scipy's search, for shapes that want exponents from −6 to 8."""
    from scipy.stats import yeojohnson_normmax

    rng = np.random.default_rng(0)
    x = np.stack(
        [
            np.expm1(rng.normal(size=2000)),
            -np.expm1(rng.normal(size=2000)),
            rng.normal(size=2000),
            rng.exponential(size=2000) ** 2,
            rng.beta(8, 1, size=2000),
            0.01 * rng.normal(size=2000),
        ],
        axis=1,
    )
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    found = best_exponents(torch.tensor(x).split(300), 2000)
    np.testing.assert_allclose(found, [yeojohnson_normmax(column) for column in x.T], atol=1e-3)


def test_exponents_do_not_depend_on_how_samples_are_parted():
    x = torch.randn(3000, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64).exp()
    x = (x - x.mean(dim=0)) / x.std(dim=0, correction=0)
    torch.testing.assert_close(best_exponents([x], 3000), best_exponents(x.split(7), 3000), rtol=0, atol=1e-5)


def test_constant_features_count_for_nothing():
    """The four constant features of unit-length vectors vary; only those that are always zero stay constant."""
    data = problem("dead")
    kept = [j for j in range(24) if j not in (0, 2)]
    whole = CombOOD().fit(given(features=data.train.features), None)
    assert whole.scale_[[0, 2]].tolist() == [0.0, 0.0]
    part = CombOOD().fit(given(features=data.train.features[:, kept]), None)
    mahalanobis_part = [
        m.score(given(features=x)) for m, x in ((whole, data.test.features), (part, data.test.features[:, kept]))
    ]
    # Same neighbours and same white vectors; only √d differs.
    far = whole.bank_.kth_squared_distance(torch.nn.functional.normalize(data.test.features), 50).log()
    torch.testing.assert_close(
        mahalanobis_part[0] - mahalanobis_part[1], (24**0.5 - 22**0.5) * far, rtol=1e-3, atol=1e-3
    )
