"""Whether other seeds could explain a difference, against SciPy's Welch test."""

import numpy as np
import pytest
from scipy.stats import t as student, ttest_ind

from openbench.errors import CacheError
from openbench.results.tables.render import Estimate
from openbench.studies.cells import Verdict, difference
from openbench.studies.tables import ON_IMAGES, OVER_RUNS, Pair, _holm, _over_runs, paired

from ..results.records import split_scores  # noqa: TID252 — the tests are no package
from .runs import DRAWS, YAML, drawn, of, run, study


def mean(values):
    return Estimate(float(np.mean(values)), std=float(np.std(values))), len(values)


@pytest.mark.parametrize("shift", [0.01, 0.1, 0.3])
def test_a_difference_is_beyond_the_spread_where_welchs_test_rejects(shift):
    ours, theirs = np.array([0.5, 0.53, 0.58, 0.51]), np.array([0.5, 0.6, 0.52]) + shift
    rejected = ttest_ind(ours, theirs, equal_var=False).pvalue < 0.05
    found = difference(mean(ours), mean(theirs), 0.0)
    assert found.verdict == (Verdict.BEYOND if rejected else Verdict.WITHIN)
    assert found.value == pytest.approx(ours.mean() - theirs.mean())


def test_a_single_run_is_held_to_where_one_more_run_may_lie():
    values = np.array([0.5, 0.53, 0.58])
    edge = student.ppf(0.975, 2) * values.std(ddof=1) * np.sqrt(1 + 1 / 3)
    for factor, verdict in ((0.99, Verdict.WITHIN), (1.01, Verdict.BEYOND)):
        one = Estimate(float(values.mean() + factor * edge))
        assert difference((one, 1), mean(values), 0.0).verdict == verdict
        assert difference(mean(values), (one, 1), 0.0).verdict == verdict


def test_without_any_deviation_only_rounding_is_known():
    assert difference((Estimate(0.903), 1), (Estimate(0.90), 3), 0.005).verdict == Verdict.ROUNDING
    assert difference((Estimate(0.91), 1), (Estimate(0.90), 3), 0.005).verdict == Verdict.UNKNOWN
    same = Estimate(0.9, std=0.0)  # seeds that agree
    assert difference((Estimate(0.92, std=0.0), 3), (same, 3), 0.005).verdict == Verdict.BEYOND


def test_seeds_are_compared_in_pairs_and_holm_guards_a_column():
    from scipy.stats import ttest_1samp

    gaps = [0.01, 0.03, 0.02, 0.05]
    found = _over_runs(None, gaps)
    oracle = ttest_1samp(gaps, 0.0)
    assert found.p == pytest.approx(oracle.pvalue)
    assert (found.difference.low, found.difference.high) == pytest.approx(tuple(oracle.confidence_interval(0.95)))
    # .01 ≤ .05/3, then .03 > .05/2: the step stops there, although .04 ≤ .05 on its own.
    marked = _holm([Pair(None, None, p) for p in (0.04, 0.01, 0.03)])
    assert [pair.significant for pair in marked] == [False, True, False]


def not_kept(run_id):
    raise CacheError(run_id)


def test_draws_of_a_table_are_compared_in_pairs_although_no_network_tells_them_apart(tmp_path):
    found = study(tmp_path, DRAWS + "test: PCA\n")
    records = [drawn("pca", draw, 0.5) for draw in (1, 2, 3)]
    records += [drawn("pyod_knn", draw, near) for draw, near in ((1, 0.6), (2, 0.7), (3, 0.9))]
    ((pair,),) = paired(found, of(found, records), not_kept)
    assert (pair.test, pair.difference.value) == (OVER_RUNS, pytest.approx(0.7 / 3))


def test_a_single_pair_is_that_of_the_seed_that_both_rows_have(tmp_path):
    found = study(tmp_path, YAML + "test: MSP\n")
    records = [run("msp", 1, 0.5), *(run("knn", seed, near) for seed, near in enumerate((0.6, 0.7, 0.9)))]
    ((near, _),) = paired(found, of(found, records), not_kept)
    assert (near.test, near.difference.value) == ("", pytest.approx(0.2))


def test_a_single_pair_of_one_state_of_the_benchmark_is_compared_on_its_images(tmp_path):
    found = study(tmp_path, YAML + "test: MSP\n")
    msp, knn = run("msp", 0, 0.5), run("knn", 0, 0.6)
    kept = {msp.run_id: split_scores(0), knn.run_id: split_scores(1)}
    ((near, _),) = paired(found, of(found, [msp, knn]), kept.__getitem__)
    areas = []
    for record in (knn, msp):
        ids, near_set = (next(s.scores for s in kept[record.run_id] if s.role == role) for role in ("id_test", "near"))
        areas.append(np.mean(near_set[:, None] > ids))
    assert (near.test, near.difference.value) == (ON_IMAGES, pytest.approx(areas[0] - areas[1]))
    assert near.difference.low < near.difference.value < near.difference.high
