"""Mean ranks and critical differences, against the example that the paper works out by hand."""

import numpy as np
import pytest
from scipy import stats

from openbench.errors import MetricError
from openbench.metrics.rank_ranges import MeanRanks, bars, mean_ranks

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


@pytest.mark.parametrize("values", [[[1.0, 2.0]], [[1.0], [2.0]], [[1.0, np.nan], [2.0, 3.0]]])
def test_what_cannot_be_ranked_is_refused(values):
    with pytest.raises(MetricError, match="mean ranks need"):
        mean_ranks(values)
