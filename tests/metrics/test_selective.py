import numpy as np
import pytest
from scipy.integrate import quad
from sklearn.metrics import roc_auc_score

from openbench.metrics.curve import BLOCK
from openbench.metrics.selective.risk import (
    UNABLE,
    PrecisionRecall,
    SelectiveCurve,
    TprFpr,
    augrc,
    aurc,
    ccr_at_fpr,
    excess_aurc,
    least_cost,
    least_risk,
    oscr,
    oscr_selective,
    risk_coverage,
)

from . import metric_oracles as oracle

CASES = [(seed, n, m, decimals) for seed in range(4) for n, m, decimals in [(60, 40, None), (50, 30, 0), (9, 70, 1)]]


def setup(seed, n, m, decimals):
    a, b = oracle.random_pair(seed, n, m, decimals)
    # Mistakes are likelier where the score is high.
    losses = (np.random.default_rng(seed + 100).random(n) < 1 / (1 + np.exp(1 - a))).astype(float)
    return a, losses, b


def operating_points(a, e, b):
    """(λ, φ, ρ, R) at every threshold that accepts some ID, by definition."""
    for t in oracle.thresholds(a, b):
        kept = a <= t
        if kept.any():
            yield t, kept.mean(), np.mean(b <= t), e[kept].mean()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "constraint",
    [
        *(TprFpr(tpr, fpr) for tpr, fpr in [(0.5, 0.5), (0.8, 0.2), (0.0, 0.0), (0.2, 0.05), (1.0, 1.0)]),
        *(PrecisionRecall(*rates) for rates in [(0.8, 0.5, 0.25), (0.9, 0.8, 0.25), (0.6, 0.1, 0.7)]),
    ],
    ids=repr,
)
def test_the_least_risk_equals_a_scan_of_all_thresholds(case, constraint):
    a, e, b = setup(*case)
    feasible = [r for _, phi, rho, r in operating_points(a, e, b) if oracle.allowed(constraint, phi, rho)]
    got = least_risk(SelectiveCurve.of(a, e, b), constraint)
    assert got == UNABLE if not feasible else got.value == pytest.approx(min(feasible), abs=1e-12)


@pytest.mark.parametrize("constraint", [TprFpr(0.3, 0.9), PrecisionRecall(0.6, 0.1, 0.5)])
@pytest.mark.parametrize("falling", [False, True])
def test_the_least_risk_of_a_long_curve_is_found_in_any_of_its_stretches(constraint, falling):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=15_000), rng.normal(size=15_000) + 0.8
    # Few mistakes at high scores make the least risk come late, few at low scores early.
    e = (rng.random(a.size) < 1 / (1 + np.exp(2 * a if falling else -2 * a))).astype(float)
    cuts, order = np.sort(np.concatenate([a, b])), np.argsort(a)
    kept = np.searchsorted(a[order], cuts, side="right")
    phi, rho = kept / a.size, np.searchsorted(np.sort(b), cuts, side="right") / b.size
    risk = np.concatenate([[np.nan], np.cumsum(e[order])])[kept] / np.maximum(kept, 1)
    allowed = oracle.allowed(constraint, phi, rho)
    best = np.flatnonzero(allowed)[np.argmin(risk[allowed])]
    assert (best > 1.5 * BLOCK) == falling  # beyond the first stretches, whichever entry they begin at
    got = least_risk(SelectiveCurve.of(a, e, b), constraint)
    assert got.value == pytest.approx(risk[best], abs=1e-12)
    assert got.threshold == cuts[best]


def test_of_equal_risks_in_several_stretches_the_first_is_taken():
    scores = np.arange(3.0 * BLOCK)
    curve = SelectiveCurve.of(scores, np.zeros(scores.size), scores + 0.5)
    assert least_risk(curve, TprFpr(0.0, 1.0)) == (0.0, 0.0)


@pytest.mark.parametrize("case", CASES)
def test_cost_equals_a_scan_of_all_thresholds(case):
    a, e, b = setup(*case)
    by_hand = min(
        0.6 * (np.mean(e * (a <= t)) + 0.3 * np.mean(a > t)) + 0.4 * (0.9 * np.mean(b <= t) + 0.1 * np.mean(b > t))
        for t in oracle.thresholds(a, b)
    )
    assert least_cost(SelectiveCurve.of(a, e, b), 0.3, 0.9, 0.1, 0.4).value == pytest.approx(by_hand, abs=1e-12)


def test_the_least_cost_of_a_long_curve_has_its_threshold():
    """One wrong class or accepted OOD input costs 1, one rejection 1/2: accept what is right, the first 1.5 blocks."""
    size = 2 * BLOCK
    right = np.arange(size) < 1.5 * BLOCK
    curve = SelectiveCurve.of(np.arange(float(size)), ~right, np.full(4, 3.0 * BLOCK))
    got = least_cost(curve, prior=0.5)
    assert got.threshold == 1.5 * BLOCK - 1
    assert got.value == pytest.approx(0.5 * 0.5 * 0.25, abs=1e-12)  # a quarter of ID, rejected


@pytest.mark.parametrize("case", CASES)
def test_oscr_is_the_chance_of_correct_id_below_ood(case):
    a, e, b = setup(*case)
    wins = (b[:, None] > a) + 0.5 * (b[:, None] == a)
    assert oscr(SelectiveCurve.of(a, e, b)) == pytest.approx(np.mean(wins * (1 - e)), abs=1e-12)


def accuracy_among_accepted(a, e, threshold, share):
    """1 − R where inputs below the threshold are accepted, those at it with probability `share`; 0 if none of ID is."""
    accepted = (a < threshold) + share * (a == threshold)
    return np.dot(accepted, 1 - e) / accepted.sum() if accepted.sum() > 0 else 0.0


@pytest.mark.parametrize("case", [*CASES, (5, 3, 60, 0), (6, 60, 3, 0)])
def test_selective_oscr_is_the_integral_over_a_randomised_threshold(case):
    # Between two thresholds a tie is accepted in part: FPR then takes every value from 0 to 1.
    a, e, b = setup(*case)
    area = sum(
        np.mean(b == t) * quad(lambda share, t=t: accuracy_among_accepted(a, e, t, share), 0, 1)[0]
        for t in np.unique(b)
    )
    assert oscr_selective(SelectiveCurve.of(a, e, b)) == pytest.approx(area, abs=1e-9)


# Franc et al., Table 1, from an OOD mean of 2: AUROC, AUPR (ID positive), OSCR, selective risk at TPR ≥ .7, FPR ≤ .2.
SYNTHETIC = {"A": (0.88, 0.96, 0.82, 0.157), "B": (0.86, 0.95, 0.83, 0.143), "C": (0.76, 0.92, 0.86, None)}


@pytest.mark.parametrize("score", SYNTHETIC)
def test_the_published_synthetic_table_comes_out(score):
    ids, losses, ood = oracle.sample(300_000, 100_000, 0)  # a quarter is OOD, as for the paper's precision
    curve = SelectiveCurve.of(oracle.SCORES[score](ids), losses, oracle.SCORES[score](ood))
    *areas, risk = SYNTHETIC[score]
    found = (curve.pair.auroc(), curve.pair.aupr_in.average_precision, oscr_selective(curve))
    assert found == pytest.approx(areas, abs=7e-3)
    point = least_risk(curve, TprFpr(0.7, 0.2))
    assert (point if risk is None else point.value) == ("unable" if risk is None else pytest.approx(risk, abs=3e-3))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fpr", [1e-4, 0.1, 0.5, 1.0])
def test_ccr_at_fpr_equals_a_scan_of_all_thresholds(case, fpr):
    a, e, b = setup(*case)
    scan = max(np.mean((a <= t) * (1 - e)) for t in oracle.thresholds(a, b) if np.mean(b <= t) <= fpr)
    assert ccr_at_fpr(SelectiveCurve.of(a, e, b), fpr) == pytest.approx(scan, abs=1e-12)


def test_risk_coverage_curve_keeps_only_thresholds_within_the_fpr_bound():
    a, e, b = setup(1, 60, 40, 1)
    coverage, risk = risk_coverage(SelectiveCurve.of(a, e, b), 0.3)
    want = [(phi, r) for _, phi, rho, r in operating_points(a, e, b) if rho <= 0.3]
    np.testing.assert_allclose(np.column_stack([coverage, risk]), want, atol=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_aurc_is_the_mean_over_random_orders_of_tied_samples(case):
    a, e, _ = setup(*case)
    rng, draws = np.random.default_rng(0), []
    for _ in range(2000):
        order = np.lexsort([rng.random(a.size), a])
        draws.append(np.mean(np.cumsum(e[order]) / np.arange(1, a.size + 1)))
    spread = np.std(draws) / np.sqrt(len(draws))
    assert aurc(a, e) == pytest.approx(np.mean(draws), abs=6 * spread + 1e-12)


@pytest.mark.parametrize("case", CASES)
def test_augrc_is_the_closed_form_of_the_auroc_of_failures(case):
    a, e, _ = setup(*case)
    accuracy = 1 - e.mean()
    failures = roc_auc_score(e, a) if 0 < accuracy < 1 else 0.5
    closed = (1 - failures) * accuracy * (1 - accuracy) + (1 - accuracy) ** 2 / 2
    assert augrc(a, e) == pytest.approx(closed, abs=1e-12)


def test_augrc_of_losses_is_the_mean_over_random_orders_of_tied_samples():
    rng = np.random.default_rng(0)
    a, e = rng.integers(0, 4, 30).astype(float), rng.exponential(size=30)
    draws = []
    for _ in range(2000):
        order = np.lexsort([rng.random(a.size), a])
        draws.append(np.trapezoid(np.concatenate([[0], np.cumsum(e[order])]) / 30, dx=1 / 30))
    assert augrc(a, e) == pytest.approx(np.mean(draws), abs=6 * np.std(draws) / np.sqrt(len(draws)))


def test_excess_aurc_is_zero_for_the_oracle_order_and_positive_otherwise():
    a, e, _ = setup(2, 60, 40, None)
    assert excess_aurc(e + a * 1e-6, e) == pytest.approx(0.0, abs=1e-12)
    assert excess_aurc(a, e) > 0


def test_real_valued_losses_are_averaged():
    curve = SelectiveCurve.of([0.0, 1.0, 2.0], [0.2, 0.4, 3.0], [5.0])
    assert least_risk(curve, TprFpr(0.6, 0.0)).value == pytest.approx(0.3)
