"""The bootstrap of FPR@95 drawn from its law, against every resample there is and against resampling itself."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from scipy.stats import chisquare

from openbench.errors import MetricError
from openbench.metrics import intervals
from openbench.metrics.curve import CURVE_METRICS, PooledCurve
from openbench.metrics.intervals import bootstrap

KEYS = ("fpr95", "fpr95_id_positive")
PAIRS = {
    "apart": ([0.0, 1.0, 2.0], [1.5, 3.0]),
    "tied": ([0.0, 1.0, 1.0, 2.0], [1.0, 2.0, 2.0]),
    "one each": ([0.0], [0.0]),
    "few OOD": ([0.0, 1.0, 2.0, 3.0, 4.0], [2.0]),
}


def law(key, ids, ood):
    """Probability of every value over all n^n · m^m equally likely resamples."""
    found = Counter()
    for a in product(ids, repeat=len(ids)):
        for b in product(ood, repeat=len(ood)):
            found[round(CURVE_METRICS[key](PooledCurve.of(a, b)), 9)] += 1
    total = sum(found.values())
    return {value: count / total for value, count in found.items()}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("pair", PAIRS)
def test_drawn_values_follow_the_law_of_all_resamples(key, pair):
    ids, ood = PAIRS[pair]
    draws = 20_000
    drawn = intervals._DRAWN[key]([PooledCurve.of(ids, ood)], np.random.default_rng(0), draws)
    counts, expected = Counter(np.round(drawn, 9).tolist()), law(key, ids, ood)
    assert set(counts) <= set(expected)
    values = sorted(expected)
    result = chisquare([counts[v] for v in values], [draws * expected[v] for v in values])
    assert len(values) == 1 or result.pvalue > 1e-3


@pytest.mark.parametrize(("replicates", "level"), [(1, 0.95), (10, 1.0)])
def test_what_gives_no_interval_is_refused(replicates, level):
    with pytest.raises(MetricError):
        bootstrap([PooledCurve.of([0.0], [1.0])], ("fpr95",), replicates, 0, level)
