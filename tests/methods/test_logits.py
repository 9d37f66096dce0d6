"""Scores of logits alone, against SciPy and loops."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize
from scipy.special import log_softmax, logit, logsumexp, softmax
from scipy.stats import entropy, spearmanr, weibull_min

from openbench.core.features import FeatureSet
from openbench.errors import MethodError
from openbench.methods.logits import GEN, KLM, MLS, Energy, Entropy, OpenMax, TempScaling
from openbench.methods.msp import MSP

from .problems import KINDS, assert_equal, changed, equals, given, kinds_but, problem, scores, y, z


@equals(MSP())
def test_msp_equals_scipy(data, method):
    return -softmax(z(data.test), axis=1).max(axis=1)


@equals(MSP(exact=True))
def test_msp_exact_is_the_log_odds_of_all_other_classes(data, method):
    ordered = np.sort(z(data.test), axis=1)
    return logsumexp(ordered[:, :-1], axis=1) - ordered[:, -1] - np.log(ordered.shape[1] - 1)


def test_msp_exact_ranks_where_float32_probabilities_tie():
    """Leads of 20 to 2000 logits: p rounds to 1 in float32; the odds of two classes are the lead."""
    lead = torch.linspace(20, 2000, 200)
    x = given(logits=torch.stack([lead, torch.zeros(200)], dim=1))
    assert len(MSP().score(x).unique()) == 1
    exact = MSP(exact=True).score(x)
    torch.testing.assert_close(exact, -lead)


@equals(MLS(), rtol=0)
def test_mls_is_the_negative_of_the_last_sorted_logit(data, method):
    return -np.sort(z(data.test), axis=1)[:, -1]


@equals(Energy(0.5), Energy(1.0), Energy(10.0))
def test_energy_equals_scipy(data, method):
    return -method.temperature * logsumexp(z(data.test) / method.temperature, axis=1)


@equals(Entropy())
def test_entropy_equals_scipy(data, method):
    return entropy(softmax(z(data.test), axis=1), axis=1)


def test_entropy_entropies_near_zero_keep_their_order():
    """In float32 softmax is 1 from a lead of 17 on, and its entropy 0; probabilities that underflow add nothing."""
    logits = torch.tensor([[60.0, 0.0, -900.0], [80.0, 0.0, -900.0], [300.0, 0.0, -900.0]])
    found = Entropy().score(given(logits=logits))
    assert found[0] > found[1] > found[2] >= 0


@pytest.mark.parametrize(("gamma", "top"), [(0.1, 100), (0.1, 2), (1.0, 3), (10.0, 1000)])
@pytest.mark.parametrize("kind", ["rectified", "signed", "two_classes", "many_classes"])
def test_gen_equals_scipy(kind, gamma, top):
    data = problem(kind)
    p = np.sort(softmax(z(data.test), axis=1), axis=1)[:, ::-1][:, :top]
    # 1 − p keeps about three digits where p is within 1e-4 of 1, which is what float32 publishes.
    sane = p[:, 0] < 0.999
    expected = (p**gamma * (1 - p) ** gamma).sum(axis=1)
    assert sane.mean() > 0.3
    assert_equal(scores(GEN(gamma, top), data)[sane], expected[sane], rtol=2e-4)


def gen_by_loops(logits: np.ndarray, gamma: float, top: int) -> np.ndarray:
    """Sum over the largest classes; 1 − p_c as the log-sum-exp of the other log-probabilities."""
    result = np.zeros(len(logits))
    for i, row in enumerate(log_softmax(logits, axis=1)):
        for c in np.argsort(-row)[:top]:
            result[i] += np.exp(gamma * (row[c] + logsumexp(np.delete(row, c))))
    return result


@equals(GEN(exact=True), GEN(0.5, 2, exact=True), kinds=kinds_but("signed", "many_classes"), n=60)
def test_gen_exact_equals_sums_over_the_other_classes(data, method):
    return gen_by_loops(z(data.test), method.gamma, method.top)


def test_gen_exact_ranks_saturated_logits_where_float32_does_not():
    data = problem("hot", n=200)
    truth = gen_by_loops(z(data.test), 0.1, 100)
    assert spearmanr(scores(GEN(exact=True), data), truth).statistic > 0.99999
    assert spearmanr(scores(GEN(), data), truth).statistic < 0.98


@equals(KLM(), kinds=kinds_but("hot"), n=100, many=40, rtol=1e-4)
def test_klm_equals_scipy_pair_by_pair(data, method):
    """The least scipy.stats.entropy(p, q) over templates q, which normalises both of its arguments."""
    val = softmax(z(data.val), axis=1)
    predicted, templates = val.argmax(axis=1), np.eye(val.shape[1])
    for c in np.unique(predicted):
        templates[c] = val[predicted == c].mean(axis=0)
    return [entropy(p[:, None], templates.T, axis=0).min() for p in softmax(z(data.test), axis=1)]


def test_klm_probabilities_that_underflow_in_templates_have_their_closed_form():
    """Templates e^-8000 and 1; of p = (1/2, 1/2) the divergence from either is 1/2 log(1/2) + 1/2 (log(1/2) + 8000)."""
    fitted = KLM().fit(given(logits=[[8000.0, 0.0], [0.0, 8000.0]]), None)
    found = fitted.score(given(logits=[[5.0, 5.0], [8000.0, 0.0], [0.0, 6000.0]]))
    assert_equal(found, [4000 - np.log(2), 0.0, 0.0], rtol=1e-7)


def test_klm_a_mean_of_underflowing_probabilities_has_its_closed_form():
    """The second class's share in the template of the first is (e^-1000 + e^-3000) / 2."""
    fitted = KLM().fit(given(logits=[[1000.0, 0.0, -1e4], [3000.0, 0.0, -1e4], [-1e4, -1e4, 0.0]]), None)
    p = softmax([0.0, -1.0, -9.0])
    first = (p[1:] * [1000 + np.log(2), 11000 + np.log(2)]).sum()  # e^-11000 + e^-13000 of the third
    assert_equal(fitted.score(given(logits=[[0.0, -1.0, -9.0]])), [(p * np.log(p)).sum() + first], rtol=1e-7)


def test_klm_a_class_that_no_sample_is_predicted_as_stays_infinitely_far():
    fitted = KLM().fit(given(logits=[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), None)
    near_third = fitted.score(given(logits=[[0.0, 0.0, 40.0]]))  # p of the others e^-40: not 0
    assert_equal(near_third, [np.log(np.e + 2)], rtol=1e-6)
    assert_equal(fitted.score(given(logits=[[0.0, 0.0, 8000.0]])), [0.0], rtol=0)  # p is one-hot: no divergence


def likelihood_slope(inverse: float, logits: np.ndarray, labels: np.ndarray) -> float:
    """Derivative of the mean negative log-likelihood by 1/T: E_p[z] − z_y, averaged."""
    expected = (softmax(inverse * logits, axis=1) * logits).sum(axis=1)
    return float((expected - logits[np.arange(len(labels)), labels]).mean())


def nll(temperature: float, logits: np.ndarray, labels: np.ndarray) -> float:
    return -float(log_softmax(logits / temperature, axis=1)[np.arange(len(labels)), labels].mean())


@pytest.mark.parametrize("kind", KINDS)
def test_temp_scaling_converged_temperature_is_the_root_of_the_likelihood_slope(kind):
    data = problem(kind)
    logits, labels = z(data.val), y(data.val)
    inverse = brentq(likelihood_slope, 1e-4, 1e3, args=(logits, labels), xtol=1e-14)
    method = TempScaling("converged").fit(data.val, None)
    assert float(method.temperature_) == pytest.approx(1 / inverse, rel=1e-4)


@equals(TempScaling("lbfgs"), TempScaling("converged"))
def test_temp_scaling_scores_are_softmax_at_the_learnt_temperature(data, method):
    return -softmax(z(data.test) / float(method.temperature_), axis=1).max(axis=1)


@pytest.mark.parametrize("kind", ["rectified", "signed", "two_classes"])
def test_temp_scaling_the_published_steps_move_from_one_and_a_half_towards_the_optimum(kind):
    data = problem(kind)
    steps, best = (float(TempScaling(s).fit(data.val, None).temperature_) for s in ("lbfgs", "converged"))
    assert min(1.5, best) - 1e-3 <= steps <= max(1.5, best) + 1e-3
    assert nll(steps, z(data.val), y(data.val)) < nll(1.5, z(data.val), y(data.val))


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


@equals(
    *(OpenMax(alpha, tail) for alpha, tail in [(3, 20), (1, 10), (2, 2)]),
    kinds=["rectified", "two_classes"],
    rtol=1e-3,
)
def test_openmax_is_the_log_odds_of_the_unknown_probability(data, method):
    """P(unknown), sample by sample and class by class."""
    alpha = min(method.alpha, data.head.num_classes)
    train, labels = z(data.train), y(data.train)
    right = train.argmax(axis=1) == labels
    models = {}
    for c in np.unique(labels[right]):
        rows = train[right & (labels == c)]
        mean = rows.mean(axis=0)
        models[c] = (mean, fitted_tail(np.linalg.norm(rows - mean, axis=1), method.tail))
    result = []
    for row in z(data.test):
        revised = row.copy()
        for place, c in enumerate(np.argsort(-row)[:alpha]):
            if c in models:
                mean, outlying = models[c]
                revised[c] = row[c] * (1 - (alpha - place) / alpha * outlying(np.linalg.norm(row - mean)))
        unknown = np.exp((row - revised).sum())
        result.append(unknown / (np.exp(revised).sum() + unknown))
    return logit(result)


def test_openmax_classes_without_correct_samples_are_not_revised():
    data = problem()
    labels = data.train.labels.clone()
    labels[labels == 0] = 1
    train = changed(data.train, labels=labels)
    method = OpenMax(alpha=1).fit(train, None)
    x = data.test[data.test.logits.argmax(dim=1) == 0]
    # Nothing is taken from class 0, so what is unknown weighs exp(0).
    torch.testing.assert_close(method.score(x), -torch.logsumexp(x.logits, dim=1))


def test_openmax_no_correct_sample_at_all_is_an_error():
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


def test_openmax_distances_far_below_the_tail_revise_nothing():
    method = OpenMax(alpha=1).fit(around_corners(1e8, 0.1), None)
    at_means = method.means_.float()
    found = method.score(given(logits=at_means))
    torch.testing.assert_close(found, -torch.logsumexp(at_means, dim=1))


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e5, 1e8])
def test_openmax_logits_of_any_size_have_finite_scores(scale):
    method = OpenMax().fit(around_corners(4 * scale, 0.25), None)
    x = given(logits=3 * scale * torch.randn(300, 5, generator=torch.Generator().manual_seed(1)))
    assert method.score(x).isfinite().all()
