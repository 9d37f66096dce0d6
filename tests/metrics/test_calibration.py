"""Calibration of class probabilities against loops, scikit-learn and simulations."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss, log_loss

from openbench.metrics.calibration import calibration, debiased_ece, equal_mass, equal_width


def sample(n=2000, c=4, sharpness=1.5, seed=0):
    """Class probabilities and classes that are drawn from probabilities of other sharpness."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, c))
    p, true = (np.exp(s * logits) / np.exp(s * logits).sum(axis=1, keepdims=True) for s in (sharpness, 1.0))
    labels = (rng.random(n)[:, None] > true.cumsum(axis=1)).sum(axis=1)
    return p, np.minimum(labels, c - 1)


def loop_ece(p, labels, groups):
    """The definition, image by image."""
    total = 0.0
    for group in groups:
        if len(group):
            right = np.mean([p[i].argmax() == labels[i] for i in group])
            total += len(group) * abs(right - np.mean([p[i].max() for i in group]))
    return total / len(labels)


def test_ece_of_equal_width_is_that_of_a_loop_over_bins():
    p, labels = sample(300)
    edges = [(k / 15, (k + 1) / 15) for k in range(15)]
    groups = [[i for i in range(300) if low < p[i].max() <= high] for low, high in edges]
    assert calibration(p, labels)["ece"] == pytest.approx(loop_ece(p, labels, groups), abs=1e-12)


def test_bins_of_equal_mass_have_equally_many_images_and_do_not_split_ties():
    confidence = np.random.default_rng(0).permutation(np.linspace(0.3, 1, 150))
    assert np.bincount(equal_mass(confidence)).tolist() == [10] * 15
    tied = np.repeat([0.4, 0.7, 1.0], [3, 1, 20])
    bins = equal_mass(tied)
    assert [len(set(bins[tied == value])) for value in (0.4, 0.7, 1.0)] == [1, 1, 1]
    assert equal_mass(np.array([0.5, 0.5])).tolist() == [0, 0]


def test_ece_of_equal_mass_is_that_of_a_loop_over_parts_of_the_sorted_images():
    p, labels = sample(150, seed=1)
    groups = np.array_split(np.argsort(p.max(axis=1)), 15)
    assert calibration(p, labels)["ece_equal_mass"] == pytest.approx(loop_ece(p, labels, groups), abs=1e-12)


def test_brier_score_and_likelihood_are_those_of_scikit_learn():
    p, labels = sample()
    values = calibration(p, labels)
    assert values["nll"] == pytest.approx(log_loss(labels, p), rel=1e-12)
    assert values["brier"] == pytest.approx(brier_score_loss(labels, p, scale_by_half=False), rel=1e-12)


def test_a_probability_of_zero_has_a_finite_likelihood():
    assert calibration([[0.0, 1.0]], [0])["nll"] == pytest.approx(126 * np.log(2))


def test_debiased_ece_is_that_of_the_simulation_of_kumar_et_al():
    p, labels = sample(600, seed=2)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == labels
    bins, rng, plugin, simulated = equal_mass(confidence), np.random.default_rng(0), 0.0, np.zeros(40_000)
    for at in range(15):
        inside = bins == at
        accuracy, mean, share = right[inside].mean(), confidence[inside].mean(), inside.mean()
        noise = np.sqrt(accuracy * (1 - accuracy) / inside.sum())
        simulated += share * np.abs(mean - rng.normal(accuracy, noise, simulated.size))
        plugin += share * abs(mean - accuracy)
    expected = 2 * plugin - simulated.mean()
    spread = simulated.std() / np.sqrt(simulated.size)
    assert debiased_ece(confidence, right, bins) == pytest.approx(expected, abs=6 * spread)


def test_intervals_of_means_are_those_of_the_normal_approximation():
    p, labels = sample(2000)
    values = calibration(p, labels, replicates=1000)
    nll = -np.log(p[np.arange(2000), labels])
    half = 1.96 * nll.std() / np.sqrt(2000)
    assert values["nll_low"] == pytest.approx(values["nll"] - half, abs=0.1 * half)
    assert values["nll_high"] == pytest.approx(values["nll"] + half, abs=0.1 * half)
    assert values["brier_low"] < values["brier"] < values["brier_high"]


@pytest.mark.parametrize("sharpness", [1.0, 1.1, 1.5])
def test_the_interval_of_ece_holds_that_of_the_population(sharpness):
    p, labels = sample(40_000, sharpness=sharpness, seed=5)
    truth, held = calibration(p, labels)["ece_equal_mass"], 0
    for part in range(80):
        rows = slice(500 * part, 500 * (part + 1))
        found = calibration(p[rows], labels[rows], replicates=60)
        held += found["ece_debiased_low"] <= truth <= found["ece_debiased_high"]
    assert 69 <= held <= 80  # at 95 %, fewer in six cases of ten thousand


@pytest.mark.parametrize("n", [40, 97, 433, 500])
def test_without_errors_the_interval_of_ece_is_the_ece(n):
    confidence = np.random.default_rng(n).uniform(0.9, 1.0, n)
    p = np.column_stack([confidence, 1 - confidence])
    found = calibration(p, np.zeros(n, int), replicates=20)
    numbers = [found["ece_debiased_low"], found["ece_debiased"], found["ece_debiased_high"]]
    assert numbers == pytest.approx([1 - confidence.mean()] * 3)


def test_a_confidence_at_an_edge_belongs_to_the_bin_below():
    assert equal_width(np.array([0.2, 0.21, 0.6, 0.61, 1.0])).tolist() == [2, 3, 8, 9, 14]
