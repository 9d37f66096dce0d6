"""What the pictures of runs show is what their metrics say."""

from dataclasses import replace

import numpy as np
import pytest

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import MetricError
from openbench.metrics.suite import MetricOptions, evaluate
from openbench.results import plots

OPTIONS = MetricOptions(replicates=0, correction="simes")


def a_set(name, role, shift, rng, n=80, right=None):
    labels = np.arange(n) % 3 if role.is_id else np.full(n, -1)
    predictions = labels if right is None else np.where(right, labels, (labels + 1) % 3)
    scores = rng.normal(shift, 1, n).astype("f4")
    return SetScores.of_split(name, role, scores, labels, predictions)


@pytest.fixture
def sets():
    return a_run(0)


def a_run(seed):
    rng = np.random.default_rng(seed)
    right = rng.random(80) < 0.8
    plan = [("toy", Role.ID_VAL, 0), ("v", Role.OOD_VAL, 1), ("far one", Role.FAR, 3), ("near one", Role.NEAR, 1)]
    return [a_set("toy", Role.ID_TEST, 0, rng, right=right), *(a_set(*entry, rng) for entry in plan)]


def legend(axes):
    labels = axes.get_legend_handles_labels()[1]
    assert [text.get_text() for text in axes.texts][-len(labels) :] == labels
    return labels


def curve(axes, label):
    (line,) = (line for line in axes.lines if line.get_label().startswith(label))
    return np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)


def test_curves_are_labelled_with_the_areas_of_the_metrics(sets):
    values = evaluate(sets, OPTIONS)
    sets_of = {"near one": "near", "far one": "far"}
    for draw, key in ((plots.roc, "auroc"), (plots.precision_recall, "aupr_out")):
        expected = [f"{name} ({role}) {100 * values[name][key]:.1f}" for name, role in sets_of.items()]
        assert legend(draw({"": sets}).axes[0]) == expected
    rates = [f"FNR: {name} ({role}), AUTC {100 * values[name]['autc']:.1f}" for name, role in sets_of.items()]
    assert legend(plots.error_rates({"": sets}, OPTIONS).axes[0])[1:3] == rates


def test_the_area_below_the_drawn_roc_is_the_auroc(sets):
    x, y = curve(plots.roc({"": sets}).axes[0], "near one")
    assert abs(np.trapezoid(y[::-1], x[::-1])) == pytest.approx(evaluate(sets, OPTIONS)["near one"]["auroc"], abs=2e-3)


def test_the_areas_below_the_error_rates_are_aufpr_and_aufnr(sets):
    values = evaluate(sets, OPTIONS)["near one"]
    (axes,) = plots.error_rates({"": sets}, OPTIONS).axes
    for label, key in (("FPR: ", "aufpr"), ("FNR: near one", "aufnr")):
        x, y = curve(axes, label)
        assert np.trapezoid(y, x) / (x[-1] - x[0]) == pytest.approx(values[key], abs=5e-3)
    assert f"FPR: ID flagged, AUFPR {100 * values['aufpr']:.1f}" in legend(axes)
    assert legend(axes)[-2:] == ["accepts 95 % of ID test", "FPR = FNR on validation"]


def test_error_rates_without_a_scale_are_drawn_without_areas(sets):
    wild = [*sets[:-1], SetScores("near one", Role.NEAR, np.append(sets[-1].scores, [np.inf, -np.inf]))]
    for case in (wild, [SetScores(s.name, s.role, np.zeros(5, "f4")) for s in sets]):
        (axes,) = plots.error_rates({"": case}, OPTIONS).axes
        assert legend(axes)[:2] == ["FPR: ID flagged", "FNR: near one (near)"]


def test_the_guaranteed_fpr_is_never_below_the_measured(sets):
    (axes,) = plots.conformal(sets, OPTIONS).axes
    assert legend(axes) == ["near one (near)", "far one (far)"]
    drawn = [np.asarray(line.get_xydata(), float) for line in axes.lines]
    for sure, measured in zip(drawn[::2], drawn[1::2], strict=True):
        assert (np.interp(measured[:, 1], sure[::-1, 1], sure[::-1, 0]) >= measured[:, 0] - 1e-9).all()


def test_reliability_is_the_distance_of_accuracy_and_confidence_worked_out_by_hand(sets):
    confidence, right = np.array([0.9, 0.9, 0.61, 0.71]), np.array([1, 0, 1, 1])
    first = SetScores("toy", Role.ID_TEST, np.zeros(4), right, probabilities=np.stack([confidence, 1 - confidence], 1))
    curve, shares = plots.reliability_of(plots.reliability_bins([first, *sets[1:]])).axes
    # Two images at .9, half of them right, and one each at .61 and .71, both right: (2 · .4 + .39 + .29) / 4.
    assert legend(curve) == ["ECE 37.00"]
    np.testing.assert_allclose(curve.lines[1].get_xydata(), [[0.61, 1.0], [0.71, 1.0], [0.9, 0.5]])
    assert [bar.get_height() for bar in shares.patches] == [0.25, 0.25, 0.5]


def test_what_needs_predictions_or_probabilities_is_left_out_without(sets):
    unknown = [SetScores(s.name, s.role, s.scores) for s in sets]
    assert plots.selective(unknown) is None
    assert plots.accuracy_by_score(unknown) is None
    assert plots.reliability_bins(sets) is None


def test_histograms_hold_every_score_of_near_and_far_sets_apart(sets):
    wild = [*sets[:-1], SetScores("near one", Role.NEAR, np.append(sets[-1].scores, [np.inf, -np.inf, 1e30]))]
    drawn = plots.histograms({"": wild}).axes
    assert [axes.get_title() for axes in drawn] == ["near", "far"]
    for axes, n in zip(drawn, (83, 80), strict=True):
        assert legend(axes)[0] == "ID test, n = 80"
        assert f"n = {n}" in legend(axes)[1]
        for line in axes.lines:
            edges, values = line.get_data()
            assert np.sum(values[:-1] * np.diff(edges)) == pytest.approx(1)


def test_pictures_need_an_id_set_and_an_ood_set(sets):
    with pytest.raises(MetricError, match="a picture of 1 ID test sets and 0 OOD sets"):
        plots.roc({"": sets[:1]})


def test_equal_figures_give_equal_text_in_the_colours_of_the_page(sets):
    texts = {plots.svg(plots.roc({"0.12345": sets}), 'a "label" <b>', "p0-") for _ in range(2)}
    assert len(texts) == 1
    (text,) = texts
    assert "var(--text)" in text
    assert "#1b1f24" not in text
    assert 'aria-label="a &#34;label&#34; &#60;b&#62;"' in text
    assert ">0.12345<" in text  # only places are rounded
    assert {part.partition("-")[0] for part in text.split('id="')[1:]} == {"p0"}


def test_a_picture_on_the_axes_of_another_is_the_one_on_its_own(sets):
    other = [replace(s, scores=5 * s.scores - 9) for s in a_run(1)]
    of_one = (plots.selective, plots.conformal, plots.accuracy_by_score)
    for draw in (*plots.KINDS.values(), *(lambda runs, draw=draw: draw(runs[""]) for draw in of_one)):
        alone = plots.svg(draw({"": sets}), "a run")
        plots.give_up(used := draw({"": other}))
        again = draw({"": sets})
        assert again is used
        assert plots.svg(again, "a run") == alone
