"""What metrics refuse, and in which words."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from openbench.errors import MetricError
from openbench.metrics import calibration, rank_ranges, threshold
from openbench.metrics.conformal import p_values, prediction_sets
from openbench.metrics.conformal.corrections import calibrate, correction_table, crossing_probability
from openbench.metrics.conformal.p_values import benjamini_hochberg, weighted_p_values
from openbench.metrics.curve import PooledCurve, auroc, check_rate, fpr_at_tpr
from openbench.metrics.intervals import bootstrap, group_delong_variance, paired_delong
from openbench.metrics.selective import double_score, risk
from openbench.metrics.selective.double_score import ScorePair, Standard
from openbench.metrics.selective.risk import PrecisionRecall, SelectiveCurve, TprFpr

NAN, INF = float("nan"), float("inf")
ONE = np.arange(4.0)
PAIR = ONE, [np.arange(3.0)]
TWO, CURVE = SelectiveCurve.of([0.0, 1.0], [0, 1], [2.0]), PooledCurve.of([0.0], [1.0])
TABLE = correction_table(6, 0.1)
# Function, a part of its message, and what it refuses with it: one argument, or a tuple of arguments.
REFUSED: list[tuple[Any, ...]] = [
    (auroc, "ID scores is empty", ([], [1.0])),
    (auroc, "OOD scores is empty", ([1.0], [])),
    (auroc, "ID scores contains NaN .1 of 2 scores, the first at index 1", ([0.0, NAN], [1.0])),
    (auroc, "OOD scores contains NaN", ([0.0], [NAN])),
    (auroc, r"one-dimensional .found shape \(3, 1\)", (np.zeros((3, 1)), [1.0])),
    (fpr_at_tpr, "tpr is out of range: found 95", ([0.0], [1.0], 95)),
    (check_rate, "rate is out of range: found", *((rate, "rate") for rate in (-0.1, 1.1, 95.0, NAN))),
    (SelectiveCurve.of, "differ in length .1 and 2", ([0.0, 1.0], [0.0], [2.0])),
    (SelectiveCurve.of, "finite and ≥ 0", ([0.0, 1.0], [0.0, -1.0], [2.0])),
    (SelectiveCurve.of, "contains NaN", ([0.0, 1.0], [0.0, NAN], [2.0])),
    (partial(risk.least_risk, TWO), "out of range.*pass a fraction", TprFpr(1.2, 0.2), TprFpr(0.8, -0.1)),
    (partial(risk.least_risk, TWO), "out of range.*pass a", PrecisionRecall(80.0, 0.5), PrecisionRecall(0.8, 0.5, 1.5)),
    (risk.least_cost, "costs must be finite", (TWO, -1.0)),
    (double_score.combine, "differ in length", (ScorePair([1.0], [1.0, 2.0]), Standard(), 1.0)),
    (double_score.combine, "μ must be finite", (ScorePair([1.0], [1.0]), Standard(), -0.5)),
    (Standard.of, "separation score cannot be standardised", [[0.0, 1.0], [2.0, 2.0]]),
    (double_score.common_constraint, "minimal TPR", ((([0.0], [1.0]), ([0.0], [1.0])), 1.5)),
    (double_score.two_thresholds, "2 losses for 1 ID images", ((ScorePair([1], [1]), ScorePair([1], [1])), [0, 1])),
    (threshold.Scale.of, "finite, non-constant range", [np.zeros(4)], [np.array([0.0, INF])], [np.array([-INF, 1.0])]),
    (threshold.choose_scale, "did you mean 'benchmark'", ("benchmrk", (), (), ())),
    (threshold.choose_scale, "no such split", ("validation", (np.zeros(1),), (np.zeros(1),), ())),
    (threshold.threshold_stability, "threshold stability", ([], ONE), ([1.0], np.full(2, 2.0)), ([INF], ONE)),
    (threshold.shared_thresholds, "at least one group", {}),
    (threshold.shared_thresholds, "NaN", {"a": ([0.0], [NAN])}),
    (threshold.shared_thresholds, "threshold of endless is infinite", {"endless": ([0.0], [INF]), "b": ([0.0], [1.0])}),
    (bootstrap, "at least 2 replicates", ([CURVE], ("fpr95",), 1)),
    (bootstrap, "confidence level is out of range", ([CURVE], ("fpr95",), 10, 0, 1.0)),
    (group_delong_variance, "share one ID set", [CURVE, PooledCurve.of([0.0, 1.0], [1.0])]),
    (paired_delong, "same images", (PAIR, (ONE[1:], PAIR[1])), ((ONE, []), (ONE, []))),
    (paired_delong, "NaN", (PAIR, (ONE * NAN, PAIR[1]))),
    (partial(paired_delong, PAIR, PAIR), r"level is out of range: .*, allowed \(0, 1\)", "95", None, [0.9], 95, True),
    (rank_ranges.rank_ranges, "same images", [], [[]], [[([1.0], [])]], [[([1.0], [[1.0]])], [([1.0, 2.0], [[1.0]])]]),
    (rank_ranges.mean_ranks, "mean ranks need", [[1.0, 2.0]], [[1.0], [2.0]], [[1.0, NAN], [2.0, 3.0]]),
    (correction_table, r"δ is out of range.*\(0, 1\)", *((100, delta) for delta in (0.0, 1.0, -0.1, NAN))),
    (partial(correction_table, 15, 0.1), "n ≥ 16.* — use 'monte_carlo'", "asymptotic", "monte_carlo_published"),
    (correction_table, "did you mean 'simes'", (100, 0.1, "simess")),
    (correction_table, "found n = 0", (0, 0.1)),
    (crossing_probability, "non-decreasing", [], [0.5, 0.4], [-0.1, 0.5], [NAN, 0.5], [0.5, NAN]),
    (calibrate, "no boundary is crossed with", (lambda level: np.minimum(1, np.arange(20) / 20 + 0.3), 0.5, 0.1)),
    (benjamini_hochberg, "p-values", ([0.5, 1.5], 0.1), ([-0.1], 0.1), ([NAN], 0.1)),
    (benjamini_hochberg, "false discovery rate is out of range", ([0.5], 0.0), ([0.5], 1.0)),
    (p_values.conformal_auroc, "made for n = 6, but there are 2", (TWO.pair, TABLE)),
    (p_values.conformal_fpr95, "made for n = 6, but there are 2", (TWO.pair, TABLE)),
    (p_values.p_values, "made for n = 6", (ONE, [1.0], TABLE)),
    (p_values.conformal_fpr, "flagged counts", *((flagged, TABLE) for flagged in ([-1], [7], [0.5], []))),
    (weighted_p_values, "weights", *(([1, 2, 3], [2], weights, [1]) for weights in ([1, 2], [1, 2, 0], [1, 2, INF]))),
    (prediction_sets.distributions, "shape", [0.5, 0.5]),
    (prediction_sets.distributions, "not distr", [[0.5, 0.6]], [[-0.5, 1.5]], [[NAN, 1.0]]),
    (prediction_sets.probabilities_from, r"must have shape \(n, c\)", [[NAN, 1.0]], [1.0, 2.0], np.empty((0, 3))),
    (partial(prediction_sets.true_class, np.ones((2, 3))), "labels do not fit", [0], [0, 3], [-1, 0], [0.0, 1.0]),
    (prediction_sets.conformal_quantile, "α is out of range", *(([1.0], alpha) for alpha in (0.0, 1.0, 5.0))),
    (calibration.calibration, "classes from 0 to 1", ([[0.5, 0.5]], [-1]), ([[0.5, 0.5]], [2]), (np.empty((0, 2)), [])),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[1])
def test_what_has_no_value_is_refused_with_the_reason(row):
    function, message, *calls = row
    for call in calls:
        with pytest.raises(MetricError, match=message):
            function(*call) if isinstance(call, tuple) else function(call)
