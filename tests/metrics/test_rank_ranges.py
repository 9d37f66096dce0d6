"""Ranks that methods may have, against DeLong's formula written out and by simulation; mean ranks."""

import itertools

import numpy as np
import pytest
from scipy import stats

from openbench.metrics.rank_ranges import (
    MeanRanks,
    bars,
    groups_of,
    holm,
    mean_ranks,
    moderated,
    paired_areas,
    rank_ranges,
)


def draw(rng, shifts, n=60, m=(50, 40), noise=1.0):
    """Scores of methods that see the same images: a common part, and a part of their own."""
    common_id, common_ood = rng.normal(size=n), [rng.normal(size=size) for size in m]
    return [
        [
            (
                np.round(common_id + noise * rng.normal(size=n), 1),  # rounded, so that there are ties
                [np.round(c + shift + noise * rng.normal(size=c.size), 1) for c in common_ood],
            )
        ]
        for shift in shifts
    ]


def kernel(ids, ood):
    """(n, m) of 1, ½, 0: whether the OOD image has the larger score."""
    return (ood[None, :] > ids[:, None]) + 0.5 * (ood[None, :] == ids[:, None])


def by_definition(one, other):
    """Difference of two means over sets and its variance, from the U-statistics' kernels."""
    (ids_a, oods_a), (ids_b, oods_b) = one, other
    d = [kernel(ids_a, a) - kernel(ids_b, b) for a, b in zip(oods_a, oods_b, strict=True)]
    of_id = np.mean([each.mean(axis=1) for each in d], axis=0)
    variance = of_id.var(ddof=1) / of_id.size
    variance += sum(each.mean(axis=0).var(ddof=1) / each.shape[1] for each in d) / len(d) ** 2
    return np.mean([each.mean() for each in d]), variance


def test_areas_and_variances_are_those_of_the_definition():
    methods = draw(np.random.default_rng(0), (0.5, 1.0, 1.2))
    found = paired_areas(methods)
    for a, b in itertools.combinations(range(3), 2):
        difference, variance = by_definition(methods[a][0], methods[b][0])
        assert found.values[a] - found.values[b] == pytest.approx(difference)
        ours = found.images[a, a] + found.images[b, b] - 2 * found.images[a, b]
        assert ours == pytest.approx(variance)
    assert not found.networks.any()


def test_networks_add_the_spread_of_their_differences():
    rng = np.random.default_rng(1)
    draws = [draw(rng, (0.5, 1.0)) for _ in range(4)]
    methods = [[draws[r][k][0] for r in range(4)] for k in range(2)]
    found = paired_areas(methods)
    differences = [by_definition(methods[0][r], methods[1][r])[0] for r in range(4)]
    spread = found.networks[0, 0] + found.networks[1, 1] - 2 * found.networks[0, 1]
    assert spread == pytest.approx(np.var(differences, ddof=1) / 4)
    assert found.values[0] - found.values[1] == pytest.approx(np.mean(differences))


def test_a_method_that_is_surely_better_has_the_first_rank_and_equal_ones_share_theirs():
    rng = np.random.default_rng(2)
    methods = draw(rng, (3.0, 1.0, 1.0), n=400, m=(400,))
    first, *others = rank_ranges(methods)
    assert (first.best, first.worst) == (1, 1)
    assert [(one.best, one.worst) for one in others] == [(2, 3), (2, 3)]


def test_the_same_scores_twice_are_never_apart():
    (method,) = draw(np.random.default_rng(3), (1.0,))
    assert [(one.best, one.worst) for one in rank_ranges([method, method])] == [(1, 2), (1, 2)]


def test_a_difference_without_any_variance_is_sure():
    apart, tied = ([0.0, 0.0], [[1.0, 1.0]]), ([0.0, 0.0], [[0.0, 0.0]])
    assert [(one.best, one.worst) for one in rank_ranges([[apart], [tied]])] == [(1, 1), (2, 2)]


def test_few_networks_make_the_test_cautious():
    """Two methods that are apart by the normal law are not with two networks, by the t law of one degree."""
    rng = np.random.default_rng(5)
    one, other = draw(rng, (1.0, 1.5), n=2000, m=(2000,))
    networks = [[(one[0][0], [one[0][1][0] + lift]) for lift in (0.15, -0.15)], [other[0], other[0]]]
    found = paired_areas(networks)
    variance = found.images + found.networks
    z = (found.values[1] - found.values[0]) / np.sqrt(variance[0, 0] + variance[1, 1] - 2 * variance[0, 1])
    assert 1.96 < abs(z) < 12.7
    found = rank_ranges(networks)
    assert [(r.best, r.worst) for r in found] == [(1, 2), (1, 2)]
    assert [r.on_networks for r in found] == [(2, 2), (1, 1)]  # other images would not change the order


def test_equal_methods_are_told_apart_no_more_often_than_promised():
    rng, runs = np.random.default_rng(4), 400
    wrong = sum(any(r.best > 1 for r in rank_ranges(draw(rng, (1.0,) * 4), 0.9)) for _ in range(runs))
    assert wrong <= stats.binom.ppf(0.999, runs, 0.1)


def test_variances_that_scatter_are_drawn_as_far_as_their_scatter_allows():
    """s² = σ²·χ²(d)/d with σ² = s₀²·d₀/χ²(d₀): the parameters come back, and the samples get nearer to σ²."""
    rng, d, d0, s0 = np.random.default_rng(1), 2, 6.0, 0.5
    true = s0 * d0 / rng.chisquare(d0, 20_000)
    samples = true * rng.chisquare(d, true.size) / d
    found, freedom = moderated(samples, d)
    assert freedom == pytest.approx(d + d0, rel=0.1)
    assert found == pytest.approx((d0 * s0 + d * samples) / (d0 + d), rel=0.1)
    assert np.mean(np.log(found / true) ** 2) < 0.5 * np.mean(np.log(samples / true) ** 2)


def test_holm_rejects_step_by_step():
    assert holm([0.01, 0.04, 0.03, 0.005], 0.05).tolist() == [True, False, False, True]
    assert holm([0.02, 0.02], 0.05).tolist() == [True, True]
    assert holm([0.03, 0.02], 0.05).tolist() == [True, True]
    assert holm([], 0.05).tolist() == []


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_methods_share_a_group_if_and_only_if_they_are_not_apart(share):
    rng = np.random.default_rng(0)
    apart = np.triu(rng.random((12, 12)) < share, 1)
    apart |= apart.T
    found = groups_of(apart, rng.random(12))
    for one, other in itertools.combinations(range(12), 2):
        assert bool(set(found[one]) & set(found[other])) == (not apart[one, other])
    assert all(found)


def test_groups_are_numbered_from_the_best_method_on():
    apart = np.array([[0, 0, 1, 1], [0, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 0]], dtype=bool)
    assert groups_of(apart, np.array([0.9, 0.8, 0.7, 0.1])) == [(0,), (0, 1), (1,), (2,)]
    assert groups_of(apart, np.array([0.1, 0.7, 0.8, 0.9])) == [(2,), (1, 2), (1,), (0,)]


# Four methods on 14 sets, with ties, whose mean ranks are those of the example in Demšar 2006, section 3.2.2, where the
# statistic (9.28) and the critical differences (1.25 and 1.12) are worked out by hand.
TABLE = """
.763 .768 .771 .798   .599 .591 .590 .569   .954 .971 .968 .967   .628 .661 .654 .657   .882 .888 .886 .898
.936 .931 .916 .931   .661 .668 .609 .685   .583 .583 .563 .625   .775 .838 .866 .866   1.000 1.000 1.000 1.000
.940 .962 .965 .962   .619 .666 .614 .669   .972 .981 .975 .975   .957 .978 .946 .970
"""
VALUES = np.array(TABLE.split(), dtype=float).reshape(14, 4).T


def test_the_example_of_the_paper():
    found = mean_ranks(VALUES)
    assert found.ranks == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    assert found.critical == pytest.approx(1.25, abs=5e-3)
    assert found.p == pytest.approx(stats.chi2.sf(9.28, 3), abs=1e-3)
    assert mean_ranks(VALUES, 0.9).critical == pytest.approx(1.12, abs=5e-3)


def test_friedmans_p_is_scipys_where_there_are_no_ties():
    values = np.random.default_rng(0).normal(size=(5, 8))
    assert mean_ranks(values).p == pytest.approx(stats.friedmanchisquare(*values).pvalue)


def test_bars_join_what_is_within_the_critical_difference():
    assert bars(MeanRanks(np.array([1.0, 2.0, 4.0, 3.0]), 1.5, 0.0, 9)) == [[0, 1], [1, 3], [3, 2]]
    assert bars(MeanRanks(np.array([1.0, 2.0, 4.0]), 9.0, 0.0, 9)) == [[0, 1, 2]]
    assert bars(MeanRanks(np.array([1.0, 3.0]), 1.0, 0.0, 9)) == []
