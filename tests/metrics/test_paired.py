"""DeLong's paired comparison against slow placements, scipy, and a permutation test."""

import numpy as np
import pytest
from scipy import stats

from openbench.metrics.intervals import paired_delong


def scores(seed=0, n=60, sizes=(40, 70), shift=1.0, noise=1.0, decimals=1):
    """Two correlated scores of the same images, rounded so that there are ties: (id, [ood, …]) of each."""
    rng = np.random.default_rng(seed)
    base = [rng.normal(size=n), *(rng.normal(shift, size=m) for m in sizes)]
    first, second = ([np.round(x + noise * rng.normal(size=x.size), decimals) for x in base] for _ in range(2))
    return (first[0], first[1:]), (second[0], second[1:])


def compared_pairwise(ids, ood):
    """(n, m) 1 where the OOD score is larger, ½ where equal, 0 where smaller; every pair looked at."""
    return np.array([[1.0 if b > a else 0.5 if b == a else 0.0 for b in ood] for a in ids])


def slow_covariance(first, second):
    """DeLong's covariance matrix (2k, 2k) of the areas of two scores on k OOD sets, from all pairs.

    The structural components of the ID side covary over all sets and both scores; those of the OOD side only within a
    set.
    """
    wins = [compared_pairwise(ids, ood) for ids, oods in (first, second) for ood in oods]
    k = len(first[1])
    total = np.cov(np.array([w.mean(axis=1) for w in wins])) / len(first[0])
    for i, a in enumerate(wins):
        for j, b in enumerate(wins):
            if i % k == j % k:
                total[i, j] += np.cov(a.mean(axis=0), b.mean(axis=0))[0, 1] / a.shape[1]
    return np.array([w.mean() for w in wins]), total


@pytest.mark.parametrize("sizes", [(40,), (40, 70), (5, 90, 30)])
def test_difference_interval_and_p_are_those_of_delongs_covariance_matrix(sizes):
    first, second = scores(sizes=sizes)
    areas, covariance = slow_covariance(first, second)
    contrast = np.repeat([1.0, -1.0], len(sizes)) / len(sizes)
    deviation = np.sqrt(contrast @ covariance @ contrast)
    found = paired_delong(first, second, level=0.9)
    assert found.first == pytest.approx(areas[: len(sizes)].mean())
    assert found.difference == pytest.approx(contrast @ areas)
    expected = stats.norm.interval(0.9, contrast @ areas, deviation)
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(contrast @ areas) / deviation))


def test_equal_scores_do_not_differ():
    first, _ = scores()
    found = paired_delong(first, first)
    assert found[2:] == (0.0, 0.0, 0.0, 1.0)


def test_a_difference_without_any_variance_is_certain():
    ids, ood = np.zeros(5), np.ones(4)
    assert paired_delong((ids, [ood]), (ood[:1].repeat(5), [ids[:4]]))[2:] == (1.0, 1.0, 1.0, 0.0)
