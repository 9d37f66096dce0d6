"""Results as data: typed tables, paired comparisons, pictures, and what a notebook shows."""

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from openbench.api.result import Result, Results
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import CacheError, ConfigError, DataError
from openbench.metrics.intervals import paired_delong
from openbench.results.tables.views import VIEWS

from ..results.records import full_record, make_record, metrics, split_scores, with_method  # noqa: TID252 — the tests are no package


def evaluated(name="knn", seed=0, **changes):
    """A result with the scores of Gaussian splits; equal images whatever the seed."""
    rng = np.random.default_rng(seed)
    scores = [replace(s, scores=s.scores + rng.normal(size=s.scores.size).astype("f4")) for s in split_scores()]
    record = with_method(make_record(**changes), name)
    record = replace(record, config={**record.config, "benchmark": {"name": "toy", "id": {}}})
    return Result(record, tuple(scores))


def of(scores, role, name):
    return next(s.scores for s in scores if (s.role, s.name) == (role, name))


def test_the_overview_is_typed_and_in_the_order_of_tables():
    found = Result(make_record(tuned={"k": 50})).table()
    assert list(found["set"]) == ["near", "a", "b", "far", "c"]
    near = found.set_index("set").loc["near"]
    assert (near["auroc"], near["auroc_low"], near["auroc_high"]) == (0.9, 0.89, 0.91)
    assert near["fpr95"] == pytest.approx(0.1)
    assert found.dtypes[["auroc", "auroc_low", "fpr95", "aupr_in"]].eq("float64").all()
    assert found["n"].dtype == "Int64"
    assert found.attrs["tuned"] == {"k": 50}
    assert found.attrs["tuned_on"] == "validation"
    assert found.query("role == 'near' and auroc > 0.9")["set"].tolist() == ["b"]


def test_every_view_has_numbers_at_full_precision_for_both_sides():
    record = full_record()
    for view in VIEWS:
        found = Result(record).table(view)
        assert view in ("trials", "other") or len(found), view
    ranking = Result(record).table("ranking").set_index(["side", "set", "role"])["auroc"]
    for side, prefix in (("standard", ""), ("full spectrum", "full_spectrum/")):
        for name, role in (("a", "near"), ("near", "mean")):
            assert ranking[side, name, role] == record.metrics[prefix + name]["auroc"]
    assert ranking["standard", "near", "pooled"] == record.metrics["near"]["pooled_auroc"]
    assert Result(record).table("overview")["full_spectrum_auroc"].notna().all()
    with pytest.raises(ConfigError, match=r"view — found 'rankin', .*; did you mean 'ranking'"):
        Result(record).table("rankin")


def test_what_could_not_be_computed_is_missing():
    record = make_record()
    record.metrics["a"]["risk@tpr0.8,fpr0.2"] = "unable"
    record.metrics["b"]["risk@tpr0.8,fpr0.2"] = 0.25
    found = Result(record).table("selective").set_index("set")["risk@tpr0.8,fpr0.2"]
    assert found.dtype == "float64"
    assert np.isnan(found["a"])
    assert found["b"] == 0.25


def test_the_table_of_several_methods_has_a_row_each_in_the_order_given():
    good, bad = make_record(metrics=metrics(0.9, 0.95)), make_record(metrics=metrics(0.7, 0.6), tuned={"k": 5})
    found = Results({"msp": Result(bad), "knn": Result(good)}).table()
    assert list(found.index) == ["msp", "knn"]
    assert found.loc["knn", ["near_auroc", "near_auroc_low", "near_auroc_high"]].tolist() == [0.9, 0.89, 0.91]
    assert found["c_auroc"].tolist() == [0.6, 0.95]
    assert found["near_fpr95"].tolist() == pytest.approx([0.3, 0.1])
    assert found["tuned"].tolist() == ["k=5", ""]
    assert found.dtypes["far_auroc"] == "float64"
    assert "rank" not in " ".join(found.columns)


def test_other_views_of_several_methods_name_the_method_of_each_row():
    found = Results({"msp": Result(full_record()), "knn": Result(full_record())}).table("ranking")
    assert found["method"].unique().tolist() == ["msp", "knn"]
    assert (found["method"] == "knn").sum() == len(Result(full_record()).table("ranking"))


def test_shown_as_text_and_page_notes_and_warnings_stand_above_the_numbers():
    one = replace(evaluated(), notes=("reused",), warnings=("WARNING: <b>few</b> images",))
    both = Results({"knn": one, "msp": evaluated("msp")})
    for text in (repr(one), repr(both)):
        lines = text.splitlines()
        assert max(map(len, lines)) <= 100
        assert "WARNING" in lines[0]
        assert "90.00 [89.00, 91.00]" in text
    assert repr(both).splitlines()[0].startswith("knn: WARNING")
    page = both._repr_html_()
    assert "&lt;b&gt;few&lt;/b&gt;" in page
    assert "<b>" not in page
    assert page.index("few") < page.index("reused") < page.index("<table")
    assert not re.search(r"(?<!-)\bcolor:|background", page)  # those of the page around it
    assert re.findall(r"<tr[^>]*><td[^>]*>(\w+)</td>", page) == ["knn", "msp"]


def test_the_table_of_several_methods_says_how_the_images_are_not_the_benchmarks():
    record = replace(evaluated().record, benchmark={"name": "toy", "pristine": False, "deviations": ["far.x: dropped"]})
    both = Results({"knn": Result(record), "msp": Result(record)})
    note = "Not the benchmark as defined, so not ranked: far.x: dropped."
    assert both.table().attrs["notes"] == [note]
    assert (repr(both).count(note), both._repr_html_().count(note)) == (1, 1)
    assert Results({"knn": evaluated()}).table().attrs["notes"] == []


def test_a_column_is_said_to_have_intervals_where_it_has_some():
    bare = {name: {"auroc": 0.9, "fpr95": 0.1} for name in ("near", "far", "a", "b", "c")}
    shown = [repr(Results({"knn": Result(make_record(metrics=m))})) for m in (metrics(0.9, 0.9), bare)]
    assert ["[interval]" in text for text in shown] == [True, False]


def test_the_weights_of_a_users_model_are_not_called_released():
    record = evaluated().record
    own = {"_target_": "mine.Net", "_name_": "net", "name": "net", "architecture": "mine.Net, float32"}
    untrained = replace(record, backbone={**record.backbone, "name": "net", "training": None})
    mine = replace(untrained, config={**record.config, "backbone": own})
    titles = [repr(Result(r)).splitlines()[0] for r in (mine, untrained)]
    assert ["net (own weights)" in titles[0], "net (released weights)" in titles[1]] == [True, True]


def test_a_result_that_is_not_there_says_which_are():
    with pytest.raises(KeyError, match=r"result 'kn' not found; did you mean 'knn'.*available: knn"):
        Results({"knn": evaluated()})["kn"]
    assert "kn" not in Results({"knn": evaluated()})


def test_compared_by_set_and_group():
    one, other = evaluated(seed=1), evaluated("msp", seed=2)
    found = one.compare(other, level=0.9).set_index("set")
    assert list(found.index) == ["near", "a", "far", "c"]
    assert found["role"].tolist() == ["mean", "near", "mean", "far"]
    sides = [(of(r.scores, "id_test", "toy"), [of(r.scores, "near", "a")]) for r in (one, other)]
    expected = paired_delong(*sides, level=0.9)
    row = found.loc["a"]
    assert row[["auroc", "other_auroc", "difference", "low", "high", "p"]].tolist() == list(expected)
    assert (row["n_id"], row["n_ood"]) == (40, 42)
    assert one.compare(one)["p"].tolist() == [1.0] * 4


def test_a_group_of_several_sets_is_compared_by_its_mean():
    one, other = evaluated(seed=1), evaluated("msp", seed=2)
    sets = [SetScores(s.name, "near", s.scores) if s.role == "far" else s for s in one.scores]
    more = [SetScores(s.name, "near", s.scores) if s.role == "far" else s for s in other.scores]
    found = replace(one, scores=tuple(sets)).compare(replace(other, scores=tuple(more))).set_index("set")
    assert list(found.index) == ["near", "a", "c"]
    assert found.loc["near", "difference"] == pytest.approx(found.loc[["a", "c"], "difference"].mean())
    sides = [(of(s, "id_test", "toy"), [of(s, "near", "a"), of(s, "near", "c")]) for s in (sets, more)]
    assert found.loc["near", "p"] == paired_delong(*sides).p


def changed(result, role, **changes):
    return replace(result, scores=tuple(replace(s, **changes) if s.role == role else s for s in result.scores))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda r: replace(r, scores=()), "has no scores per image"),
        (lambda r: replace(r, scores=r.scores[:2]), "only one has far/c, near/a —"),
        (lambda r: changed(r, Role.NEAR, scores=np.zeros(3), labels=None), "near/a has 42 and 3 images"),
        (lambda r: changed(r, Role.ID_TEST, labels=np.full(40, 7)), "id_test/toy: 40 of 40 images have other labels"),
        (
            lambda r: replace(r, record=replace(r.record, benchmark={"name": "other", "digest": "cccc"})),
            r"benchmarks, toy \(digest aaaa\) and other \(digest cccc\)",
        ),
    ],
)
def test_other_images_are_not_compared(other, words):
    with pytest.raises((CacheError, DataError), match=words):
        evaluated().compare(other(evaluated("msp", seed=2)))


def drawn_lines(axes):
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def test_roc_of_one_result_has_a_line_per_set_through_the_points_of_its_thresholds():
    result = evaluated()
    (axes,) = result.plot("roc").axes
    lines = drawn_lines(axes)
    ids, ood = of(result.scores, "id_test", "toy"), of(result.scores, "near", "a")
    (line,) = [line for label, line in lines.items() if label.startswith("a (near)")]
    cuts = np.append(-np.inf, np.unique(np.concatenate([ids, ood])))
    expected = [((ids > cut).mean(), (ood > cut).mean()) for cut in cuts]
    np.testing.assert_allclose(line.get_xydata(), expected)
    wins = np.mean([[1.0 if b > a else 0.5 * (b == a) for b in ood] for a in ids])
    assert f"a (near) {100 * wins:.1f}" in lines


def test_precision_and_recall_are_those_of_every_threshold():
    result = evaluated()
    (axes,) = result.plot("pr").axes
    ids, ood = of(result.scores, "id_test", "toy"), of(result.scores, "far", "c")
    (line,) = [line for label, line in drawn_lines(axes).items() if label.startswith("c (far)")]
    pooled = np.unique(np.concatenate([ids, ood]))
    expected = [((ood >= cut).mean(), (ood >= cut).sum() / ((ood >= cut).sum() + (ids >= cut).sum())) for cut in pooled]
    np.testing.assert_allclose(line.get_xydata(), [*expected, (0, 1)])


def test_densities_hold_all_images():
    for patch in [patch for axes in evaluated().plot("scores").axes for patch in axes.patches]:
        values, edges, _ = patch.get_data()
        assert (values * np.diff(edges)).sum() == pytest.approx(1)


def test_several_results_are_compared_per_set_and_no_two_lines_look_alike():
    results = Results({f"m{k}": evaluated(f"m{k}", seed=k) for k in range(24)})
    axes = results.plot("roc").axes
    assert [a.get_title() for a in axes] == ["a (near)", "c (far)"]
    lines = drawn_lines(axes[0]).values()
    looks = {(to_hex(line.get_color()), str(line._dash_pattern)) for line in lines}
    assert len(lines) == len(looks) == 24
    assert len(Results({k: results[k] for k in ("m1", "m2")}).plot("scores").axes) == 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: evaluated().plot("rock"), "plot 'rock' not found; did you mean 'roc'.*roc, pr, scores, threshold"),
        (lambda: replace(evaluated(), scores=()).plot(), "no scores per image"),
        (lambda: Results({}).plot(), "0 results, where a figure holds 1 to 24"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, words):
    with pytest.raises((ConfigError, CacheError), match=words):
        call()
