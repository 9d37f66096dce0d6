"""Options of metrics, and which values each metric can have."""

import math
import re
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest
import yaml

import openbench.metrics
from openbench.core.scores import SetScores
from openbench.digest import OMIT_IF_DEFAULT
from openbench.errors import MetricError
from openbench.metrics.curve import CURVE_METRICS
from openbench.metrics.keys import bounds, rate_label
from openbench.metrics.options import FAMILIES, MetricOptions, describe
from openbench.metrics.suite import evaluate

DEFAULT = Path(openbench.metrics.__file__).parents[2] / "configs" / "metrics" / "default.yaml"


def test_the_default_config_equals_the_default_options_key_for_key():
    node = yaml.safe_load(DEFAULT.read_text(encoding="utf-8"))
    assert node.pop("_target_") == "openbench.metrics.suite.MetricOptions"
    # Those that came later are not in the file: it is part of every record's name.
    late = {field.name for field in fields(MetricOptions) if field.metadata.get(OMIT_IF_DEFAULT)}
    assert list(node) == [name for name in asdict(MetricOptions()) if name not in late]
    assert MetricOptions(**node) == MetricOptions()


def test_lists_from_yaml_become_tuples_so_that_options_hash():
    assert hash(MetricOptions(families=["ranking"])) == hash(MetricOptions(families=("ranking",)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"families": ["rankin"]}, r"metrics.families — found \['rankin'\], allowed: .*did you mean 'ranking'"),
        ({"correction": "simess"}, "did you mean 'simes'"),
        ({"delta": 0.0}, "metrics.delta — found [01].0, allowed: a number > 0 and < 1"),
        ({"fpr": {"mnist": 0.1, "svhn": 8}}, "metrics.fpr — found .*'svhn': 8"),
        ({"fpr": {"mnist": 0.1, "": 0.2}}, "metrics.fpr — found .*'': 0.2"),
        ({"cost_accept_ood": float("inf")}, "metrics.cost_accept_ood — found inf"),
        ({"tpr": 80}, "metrics.tpr — found 80, .*a fraction, not %"),
        ({"replicates": 1}, "metrics.replicates — found 1, allowed: 0, or a whole number ≥ 2"),
    ],
)
def test_unusable_options_are_refused_before_anything_is_scored(change, message):
    with pytest.raises(MetricError, match=message):
        MetricOptions(**change)


def test_rates_by_set_stand_in_the_header_and_options_still_hash():
    options = MetricOptions(fpr={"notmnist": 0.08, "cifar10": 0.29})
    assert "FPR ≤ (notmnist 0.08, cifar10 0.29)" in describe(options)
    assert hash(options) == hash(MetricOptions(fpr={"notmnist": 0.08, "cifar10": 0.29}))
    assert (options.fpr_of("cifar10"), options.fpr_of(""), MetricOptions().fpr_of("cifar10")) == (0.29, None, 0.2)


@pytest.mark.parametrize(
    ("family", "part"),
    [
        ("ranking", "FPR@95"),
        ("threshold", "AUTC"),
        ("selective", "risk"),
        ("conformal", "δ"),
        ("intervals", "DeLong"),
        ("prediction_sets", "prediction sets"),
    ],
)
def test_the_header_names_only_what_was_computed(family, part):
    assert part in describe(MetricOptions(families=(family,)))
    assert part not in describe(MetricOptions(families=tuple(f for f in FAMILIES if f != family)))


@pytest.mark.parametrize(("rate", "label"), [(1e-4, "1e-4"), (0.1, "1e-1"), (0.05, "0.05"), (0.25, "0.25"), (1.0, "1")])
def test_rates_are_written_in_keys_as_tables_write_them(rate, label):
    assert rate_label(rate) == label


def test_without_a_false_discovery_rate_nothing_is_selected():
    """Where ID validation was seen in training, a selection calibrated on it would promise what it cannot hold."""
    rng = np.random.default_rng(0)
    sets = [
        SetScores("a", "id_test", rng.normal(size=50)),
        SetScores("b", "id_val", rng.normal(size=50)),
        SetScores("c", "far", rng.normal(2, size=50)),
    ]
    for fdr, expected in ((0.1, {"bh_power@1e-1", "bh_fdp@1e-1"}), (None, set())):
        values = evaluate(sets, MetricOptions(families=("conformal",), fdr=fdr))["c"]
        assert {key for key in values if key.startswith("bh_")} == expected
        assert "conformal_auroc" in values


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
