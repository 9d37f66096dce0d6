"""Which values each metric can have."""

import math
import re

import numpy as np
import pytest

from openbench.metrics.curve import CURVE_METRICS
from openbench.metrics.keys import bounds, higher_is_better
from openbench.metrics.suite import MetricOptions, SetScores, evaluate


def side(name, role, n, shift, rng):
    labels = rng.integers(0, 4, n)
    rows = rng.dirichlet(np.ones(4), n)
    scores = rng.normal(shift, 1.0, n)
    correct = rows.argmax(axis=1) == labels
    return SetScores(name, role, scores, correct, labels, rows, rng.exponential(size=(n, 4)))


def every_value(shift, seed):
    """Every key of the suite with its value, on scores whose OOD side lies `shift` above ID."""
    rng = np.random.default_rng(seed)
    sets = [side("t", "id_test", 40, 0.0, rng), side("v", "id_val", 30, 0.0, rng), side("x", "csid", 20, 0.5, rng)]
    sets += [SetScores(name, role, rng.normal(shift, 1.0, 25)) for name, role in (("o", "ood_val"), ("a", "near"))]
    sets += [SetScores("b", "far", rng.normal(shift, 1.0, 15))]
    options = MetricOptions(replicates=20, correction="simes", bootstrap_metrics=tuple(CURVE_METRICS))
    return [(key, value) for values in evaluate(sets, options).values() for key, value in values.items()]


@pytest.mark.parametrize("shift", [-50.0, -1.0, 0.0, 1.0, 50.0])
def test_what_the_suite_computes_lies_within_the_bounds(shift):
    values = every_value(shift, seed=int(shift) + 60)
    assert [(key, value) for key, value in values if value != "unable" and not bounds(key).hold(value)] == []


def test_every_key_of_the_suite_but_thresholds_has_bounds():
    keys = {key for key, _ in every_value(1.0, seed=3)}
    assert len(keys) > 100
    free = {key for key in keys if not math.isfinite(bounds(key).low)}
    assert {re.sub("^pooled_", "", key) for key in free} == {"f1_threshold"}


@pytest.mark.parametrize(
    ("key", "low", "high", "better"),
    [
        ("auroc", 0, 1, True),
        ("pooled_auroc_low", 0, 1, True),
        ("pooled_fpr95_high", 0, 1, False),
        ("risk@prec0.9,rec0.8", 0, 1, False),
        ("ccr@fpr1e-2", 0, 1, True),
        ("oscr_selective", 0, 1, True),
        ("bh_power@1e-1", 0, 1, True),
        ("bh_fdp@1e-1", 0, 1, False),
        ("id_val_accuracy", 0, 1, True),
        ("aufpr", 0, 1, False),
        ("e-aurc", 0, 1, False),
        ("augrc", 0, 0.5, False),
        ("ece_debiased_low", 0, 1, False),
        ("brier", 0, 2, False),
        ("nll_high", 0, math.inf, False),
        ("fnr@95tnr", 0, 1, False),
        ("score_lac_worst_class@0.05", 0, 1, True),
        ("aps_coverage_std@0.1", 0, 1, None),
        ("detection_error", 0, 0.5, False),
        ("cost", 0, math.inf, False),
        ("f1_threshold_std", 0, math.inf, False),
        ("f1_threshold", -math.inf, math.inf, None),
        ("raps_size_mean@0.1", 0, math.inf, False),
        ("lac_size_std@0.05", 0, math.inf, None),
        ("n_ood", 1, math.inf, None),
        ("of_a_later_version", -math.inf, math.inf, None),
    ],
)
def test_range_and_direction_by_key(key, low, high, better):
    assert bounds(key)[:2] == (low, high)
    assert higher_is_better(key) is better


def test_counts_are_whole_numbers():
    assert bounds("n_id").hold(3)
    assert not bounds("n_id").hold(2.5)
    assert not bounds("n_id").hold(0)
    assert bounds("auroc").hold(1.0 + 1e-12)
    assert not bounds("auroc").hold(1.001)
