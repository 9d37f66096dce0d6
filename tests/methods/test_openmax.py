import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logit
from scipy.stats import weibull_min

from openbench.core.features import FeatureSet
from openbench.errors import MethodError
from openbench.methods.logits import OpenMax

from .problems import assert_equal, changed, given, problem, scores, y, z


def fitted_tail(distances: np.ndarray, tail: int):
    """libmr's model by another road: the log-likelihood in (log shape, log scale), maximised by Nelder and Mead."""
    largest = np.sort(distances)[-tail:]
    moved = largest + 10_000 - largest.min()

    def loss(parameters: np.ndarray) -> float:
        return -weibull_min.logpdf(moved, np.exp(parameters[0]), scale=10_000 + parameters[1]).sum()

    start = (np.log(10_000 / np.std(largest)), np.mean(moved) - 10_000)
    options = {"xatol": 1e-9, "fatol": 1e-11, "maxiter": 20_000, "maxfev": 20_000}
    log_shape, above = minimize(loss, start, method="Nelder-Mead", options=options).x
    return lambda d: weibull_min.cdf(d + 10_000 - largest.min(), np.exp(log_shape), scale=10_000 + above)


def by_loops(data, alpha: int, tail: int) -> np.ndarray:
    """P(unknown), sample by sample and class by class."""
    train, labels = z(data.train), y(data.train)
    right = train.argmax(axis=1) == labels
    models = {}
    for c in np.unique(labels[right]):
        rows = train[right & (labels == c)]
        mean = rows.mean(axis=0)
        models[c] = (mean, fitted_tail(np.linalg.norm(rows - mean, axis=1), tail))
    result = []
    for row in z(data.test):
        revised = row.copy()
        for place, c in enumerate(np.argsort(-row)[:alpha]):
            if c in models:
                mean, outlying = models[c]
                revised[c] = row[c] * (1 - (alpha - place) / alpha * outlying(np.linalg.norm(row - mean)))
        unknown = np.exp((row - revised).sum())
        result.append(unknown / (np.exp(revised).sum() + unknown))
    return np.array(result)


@pytest.mark.parametrize("kind", ["rectified", "signed", "two_classes"])
@pytest.mark.parametrize(("alpha", "tail"), [(3, 20), (1, 10), (2, 50), (2, 2)])
def test_is_the_log_odds_of_the_unknown_probability(kind, alpha, tail):
    data = problem(kind)
    if kind == "two_classes":
        alpha = min(alpha, 2)
    expected = logit(by_loops(data, alpha, tail))
    assert_equal(scores(OpenMax(alpha, tail), data), expected, rtol=1e-3)


def test_overflowing_logits_keep_their_order():
    """exp(u) of logits in the hundreds overflows where the log-odds does not."""
    data = problem("hot")
    found = scores(OpenMax(), data)
    assert np.isfinite(found).all()
    assert len(np.unique(found)) > 0.99 * len(found)


def test_classes_without_correct_samples_are_not_revised():
    data = problem()
    labels = data.train.labels.clone()
    labels[labels == 0] = 1
    train = changed(data.train, labels=labels)
    method = OpenMax(alpha=1).fit(train, None)
    x = data.test[data.test.logits.argmax(dim=1) == 0]
    # Nothing is taken from class 0, so what is unknown weighs exp(0).
    torch.testing.assert_close(method.score(x), -torch.logsumexp(x.logits, dim=1))


def test_a_single_sample_per_class_makes_a_step():
    data = problem()
    right = data.train.logits.argmax(dim=1) == data.train.labels
    firsts = [int(torch.nonzero(right & (data.train.labels == c))[0]) for c in (0, 1, 2, 4, 5)]
    method = OpenMax().fit(data.train[torch.tensor(firsts)], None)
    assert bool(method.score(data.test).isfinite().all())


def test_no_correct_sample_at_all_is_an_error():
    data = problem()
    wrong = (data.train.logits.argmax(dim=1) + 1) % 6
    train = changed(data.train, labels=wrong)
    with pytest.raises(MethodError, match="none of 600 training samples is classified correctly"):
        OpenMax().fit(train, None)


def around_corners(length: float, noise: float) -> FeatureSet:
    """Logits near one corner per class, so far from zero; all are classified correctly."""
    corners = torch.eye(5).repeat(80, 1)
    train = length * (corners + noise * torch.randn(400, 5, generator=torch.Generator().manual_seed(0)))
    return given(logits=train, labels=train.argmax(dim=1))


def test_distances_far_below_the_tail_revise_nothing():
    method = OpenMax(alpha=1).fit(around_corners(1e8, 0.1), None)
    at_means = method.means_.float()
    found = method.score(given(logits=at_means))
    torch.testing.assert_close(found, -torch.logsumexp(at_means, dim=1))


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e5, 1e8])
def test_logits_of_any_size_have_finite_scores(scale):
    method = OpenMax().fit(around_corners(4 * scale, 0.25), None)
    x = given(logits=3 * scale * torch.randn(300, 5, generator=torch.Generator().manual_seed(1)))
    assert method.score(x).isfinite().all()
