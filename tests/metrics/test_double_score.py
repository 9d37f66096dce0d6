"""The synthetic problem of the reject-option paper, whose optimum is known by numerical integration."""

import numpy as np
import pytest
from scipy.stats import norm

from openbench.errors import MetricError
from openbench.metrics.curve import PooledCurve
from openbench.metrics.curve_ranking import auroc
from openbench.metrics.double_score import (
    ScorePair,
    Standard,
    combine,
    fit_double_score,
    fit_double_score_oracle,
)
from openbench.metrics.selective import UNABLE, PrecisionRecall, SelectiveCurve, TprFpr, least_risk

WEIGHTS, MEANS = np.array([0.3, 0.3, 0.4]), np.array([-1.0, 1.0, 3.0])
BOUNDED, PRECISE = TprFpr(0.7, 0.2), PrecisionRecall(0.9, 0.7, 0.25)


def densities(x):
    """Class densities (weighted) and the OOD density: N(3, variance 0.2)."""
    return WEIGHTS[:, None] * norm.pdf(x, MEANS[:, None]), norm.pdf(x, 3.0, np.sqrt(0.2))


def scores(x):
    """The two ideal scores: conditional risk of the Bayes classifier, and the likelihood ratio."""
    classes, ood = densities(x)
    return ScorePair(1 - classes.max(0) / classes.sum(0), ood / classes.sum(0))


def sample(n, m, seed):
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=WEIGHTS)
    x = rng.normal(MEANS[y])
    losses = (densities(x)[0].argmax(0) != y).astype(float)
    return scores(x), losses, scores(rng.normal(3.0, np.sqrt(0.2), m))


@pytest.fixture(scope="module")
def million():
    return sample(1_000_000, 1_000_000, 0)


def integrate(s, constraint):
    """(AUROC, AUPR with ID positive at π = ¼, least risk) of a score by quadrature on a grid of the input."""
    x = np.linspace(-9, 13, 1_000_001)
    (classes, ood), dx = densities(x), x[1] - x[0]
    risk, ids = 1 - classes.max(0) / classes.sum(0), classes.sum(0)
    order = np.argsort(s(x))
    phi, rho = np.cumsum(ids[order]) * dx, np.cumsum(ood[order]) * dx
    kappa = 0.75 * phi / (0.75 * phi + 0.25 * rho)
    selective = np.cumsum((risk * ids)[order]) * dx / phi
    if isinstance(constraint, TprFpr):
        feasible = (phi >= constraint.tpr) & (rho <= constraint.fpr)
    else:
        feasible = (phi >= constraint.recall) & (kappa >= constraint.precision)
    best = selective[feasible].min() if feasible.any() else None
    return np.sum(phi * ood[order]) * dx, np.sum(kappa * ids[order]) * dx, best


ROWS = {
    "separation": (lambda p: p.separation, 0.8797, 0.9629, 0.2291),
    "double at 0.2": (lambda p: p.risk + 0.2 * p.separation, 0.8588, 0.9490, 0.2094),
    "risk alone": (lambda p: p.risk, 0.3666, None, None),
}


@pytest.mark.parametrize("row", ROWS)
def test_ground_truth_follows_from_numerical_integration(row):
    of, want_auroc, want_aupr, want_risk = ROWS[row]
    area, precision_area, risk = integrate(lambda x: of(scores(x)), BOUNDED)
    assert area == pytest.approx(want_auroc, abs=1e-4)
    assert want_aupr is None or precision_area == pytest.approx(want_aupr, abs=1e-4)
    assert risk == (None if want_risk is None else pytest.approx(want_risk, abs=1e-4))


@pytest.mark.parametrize("row", ROWS)
def test_a_million_samples_reproduce_the_ground_truth(row, million):
    of, want_auroc, _, want_risk = ROWS[row]
    id_pair, losses, ood_pair = million
    got = least_risk(SelectiveCurve.of(of(id_pair), losses, of(ood_pair)), BOUNDED)
    assert auroc(PooledCurve.of(of(id_pair), of(ood_pair))) == pytest.approx(want_auroc, abs=1e-3)
    assert got == UNABLE if want_risk is None else got.value == pytest.approx(want_risk, abs=1.5e-3)


@pytest.mark.parametrize(("constraint", "mu", "risk"), [(BOUNDED, 0.115, 0.1884), (PRECISE, 0.104, 0.1836)])
def test_a_double_score_of_given_weight_has_the_risk_that_integration_gives(constraint, mu, risk, million):
    id_pair, losses, ood_pair = million
    assert integrate(lambda x: scores(x).risk + mu * scores(x).separation, constraint)[2] == pytest.approx(
        risk, abs=1e-4
    )
    got = fit_double_score_oracle(id_pair, losses, ood_pair, constraint, [mu])
    assert got.risk == pytest.approx(risk, abs=1.5e-3)
    assert got.in_sample


@pytest.mark.slow
@pytest.mark.parametrize(("constraint", "best_mu", "best"), [(BOUNDED, 0.1106, 0.1865), (PRECISE, 0.0999, 0.1815)])
def test_the_best_weight_is_found_at_the_edge_of_feasibility(constraint, best_mu, best, million):
    # Risk falls with μ until the constraint can no longer be met; both by integration and in the sample.
    def by_integration(mu):
        return integrate(lambda x: scores(x).risk + mu * scores(x).separation, constraint)[2]

    assert by_integration(best_mu + 1e-4) == pytest.approx(best, abs=2e-4)
    assert by_integration(best_mu - 1e-3) is None
    assert by_integration(best_mu + 0.01) > best + 0.003
    got = fit_double_score_oracle(*million, constraint, np.arange(0.09, 0.13, 0.001))
    assert got.mu == pytest.approx(best_mu, abs=2e-3)
    assert got.risk == pytest.approx(best, abs=1.5e-3)


def test_choice_on_validation_carries_over_to_test(million):
    fitted = fit_double_score(*sample(20_000, 20_000, 1), BOUNDED)
    id_pair, losses, ood_pair = million
    accepted = fitted(id_pair) <= fitted.threshold
    assert not fitted.in_sample
    assert losses[accepted].mean() == pytest.approx(0.1865, abs=0.01)
    assert accepted.mean() > 0.69
    assert np.mean(fitted(ood_pair) <= fitted.threshold) < 0.21


def test_units_of_the_two_scores_do_not_matter():
    id_pair, losses, ood_pair = sample(2_000, 2_000, 2)
    scaled = [ScorePair(100 * p.risk - 7, p.separation / 50 + 3) for p in (id_pair, ood_pair)]
    one = fit_double_score(id_pair, losses, ood_pair, BOUNDED)
    two = fit_double_score(scaled[0], losses, scaled[1], BOUNDED)
    assert (one.mu, one.risk) == (two.mu, two.risk)
    assert one.threshold == pytest.approx(two.threshold, abs=1e-9)


def test_test_data_do_not_enter_the_standardisation():
    id_pair, losses, ood_pair = sample(2_000, 2_000, 3)
    fitted = fit_double_score(id_pair, losses, ood_pair, BOUNDED)
    half = ScorePair(id_pair.risk[:10], id_pair.separation[:10])
    np.testing.assert_array_equal(fitted(half), fitted(id_pair)[:10])


def test_an_infeasible_constraint_gives_unable():
    id_pair, losses, _ = sample(500, 500, 4)
    assert fit_double_score(id_pair, losses, id_pair, TprFpr(0.9, 0.01)) == UNABLE


def test_the_second_score_is_absent_at_weight_zero_even_if_infinite():
    got = combine(ScorePair([1.0, 2.0], [np.inf, 0.0]), Standard(), 0.0)
    np.testing.assert_array_equal(got, [1.0, 2.0])


@pytest.mark.parametrize(
    ("pair", "mu", "message"),
    [
        (ScorePair([1.0], [1.0, 2.0]), 1.0, "differ in length"),
        (ScorePair([1.0], [1.0]), -0.5, "μ must be finite"),
    ],
)
def test_bad_pairs_are_refused(pair, mu, message):
    with pytest.raises(MetricError, match=message):
        combine(pair, Standard(), mu)


def test_a_score_constant_on_validation_cannot_be_standardised():
    with pytest.raises(MetricError, match="separation score cannot be standardised"):
        Standard.of(ScorePair([0.0, 1.0], [2.0, 2.0]))
