"""Curves of kept scores: their points and the numbers that are said of them, against counting by hand."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.metrics.conformal.corrections import FINITE_SAMPLE
from openbench.metrics.options import MetricOptions
from openbench.studies.curves import KINDS, ScoredRun, drawn, fold_rates, points, summary
from openbench.studies.study import Curve

# Sorted by score: ID right, OOD, ID right, ID wrong, OOD, ID right, OOD.
ID, RIGHT, OOD = [0.0, 2.0, 3.0, 5.0], [0, 1, 2, 0], [1.0, 4.0, 6.0]
LABELS = [0, 1, 0, 0]


def scored(row="MSP", ood=OOD, group="0", ids=ID, figures=None):
    """A run with four ID images, three of them right, and three OOD images."""
    sets = [
        SetScores.of_split(
            "toy", Role.ID_TEST, np.float32(ids), np.resize(LABELS, len(ids)), np.resize(RIGHT, len(ids))
        ),
        SetScores.of_split("a", Role.NEAR, np.float32(ood), np.full(len(ood), -1), np.zeros(len(ood), int)),
    ]
    return ScoredRun(row, group, "toy", sets, figures or {})


def only(panels):
    """The lines of the one panel."""
    (lines,) = panels.values()
    return lines


@pytest.mark.parametrize(
    ("kind", "heights", "area"),
    [
        ("oscr", [0, 0.25, 0.25, 0.5, 0.5, 0.5, 0.75, 0.75], (0.25 + 0.5 + 0.75) / 3),
        ("oscr_selective", [0, 1, 1, 1, 2 / 3, 2 / 3, 3 / 4, 3 / 4], (1 + 2 / 3 + 3 / 4) / 3),
    ],
)
def test_oscr_curves_count_right_answers_over_accepted_ood(kind, heights, area):
    (found,) = only(KINDS[kind]([scored(figures={("a", kind): 0.9})]).panels)
    # Each threshold accepts all up to a score.
    assert found.x.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1])
    assert (found.y.tolist(), found.value) == (pytest.approx(heights), pytest.approx(area))
    assert found.published == 0.9


def test_each_ood_set_is_a_panel_under_its_own_name():
    run = scored()
    above = replace(run.sets[1], name="b", scores=np.float32([6.0, 7.0, 8.0]))
    panels = KINDS["oscr"]([replace(run, sets=[*run.sets, above])]).panels
    assert {name: line.value for name, (line,) in panels.items()} == pytest.approx({"toy: a": 0.5, "toy: b": 0.75})


def test_rates_cross_between_the_thresholds_that_hold_them_equal():
    chart = KINDS["autc"]([scored()])
    fpr, fnr = only(chart.panels)
    assert (fpr.y[0], fpr.y[-1], fnr.y[0], fnr.y[-1]) == (0.75, 0.0, 0.0, 1.0)
    # Scores are scaled from [0, 6]: 3 of 4 ID images lie above every t < 1/3, 2 of 3 OOD images above t < 2/3.
    at = {round(float(t), 4): i for i, t in enumerate(fpr.x)}
    assert (fpr.y[at[0.25]], fnr.y[at[0.25]]) == (0.75, pytest.approx(1 / 3))
    # AUFPR is the mean scaled ID score, AUFNR one less the mean scaled OOD score.
    assert (fpr.value, fnr.value) == pytest.approx((10 / 24, 1 - 11 / 18))
    assert set(only(chart.marks)) == {"equal rates, test", "95 % of ID accepted"}


def test_what_cannot_be_drawn_is_left_out_and_said():
    rows = [scored("MSP"), scored("KNN", ids=[0.0, 2.0, 3.0, np.inf])]
    for kind, lines, said in (("autc", ["FPR", "FNR"], "KNN (a)"), ("fluctuation", ["MSP"] * 3, "KNN")):
        chart = KINDS[kind](rows)
        assert [line.name for panel in chart.panels.values() for line in panel] == lines
        assert f"without, since scores are infinite or all the same: {said}" in summary(chart).notes
        assert not {"nan", "inf"} & {cell for row in points(chart).rows for cell in row}
        assert KINDS[kind](rows[1:]).panels == {}


def test_guaranteed_fpr_is_never_below_the_measured_one():
    measured, guaranteed = only(KINDS["conformal"]([scored()]).panels)
    assert guaranteed.name == "MSP, guaranteed"
    assert (guaranteed.x >= measured.x).all()
    assert measured.value == pytest.approx((1 + 3 + 4) / 12)
    assert guaranteed.value < measured.value


def test_curves_take_the_delta_of_the_study():
    options = [MetricOptions(delta=delta) for delta in (0.2, 0.01)]
    loose, strict = (KINDS["corrections"]([replace(scored(), options=one)]).panels for one in options)
    assert list(strict) == ["n = 4, δ = 0.01"]
    assert tuple(line.name for line in only(strict)) == FINITE_SAMPLE
    assert all(one.value < other.value for one, other in zip(only(loose), only(strict), strict=True))


def test_thresholds_of_groups_are_told_in_deviations_of_the_id_score():
    # In group 1 all scores are 10 larger, so its best threshold is too.
    groups = [scored(group="0"), scored(group="1", ood=[11.0, 14.0, 16.0], ids=[10.0, 12.0, 13.0, 15.0])]
    chart = KINDS["fluctuation"](groups)
    moved, own, single = (lines[0] for lines in chart.panels.values())
    deviation = np.std(ID)
    assert moved.y.tolist() == pytest.approx([-5 / deviation, 5 / deviation])
    # All flagged: precision 3/7, recall 1; from 1 on: 3/6, 1; from 4 on: 2/3, 2/3. The best F1 is 2/3.
    assert own.y.tolist() == pytest.approx([2 / 3, 2 / 3])
    assert min(single.y) < 2 / 3
    assert chart.ticks == ["0", "1"]


def test_the_fpr_of_a_calibration_fold_is_the_share_of_other_images_with_a_p_value_up_to_alpha():
    ids = np.random.default_rng(1).normal(size=53 * 45 + 7).round(3)  # with ties
    found, law = fold_rates(ids)
    folds = np.random.default_rng(0).permutation(ids)[: 53 * 45].reshape(53, 45)
    rates = []
    for at, fold in enumerate(folds):
        others = np.concatenate([other for i, other in enumerate(folds) if i != at])
        p = (1 + (fold[:, None] >= others).sum(axis=0)) / 46
        rates.append(np.mean(p <= 0.05))
    assert found.tolist() == pytest.approx(sorted(rates))
    # P(Beta(2, 44) ≤ x) is P(at least 2 of 45 uniform numbers are ≤ x).
    assert law.cdf(0.05) == pytest.approx(1 - 0.95**45 - 45 * 0.05 * 0.95**44)
    assert law.mean() == pytest.approx(2 / 46)


def test_rates_of_calibration_folds_are_drawn_beside_their_law():
    many = np.random.default_rng(1).normal(size=53 * 100)
    chart = KINDS["calibration"]([scored("MSP", ids=many), scored("few")])
    assert list(chart.panels) == ["toy: 53 folds of 100 ID images"]
    row, law = only(chart.panels)
    assert (row.name, law.name, chart.unable) == ("MSP", "Beta(5, 96)", ["few"])
    # Kolmogorov's bound for 53 folds at 1 in 1 000 is .27; the scores are drawn with a fixed seed.
    assert np.abs(row.y - np.interp(row.x, law.x, law.y)).max() < 0.27


@pytest.mark.parametrize("kind", get_args(Curve))
def test_every_chart_has_a_picture_points_and_a_table(kind):
    ids = np.arange(53 * 19.0) if kind == "calibration" else ID
    chart = KINDS[kind]([scored(f"row {at}", group=str(at), ids=ids) for at in range(10)])
    assert drawn(chart).axes
    assert [column.title for column in points(chart).columns] == ["panel", "line", "x", "y", "value", "published"]
    assert len(summary(chart).rows) >= 1


def test_one_legend_for_all_panels_names_the_lines_of_each():
    rows = [scored(f"row {at}") for at in range(9)]
    sets = [replace(one, name="b") if one.role == Role.NEAR else one for one in rows[0].sets]
    chart = KINDS["oscr"]([*rows, replace(scored("only b"), sets=sets)])
    assert [len(lines) for lines in chart.panels.values()] == [9, 1]
    (legend,) = drawn(chart).legends
    assert [text.get_text() for text in legend.get_texts()] == [*(f"row {at}" for at in range(9)), "only b"]
