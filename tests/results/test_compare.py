"""The verdict about a repeated run: what has to be equal, and what may move by a sample or two on another processor."""

from dataclasses import replace

import numpy as np
import pytest

from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.metrics.suite import MetricOptions, evaluate
from openbench.results.records.compare import allowance, compare, rule_of

from .records import make_record

# Scores of the sides overlap little enough that every operating point can be reached.
SIZES = {"id_val/toy": 500, "ood_val/v": 400, "id_test/toy": 2000, "near/a": 1000, "near/b": 500, "far/c": 4000}
OPTIONS = {"replicates": 200, "cost_accept_ood": 1.0}
CLASSES = 10


def measured(sets: list[SetScores]) -> ResultRecord:
    counts = {f"{s.role}/{s.name}": {"n": len(s.scores), "expected": len(s.scores)} for s in sets}
    return make_record(
        run_id="1" * 16,
        config={"seed": 0, "metrics": OPTIONS},
        backbone={"name": "tiny", "num_classes": CLASSES},
        metrics=evaluate(sets, MetricOptions(replicates=200)),
        counts=counts,
    )


def drawn(seed: int, sizes: dict[str, int] = SIZES) -> list[SetScores]:
    """Gaussian scores, and labels drawn from softmax probabilities, a third of which are saturated."""
    rng, sets = np.random.default_rng(seed), []
    shifts = {"near/a": 1.5, "near/b": 2.0, "far/c": 4.0, "ood_val/v": 1.0}
    for name, n in sizes.items():
        role, _, known = name.partition("/")
        logits = rng.normal(0, 1, (n, CLASSES)) * rng.choice([1, 4, 30], (n, 1))
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p = (p / p.sum(axis=1, keepdims=True)).astype(np.float32)
        scores = rng.normal(shifts.get(name, 0.0), 1, n)
        inside = role.startswith(("id", "csid"))
        labels = (p.cumsum(axis=1) < rng.random((n, 1)) * p.sum(axis=1, keepdims=True)).sum(axis=1).clip(0, CLASSES - 1)
        correct = labels == p.argmax(axis=1)
        extras = (correct, labels, p) if inside else (None, None, None)
        sets.append(SetScores(known, role, scores, *extras))
    return sets


def on_another_processor(sets: list[SetScores], seed: int) -> list[SetScores]:
    """The same sets with every number off by a few roundings of float32."""
    rng = np.random.default_rng(seed)

    def off(values):
        return None if values is None else values * (1 + 5e-7 * rng.uniform(-1, 1, values.shape))

    return [replace(s, scores=off(s.scores), probabilities=off(s.probabilities)) for s in sets]


@pytest.fixture(scope="module")
def record() -> ResultRecord:
    return measured(drawn(0, {**SIZES, "csid/noisy": 300}))


@pytest.mark.parametrize("part", [1, 20])
def test_scores_that_differ_by_rounding_reproduce_although_some_counts_move(part):
    moved = 0
    for seed in (2, 3, 4):  # by which counts move
        sets = drawn(seed, {name: n // part for name, n in SIZES.items()})
        found = compare(measured(sets), measured(on_another_processor(sets, seed)))
        assert found.reproduces, [str(d) for d in found.differ]
        moved += len(found.moved)
    assert moved or part > 1


def with_value(record: ResultRecord, where: str, key: str, more: float) -> ResultRecord:
    values = {**record.metrics[where], key: record.metrics[where][key] + more}
    return replace(record, metrics={**record.metrics, where: values})


@pytest.mark.parametrize(
    ("where", "key", "bound"),
    [
        # 2,000 ID scores; 1,000, 500 and 4,000 OOD scores; three samples may cross a threshold.
        ("a", "fpr95", 3 / 2000),
        ("a", "fpr95_id_positive", 3 / 1000),
        ("near", "fpr95_id_positive", 3 / 500),
        ("near", "pooled_fpr95_id_positive", 3 / 1500),
        ("a", "fpr@val", 3 / 2000 + 3 / 400),
        ("a", "auroc", 3 / (2000 * 1000)),
        ("near", "auroc", 3 / (2000 * 500)),
        ("full_spectrum/a", "fpr95", 3 / 2300),
        ("a", "oscr_selective", 3 / 1000),
        ("c", "risk@tpr0.8,fpr0.2", 3 / (0.8 * 2000)),
        ("a", "cost", 3 / 2000 + 3 / 1000),
        ("a", "detection_error", (3 / 2000 + 3 / 1000) / 2),
        ("id", "aurc", 3 / 2000),
        ("id", "nll", 1e-5),
        ("id", "accuracy", 1e-6),
        ("id", "lac_coverage@0.1", 3 / 2000),
        ("id", "lac_size@0.1", 3 * 10 / 2000),
        ("a", "accuracy", (3 / 1000) ** 0.5),
    ],
)
def test_bounds_follow_from_the_number_of_samples(record, where, key, bound):
    assert allowance(record, where, key) == pytest.approx(bound, rel=1e-12)
    inside, outside = (compare(record, with_value(record, where, key, by * bound)) for by in (0.99, 1.02))
    assert inside.reproduces
    assert not outside.reproduces


def test_a_share_of_discoveries_is_bounded_by_their_number(record):
    power = record.metrics["c"]["bh_power@1e-1"]
    assert 0 < power < 1
    assert allowance(record, "c", "bh_fdp@1e-1") == pytest.approx(3 / (power * 4000))
    none = with_value(record, "c", "bh_power@1e-1", -power)
    assert allowance(none, "c", "bh_fdp@1e-1") == 3


def test_a_drawn_interval_may_move_by_the_error_of_its_percentile(record):
    values = record.metrics["a"]
    width = values["fpr95_high"] - values["fpr95_low"]
    assert allowance(record, "a", "fpr95_low") == pytest.approx(width / 8 * 5**0.5 + 3 / 2000)


def test_every_metric_has_a_rule(record):
    bare = {(where, key.removeprefix("pooled_")) for where, values in record.metrics.items() for key in values}
    drawn = ("fpr95", "fpr95_id_positive", "ece_debiased", "brier", "nll")
    drawn_ends = [f"{key}_{end}" for key in drawn for end in ("low", "high")]
    assert [at for at in sorted(bare) if rule_of(*at) is None and at[1] not in drawn_ends] == []


def test_a_repetition_with_the_same_numbers_reproduces_whatever_its_provenance(record):
    found = compare(record, replace(record, provenance={"utc": "later"}))
    assert (found.reproduces, found.moved, found.added) == (True, (), ())


def test_what_is_no_metric_must_be_equal_to_rounding(record):
    assert not compare(
        record, replace(record, counts={**record.counts, "near/a": {"n": 999, "expected": 999}})
    ).reproduces
    assert compare(replace(record, tuned={"k": 1.0}), replace(record, tuned={"k": 1.0 + 1e-7})).reproduces
    assert not compare(replace(record, tuned={"k": 1.0}), replace(record, tuned={"k": 1.0 + 1e-5})).reproduces
    assert not compare(replace(record, header="a"), replace(record, header="b")).reproduces


def test_every_value_that_differs_is_reported_with_both_values():
    old = make_record()
    new = replace(old, metrics={**old.metrics, "far": {**old.metrics["far"], "auroc": 0.5}}, tuned={"k": 10})
    found = compare(old, new).differ
    assert {d.key: (d.old, d.new) for d in found} == {
        "metrics.far.auroc": (0.95, 0.5),
        "tuned.k": ("absent", 10),
        "tuned": ({}, "absent"),
    }
    assert str(found[0]) == "metrics.far.auroc: 0.95 was recorded, 0.5 came out (may differ by 0.0033)"


def test_of_an_infeasible_trial_the_wording_is_not_compared_but_that_it_is_infeasible_is(record):
    def with_trial(**trial):
        return replace(record, trials=[{"params": {"k": 1000}, **trial}])

    old = with_trial(infeasible="k out of range — found 1000")
    assert compare(old, with_trial(infeasible="k must lie in 1 to 541 — found 1000")).reproduces
    feasible = compare(old, with_trial(auroc=0.9))
    assert {d.key for d in feasible.differ} == {"trials[0].infeasible", "trials[0].auroc"}
    assert not compare(with_trial(auroc=0.9), old).reproduces
    assert not compare(old, replace(old, trials=[{"params": {"k": 999}, "infeasible": "k"}])).reproduces


@pytest.mark.parametrize(
    ("key", "bound"),
    [
        ("auroc", 3 / (500 * 400)),  # of validation scores
        # A part of the deviation of the sum of two scores of deviation 1, the second weighted by μ = 2: at most 3.
        ("threshold", 3 * (3 / 400) ** 0.5),
    ],
)
def test_a_number_of_a_trial_may_move_as_three_samples_can_move_it(record, key, bound):
    trial = {"params": {"mu": 2.0}, "auroc": 0.9, "risk": 0.1, "threshold": -0.264655}
    old = replace(record, trials=[trial])
    for by, reproduces in ((0.99 * bound, True), (1.01 * bound, False)):
        assert compare(old, replace(old, trials=[{**trial, key: trial[key] - by}])).reproduces == reproduces


def test_a_metric_that_only_the_repetition_has_is_new_and_one_that_it_lacks_differs():
    old = make_record(metrics={"near": {"auroc": 0.5}})
    more = replace(old, metrics={"near": {"auroc": 0.5, "gain": 1.0}, "extra": {"auroc": 0.4}})
    found = compare(old, more)
    assert found.reproduces
    assert set(found.added) == {"metrics.near.gain", "metrics.extra.auroc"}
    assert "2 new values, which the record does not have" in str(found)
    assert not compare(more, old).reproduces


def test_the_verdict_names_what_moved(record):
    found = compare(record, with_value(record, "a", "fpr95", 1 / 2000))
    old = record.metrics["a"]["fpr95"]
    assert f"1 moved within what 3 samples can move: a.fpr95 {old:.6g} → {old + 1 / 2000:.6g} (±0.0015)" in str(found)
