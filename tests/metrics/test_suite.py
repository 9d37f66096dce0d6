import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import false_discovery_control

from openbench.core.scores import SetScores
from openbench.errors import MetricError
from openbench.metrics.calibration import calibration
from openbench.metrics.curve import PooledCurve
from openbench.metrics.intervals import delong, group_delong_variance
from openbench.metrics.selective.risk import SelectiveCurve, TprFpr, augrc, aurc, least_risk
from openbench.metrics.suite import MetricOptions, evaluate, fixed_thresholds, higher_is_better
from openbench.metrics.threshold import Scale, threshold_areas

from . import metric_oracles as oracle

FAST = MetricOptions(replicates=20)


def make_set(name, role, size, shift, seed, *, is_id=False):
    rng = np.random.default_rng(seed)
    scores = (rng.normal(size=size) + shift).astype(np.float32)
    if not is_id:
        return SetScores(name, role, scores)
    logits = rng.normal(size=(size, 4))
    labels = rng.integers(0, 4, size)
    logits[np.arange(size), labels] += 2
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return SetScores(name, role, scores, logits.argmax(axis=1) == labels, labels, p)


ID = make_set("cifar10", "id_test", 200, 0, 0, is_id=True)
ID_VAL = make_set("cifar10", "id_val", 120, 0, 1, is_id=True)
OOD_VAL = make_set("tin", "ood_val", 90, 1, 2)
CSID = make_set("cifar10c", "csid", 150, 0.5, 3, is_id=True)
C100, TIN = make_set("cifar100", "near", 130, 1, 4), make_set("tin", "near", 110, 1.4, 5)
MNIST = make_set("mnist", "far", 170, 3, 6)
SETS = [ID, ID_VAL, OOD_VAL, C100, TIN, MNIST]


@pytest.fixture(scope="module")
def results():
    return evaluate(SETS, FAST)


def test_every_set_and_group_has_its_entry(results):
    assert list(results) == ["cifar100", "tin", "near", "mnist", "far", "id"]
    wide = evaluate([*SETS, CSID], FAST)
    assert set(wide) == {*results, *(f"full_spectrum/{name}" for name in results)}


def test_set_values_are_those_of_the_metric_functions(results):
    for name, s in (("cifar100", C100), ("mnist", MNIST)):
        for key, value in PooledCurve.of(ID.scores, s.scores).ranking().items():
            assert results[name][key] == value
        assert (results[name]["auroc_low"], results[name]["auroc_high"]) == delong(PooledCurve.of(ID.scores, s.scores))
        curve = SelectiveCurve.of(ID.scores, 1.0 - ID.correct, s.scores)
        risk = least_risk(curve, TprFpr(0.8, 0.2))
        assert results[name]["risk@tpr0.8,fpr0.2"] == (risk if isinstance(risk, str) else risk.value)


def test_each_set_has_the_largest_share_of_accepted_ood_that_is_given_for_it():
    rates = {"cifar100": 0.6, "tin": 0.5, "mnist": 0.05}
    got = evaluate(SETS, MetricOptions(families=("selective",), fpr=rates))
    key = "risk@tpr0.8,fpr_per_set"
    alone = {
        name: evaluate(SETS, MetricOptions(families=("selective",), fpr=rate))[name][f"risk@tpr0.8,fpr{rate:g}"]
        for name, rate in rates.items()
    }
    assert {name: got[name][key] for name in rates} == alone
    assert all(isinstance(risk, float) for risk in alone.values())
    assert got["near"][key] == pytest.approx((alone["cifar100"] + alone["tin"]) / 2)
    # The sets of a group thrown together have no such share in common.
    assert not any(name.startswith("pooled_risk@tpr") for name in got["near"])
    assert "pooled_risk@prec0.9,rec0.8" in got["near"]
    assert higher_is_better(key) is False


def test_a_set_without_a_share_is_refused_before_any_work():
    with pytest.raises(MetricError, match=r"metrics.fpr has no rate for the set 'tin'.*did you mean 'tni'"):
        evaluate(SETS, MetricOptions(fpr={"cifar100": 0.2, "tni": 0.2, "mnist": 0.1}))


def test_group_values_are_unweighted_means_over_sets(results):
    for key in ("auroc", "fpr95", "autc", "conformal_auroc", "oscr", "oscr_selective", "fpr@val"):
        assert results["near"][key] == pytest.approx((results["cifar100"][key] + results["tin"][key]) / 2, abs=1e-15)
    assert results["near"]["n_ood"] == 240
    assert results["near"]["n_sets"] == 2


def test_pooled_values_are_those_of_the_sets_thrown_together(results):
    both = np.concatenate([C100.scores, TIN.scores])
    for key, value in PooledCurve.of(ID.scores, both).ranking().items():
        assert results["near"][f"pooled_{key}"] == value
    assert results["near"]["pooled_auroc"] != results["near"]["auroc"]


def test_group_interval_is_that_of_the_mean(results):
    curves = [PooledCurve.of(ID.scores, s.scores) for s in (C100, TIN)]
    half = 1.959964 * math.sqrt(group_delong_variance(curves))
    assert results["near"]["auroc_low"] == pytest.approx(results["near"]["auroc"] - half, abs=1e-6)
    assert results["near"]["auroc_high"] == pytest.approx(results["near"]["auroc"] + half, abs=1e-6)


def test_autc_is_scaled_by_the_whole_benchmark(results):
    scale = Scale.of([np.asarray(s.scores, dtype=float) for s in (ID, C100, TIN, MNIST)])
    want = threshold_areas(ID.scores.astype(float), TIN.scores.astype(float), scale)
    assert results["tin"]["autc"] == pytest.approx(want.autc, abs=1e-12)
    assert results["tin"]["aufpr"] == results["mnist"]["aufpr"]


def test_global_thresholds_give_one_fpr_for_all_sets_and_the_reference_does_not(results):
    for key in ("fpr@95tnr", "fpr@val"):
        assert len({results[name][key] for name in ("cifar100", "tin", "mnist")}) == 1
    assert results["tin"]["fpr@95tnr"] == pytest.approx(0.05, abs=1e-12)
    assert len({results[name]["fpr@test"] for name in ("cifar100", "tin", "mnist")}) > 1


def test_calibration_is_of_id_test_and_of_class_probabilities(results):
    expected = calibration(ID.probabilities, ID.labels, replicates=20)
    assert {key: results["id"][key] for key in expected} == expected
    without = evaluate([replace(s, probabilities=None) for s in SETS], FAST)["id"]
    assert not expected.keys() & without.keys()


def test_id_values(results):
    values = results["id"]
    assert values["n_id"] == 200
    assert values["accuracy"] == pytest.approx(ID.correct.mean())
    assert values["id_val_accuracy"] == pytest.approx(ID_VAL.correct.mean())
    assert values["aurc"] == pytest.approx(aurc(ID.scores, 1.0 - ID.correct))
    least = np.mean(np.cumsum(np.sort(1.0 - ID.correct)) / np.arange(1, 201))
    assert values["e-aurc"] == pytest.approx(values["aurc"] - least)
    assert values["augrc"] == augrc(ID.scores, 1.0 - ID.correct)
    assert 0 <= values["lac_coverage@0.1"] <= 1
    thresholds = [results[name]["f1_threshold"] for name in ("cifar100", "tin", "mnist")]
    assert values["f1_threshold_std"] == pytest.approx(np.std(thresholds) / ID.scores.astype(float).std())
    assert values["f1_threshold_range"] == pytest.approx(np.ptp(thresholds) / ID.scores.astype(float).std())


def test_attacked_sets_are_evaluated_as_their_clean_ones_are():
    attacked = [replace(s, role=f"{s.role}_attacked", scores=s.scores - 1) for s in (C100, TIN, MNIST)]
    results = evaluate([*SETS, *attacked], FAST)
    moved = evaluate([ID, ID_VAL, OOD_VAL, *(replace(s, scores=s.scores - 1) for s in (C100, TIN, MNIST))], FAST)
    assert {name: results[f"attacked/{name}"] for name in moved if name != "id"} == {
        name: values for name, values in moved.items() if name != "id"
    }
    assert {name: v for name, v in results.items() if not name.startswith("attacked/")} == evaluate(SETS, FAST)


def test_accuracy_on_attacked_id_images_stands_beside_their_detection():
    results = evaluate([*SETS, replace(ID, name="adversarial_id", role="near_attacked")], FAST)
    assert results["attacked/id"] == {"n_id": 200, "accuracy": pytest.approx(ID.correct.mean())}
    assert results["attacked/near"]["auroc"] == pytest.approx(0.5)


def test_full_spectrum_pools_covariate_shifted_id_with_id():
    wide = evaluate([*SETS, CSID], FAST)
    ids = np.concatenate([ID.scores, CSID.scores])
    assert wide["full_spectrum/tin"]["auroc"] == pytest.approx(oracle.auroc(ids, TIN.scores), abs=1e-12)
    assert wide["full_spectrum/id"]["n_id"] == 350
    assert wide["full_spectrum/id"]["accuracy"] == pytest.approx(np.concatenate([ID.correct, CSID.correct]).mean())
    assert wide["tin"] == evaluate(SETS, FAST)["tin"]


def test_infeasible_values_are_the_word_unable_and_make_the_group_unable():
    below = SetScores("inside", "near", np.full(50, -9.0))
    got = evaluate([ID, C100, below], MetricOptions(replicates=0, tpr=0.5, fpr=0.5))
    assert got["inside"]["risk@tpr0.5,fpr0.5"] == "unable"
    assert isinstance(got["cifar100"]["risk@tpr0.5,fpr0.5"], float)
    assert got["near"]["risk@tpr0.5,fpr0.5"] == "unable"


def test_infinite_scores_leave_autc_unable_and_the_ranks_intact():
    extreme = SetScores("far1", "far", np.array([np.inf, 2.0, np.inf]))
    got = evaluate([ID, extreme], FAST)
    assert got["far1"]["autc"] == "unable"
    assert got["far1"]["auroc"] == pytest.approx(oracle.auroc(ID.scores, extreme.scores))
    json.dumps(got, allow_nan=False)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_tiny_sets_are_evaluated(n):
    got = evaluate([SetScores("a", "id_test", np.arange(n), np.ones(n)), SetScores("b", "far", [0.5])], FAST)
    assert 0 <= got["b"]["conformal_fpr95"] <= 1


def test_validation_thresholds_are_absent_without_validation_splits():
    for sets in ([ID, C100], [ID, ID_VAL, C100], [ID, OOD_VAL, C100]):
        got = evaluate(sets, FAST)
        assert "fpr@val" not in got["cifar100"]
        assert "fpr@test" in got["cifar100"]


def test_only_the_chosen_families_are_computed():
    got = evaluate(SETS, MetricOptions(families=("ranking",)))
    assert set(got["tin"]) == {*PooledCurve.of([0.0], [1.0]).ranking(), "n_ood"}
    assert set(got["id"]) == {"n_id", "accuracy", "id_val_accuracy"}


def test_the_order_of_samples_and_sets_does_not_matter():
    order = np.random.default_rng(0).permutation(200)
    shuffled = SetScores("cifar10", "id_test", ID.scores[order], ID.correct[order])
    plain = SetScores("cifar10", "id_test", ID.scores, ID.correct)
    one, two = evaluate([plain, C100, TIN], FAST), evaluate([TIN, shuffled, C100], FAST)
    for name in one:
        assert one[name] == pytest.approx(two[name], abs=1e-12)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([C100], "exactly one id_test"),
        ([ID, ID, C100], "exactly one id_test"),
        ([ID], "at least one near or far set — found id_test 'cifar10'"),
        ([ID, C100, SetScores("cifar100", "far", [1.0])], "'cifar100' is used twice"),
        ([ID, SetScores("near", "near", [1.0])], "'near' is taken by a group"),
        ([ID, SetScores("id", "far", [1.0])], "'id' is taken by a group"),
        ([ID, SetScores("full_spectrum/x", "far", [1.0])], "taken by a group"),
        ([ID, SetScores("x", "naer", [1.0])], "role 'naer' of set 'x' not found; did you mean 'near'"),
        ([ID, SetScores("x", "far", [])], "scores of far set 'x' is empty"),
        ([ID, SetScores("x", "far", [np.nan])], "scores of far set 'x' contains NaN"),
        ([SetScores("a", "id_test", [0.0, 1.0], correct=[1]), C100], "`correct` of set 'a' must be 0 or 1, one per"),
        ([SetScores("a", "id_test", [0.0, 1.0], correct=[1, 2]), C100], "`correct` of set 'a'"),
    ],
)
def test_ambiguous_or_broken_input_is_refused(sets, message):
    with pytest.raises(MetricError, match=message):
        evaluate(sets, FAST)


def test_every_key_has_a_direction_or_is_known_to_have_none(results):
    undirected = {key for values in results.values() for key in values if higher_is_better(key) is None}
    without = ("n_", "f1_threshold", "pooled_f1_threshold", "lac_coverage", "aps_coverage", "raps_coverage")
    assert all(key.startswith(without) or "_size_std@" in key for key in undirected)


def test_directions_agree_with_what_separation_does(results):
    # mnist is far easier than cifar100: every directed set metric must say so, but for two that separation need not
    # improve: the accuracy among the accepted, which may fall as more are accepted, and the share of false discoveries.
    for key, easy in results["mnist"].items():
        better, hard = higher_is_better(key), results["cifar100"][key]
        if better is None or isinstance(easy, str) or isinstance(hard, str):
            continue
        if key.startswith(("bh_fdp", "oscr_selective")):
            continue
        assert (easy >= hard) if better else (easy <= hard), key


def test_fixed_thresholds_are_those_read_off_the_scores_by_hand():
    ids = SetScores("cifar10", "id_test", np.arange(100.0), np.ones(100, bool))
    assert fixed_thresholds([ids, C100]) == {"95tnr": 94.0}  # 0 … 94 are the 95 % that are accepted
    validation = [SetScores("cifar10", "id_val", np.arange(5.0)), SetScores("tin", "ood_val", np.arange(7.0, 12.0))]
    found = fixed_thresholds([ids, *validation, C100])
    assert found["95tnr"] == 94.0
    assert 4.0 <= found["val"] < 7.0  # where neither rate has an error


def test_each_option_reaches_the_number_that_it_is_of():
    prices = {"cost_reject_id": 0.3, "cost_accept_ood": 0.9, "cost_reject_ood": 0.1, "prior": 0.4}
    rates = {
        "precision": 0.6,
        "recall": 0.5,
        "ccr_fprs": (0.25,),
        "fdr": 0.2,
        "autc_scaling": "pair",
        "autc_weight": 0.3,
    }
    got = evaluate(SETS, MetricOptions(replicates=0, delta=0.1, correction="dkwm", **prices, **rates))
    a, val, n = ID.scores.astype(float), ID_VAL.scores.astype(float), 200
    for s in (C100, TIN, MNIST):
        b, found, cuts = s.scores.astype(float), got[s.name], oracle.thresholds(ID.scores, s.scores).astype(float)
        phi, rho, loss = (
            np.array([np.sum(w * (x <= t)) / len(x) for t in cuts]) for x, w in ((a, 1), (b, 1), (a, ~ID.correct))
        )
        with np.errstate(invalid="ignore"):
            allowed = (phi >= 0.5) & (0.6 * phi / (0.6 * phi + 0.4 * rho) >= 0.6)
        low, high = cuts[1], cuts[-1]
        aufpr, aufnr = np.clip(a - low, 0, None).mean() / (high - low), np.clip(high - b, 0, None).mean() / (high - low)
        bound = np.append(np.minimum(1, np.arange(1, n + 1) / n + math.sqrt(math.log(20) / (2 * n))), 1.0)
        flagged = np.array([np.sum(a > t) for t in cuts])
        p = [(1 + np.sum(val >= x)) / 121 for x in np.append(a, b)]
        out = false_discovery_control(p) <= 0.2
        at95 = np.sort(a)[189]
        assert found == pytest.approx(
            found
            | {
                "risk@prec0.6,rec0.5": (loss[allowed] / phi[allowed]).min(),
                "cost": (0.6 * (loss + 0.3 * (1 - phi)) + 0.4 * (0.9 * rho + 0.1 * (1 - rho))).min(),
                "ccr@fpr0.25": (phi - loss)[rho <= 0.25].max(),
                "oscr": np.mean((b[:, None] > a) * ID.correct),
                "oscr_selective": np.mean([ID.correct[a < t].mean() if (a < t).any() else 0.0 for t in b]),
                "aufpr": aufpr,
                "aufnr": aufnr,
                "autc": 0.3 * aufpr + 0.7 * aufnr,
                "fpr@95tnr": np.mean(a > at95),
                "fnr@95tnr": np.mean(b <= at95),
                "conformal_auroc": np.trapezoid((1 - rho)[::-1], bound[flagged][::-1]),
                "conformal_fpr95": bound[min(flagged[1 - rho >= 0.95])],
                "bh_power@0.2": out[n:].mean(),
                "bh_fdp@0.2": out[:n].sum() / max(1, out.sum()),
            },
            abs=1e-12,
        )
