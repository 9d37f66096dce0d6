"""Which values each metric can have."""

import math
import re

import numpy as np
import pytest

from openbench.metrics.curve import CURVE_METRICS
from openbench.metrics.keys import bounds
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


def test_counts_are_whole_numbers():
    assert bounds("n_id").hold(3)
    assert not bounds("n_id").hold(2.5)
    assert not bounds("n_id").hold(0)
    assert bounds("auroc").hold(1.0 + 1e-12)
    assert not bounds("auroc").hold(1.001)
