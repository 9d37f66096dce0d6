"""Whether other seeds could explain a difference, against SciPy's Welch test."""

import numpy as np
import pytest
from scipy.stats import t as student, ttest_1samp, ttest_ind

from openbench.errors import CacheError
from openbench.results.tables.render import Estimate
from openbench.studies.cells import PublishedFigure, difference
from openbench.studies.tables import ON_IMAGES, OVER_RUNS, paired, paired_table

from ..results.records import split_scores  # noqa: TID252 — the tests are no package
from .runs import DRAWS, YAML, drawn, of, run, study


def judged(ours, theirs, rounding=0.0):
    """The difference of what runs gave; a single number is one run."""
    first, second = (Estimate(float(np.mean(v)), std=float(np.std(v)) if np.ndim(v) else None) for v in (ours, theirs))
    return difference(first, np.size(ours), PublishedFigure(second, rounding, np.size(theirs)))


@pytest.mark.parametrize("shift", [0.01, 0.1, 0.3])
def test_a_difference_is_beyond_the_spread_where_welchs_test_rejects(shift):
    ours, theirs = np.array([0.5, 0.53, 0.58, 0.51]), np.array([0.5, 0.6, 0.52]) + shift
    rejected = ttest_ind(ours, theirs, equal_var=False).pvalue < 0.05
    found = judged(ours, theirs)
    assert found.verdict == ("*" if rejected else "~")
    assert found.value == pytest.approx(ours.mean() - theirs.mean())


def test_a_single_run_is_held_to_where_one_more_run_may_lie():
    values = np.array([0.5, 0.53, 0.58])
    edge = student.ppf(0.975, 2) * values.std(ddof=1) * np.sqrt(1 + 1 / 3)
    for factor, verdict in ((0.99, "~"), (1.01, "*")):
        one = values.mean() + factor * edge
        assert judged(one, values).verdict == judged(values, one).verdict == verdict


def test_without_any_deviation_only_rounding_is_known():
    assert judged(0.903, 0.90, 0.005).verdict == "="
    assert judged(0.91, 0.90, 0.005).verdict == "?"
    assert judged([0.92] * 3, [0.9] * 3, 0.005).verdict == "*"  # seeds that agree


def pairs(found, records, read=None):
    """Every cell less that of the first row."""
    base, *others = of(found, records)
    return [[paired(found, cell, first, read) for cell, first in zip(line, base, strict=True)] for line in others]


def test_seeds_are_compared_in_pairs_and_holm_guards_a_column(tmp_path):
    gaps = {"knn": (0.019, 0.02, 0.021), "vim": (0.0139, 0.02, 0.0261), "mls": (0.0129, 0.02, 0.0271)}
    rows = ", ".join(f"{name}: method={name}" for name in ("msp", *gaps))
    found = study(tmp_path, YAML.replace("MSP: method=msp, KNN: method=knn", rows) + "test: msp\n")
    records = [run("msp", seed, 0.5) for seed in range(3)]
    records += [run(name, seed, 0.5 + gap) for name, of_seeds in gaps.items() for seed, gap in enumerate(of_seeds)]
    oracles = [ttest_1samp(of_seeds, 0.0) for of_seeds in gaps.values()]
    assert [near.p for near, _ in pairs(found, records)] == pytest.approx([oracle.pvalue for oracle in oracles])
    assert [oracle.pvalue < 0.05 for oracle in oracles] == [True] * 3
    texts = [near for _, near, _ in paired_table(found, of(found, records), None).rows]
    ends = [[f"{100 * end:+.2f}" for end in oracle.confidence_interval(0.95)] for oracle in oracles]
    stars = (" *", "", "")  # .03 > .05/2: the step stops at the second smallest of three p
    assert texts == [f"+2.00 [{low}, {high}]{star}" for (low, high), star in zip(ends, stars, strict=True)]


def test_draws_of_a_table_are_compared_in_pairs_although_no_network_tells_them_apart(tmp_path):
    found = study(tmp_path, DRAWS)
    records = [drawn("pca", draw, 0.5) for draw in (1, 2, 3)]
    records += [drawn("pyod_knn", draw, near) for draw, near in ((1, 0.6), (2, 0.7), (3, 0.9))]
    ((pair,),) = pairs(found, records)
    assert (pair.test, pair.difference.value) == (OVER_RUNS, pytest.approx(0.7 / 3))


def not_kept(run_id):
    raise CacheError(run_id)


def test_a_single_pair_is_that_of_the_seed_that_both_rows_have(tmp_path):
    found = study(tmp_path, YAML)
    records = [run("msp", 1, 0.5), *(run("knn", seed, near) for seed, near in enumerate((0.6, 0.7, 0.9)))]
    ((near, _),) = pairs(found, records, not_kept)
    assert (near.test, near.difference.value) == ("", pytest.approx(0.2))


def test_a_single_pair_of_one_state_of_the_benchmark_is_compared_on_its_images(tmp_path):
    found = study(tmp_path, YAML)
    msp, knn = run("msp", 0, 0.5), run("knn", 0, 0.6)
    kept = {msp.run_id: split_scores(0), knn.run_id: split_scores(1)}
    ((near, _),) = pairs(found, [msp, knn], kept.__getitem__)
    areas = []
    for record in (knn, msp):
        ids, near_set = (next(s.scores for s in kept[record.run_id] if s.role == role) for role in ("id_test", "near"))
        areas.append(np.mean(near_set[:, None] > ids))
    assert (near.test, near.difference.value) == (ON_IMAGES, pytest.approx(areas[0] - areas[1]))
    assert near.difference.low < near.difference.value < near.difference.high
