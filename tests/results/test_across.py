"""The views of a record across methods."""

import csv
import io
from dataclasses import replace

import pytest

from openbench.errors import ConfigError
from openbench.results.leaderboard.across import across, across_csv, costs, needed
from openbench.results.leaderboard.ranking import boards
from openbench.results.tables.render import Estimate, to_csv, to_latex
from openbench.results.tables.views import FAMILIES, run_tables

from .records import full_record, make_record, metrics, named, with_method, with_seed


def found(records, view):
    return boards(records, needed(view))


def lines(records, view, *of):
    return list(csv.DictReader(io.StringIO(to_csv(across_csv(found(records, view), view, of)))))


@pytest.fixture(scope="module")
def two():
    """Runs of two methods with every metric family, the second worse."""
    good = full_record()
    worse = {name: dict(values) for name, values in good.metrics.items()}
    for side in ("", "full_spectrum/"):
        for name in ("near", "a"):
            worse[side + name]["auroc"] -= 0.125
    return [good, replace(with_method(good, "msp"), metrics=worse)]


@pytest.mark.parametrize("view", [*FAMILIES, "intervals"])
def test_a_view_across_methods_holds_what_it_holds_for_one_run(two, view):
    of_run = {
        ("full_spectrum" if "full spectrum" in table.title.split("·")[1] else "standard", row["set"], key, text)
        for table in run_tables(two[0], view)
        for row in csv.DictReader(io.StringIO(to_csv(table)))
        if row["role"] != "pooled"
        for key, text in row.items()
        # Groups have no interval but that of AUROC.
        if key not in ("set", "role") and text and (view != "intervals" or "auroc" in key)
    }
    of_methods = {
        (row["id_side"], row["of"], key, text)
        for row in lines(two, view, "near", "far", "sets")
        for key, text in row.items()
        if row["method"] == "knn"
    }
    assert len(of_run) > 10
    assert of_run - of_methods == set()


def test_id_only_numbers_and_prediction_sets_are_shown_of_either_side(two):
    for view, key in (("id", "aurc ↓"), ("prediction_sets", "lac_size@0.05 ↓")):
        values = {row["id_side"]: row[key] for row in lines(two, view) if row["method"] == "knn" and row[key]}
        name = key.partition(" ")[0]
        expected = {side: two[0].metrics[f"{prefix}id"][name] for side, prefix in SIDES}
        assert {side: float(text) for side, text in values.items()} == pytest.approx(expected)


SIDES = (("standard", ""), ("full_spectrum", "full_spectrum/"))


def test_rows_are_in_the_order_of_the_ranking_with_their_rank(two):
    (table, *_) = across(found(two, "ranking"), "ranking")
    assert [row[:2] for row in table.rows] == [(1, "knn"), (2, "msp")]


def test_the_overview_has_a_column_per_group_and_set():
    tables = across(found([make_record()], "overview"), "overview")
    assert [[c.title for c in t.columns] for t in tables] == [["rank", "method", "near", "a", "b", "far", "c"]] * 2
    assert [t.title.split(" · ")[1] for t in tables] == ["AUROC ↑", "FPR@95 ↓"]
    assert tables[0].rows[0][2] == Estimate(0.9, 0.89, 0.91)


def test_the_best_of_each_column_and_what_prints_the_same_is_bold_in_latex():
    good = make_record()
    tied, worse = with_method(good, "msp"), replace(with_method(good, "mls"), metrics=metrics(0.8, 0.97))
    outside = replace(with_method(good, "vim"), metrics=metrics(0.99, 0.99))
    outside = replace(outside, benchmark={**good.benchmark, "pristine": False})
    auroc, fpr = across(found([good, tied, worse, outside], "overview"), "overview")[:2]
    lines = [line.split(" & ") for line in to_latex(auroc).splitlines() if line.startswith(("1=", "3", "{[}a"))]
    assert [["textbf" in cell for cell in line[2:]] for line in lines] == [
        [True, True, True, False, False],
        [True, True, True, False, False],
        [False, False, False, True, True],
        [False] * 5,  # not ranked
    ]
    assert "textbf" in next(line for line in to_latex(fpr).splitlines() if line.startswith("1="))  # the lowest


def test_sets_and_pooled_groups_can_be_chosen(two):
    assert {row["of"] for row in lines(two, "ranking")} == {"near", "far"}
    assert {row["of"] for row in lines(two, "ranking", "sets")} == {"a", "c"}
    pooled = [row for row in lines(two, "ranking", "pooled_near") if row["method"] == "knn"]
    assert float(pooled[0]["aupr_in ↑"]) == two[0].metrics["near"]["pooled_aupr_in"]


def test_what_is_not_ranked_is_shown_with_its_reason():
    bad = make_record(benchmark={"name": "toy", "digest": "d", "pristine": False, "deviations": ["a: dropped"]})
    (table, *_) = across(found([bad], "ranking"), "ranking")
    assert table.rows[0][0] == "[a]"
    assert table.notes == ("[a] not ranked: benchmark not as defined: a: dropped",)


def test_rows_are_told_apart_by_no_more_than_is_needed():
    base = make_record()
    other = named(replace(base, backbone={**base.backbone, "training": "vos"}))
    first, *_ = across(found([base, with_method(base, "msp")], "ranking"), "ranking")
    second, *_ = across(found([base, other], "ranking"), "ranking")
    assert [c.title for c in first.columns][:3] == ["rank", "method", "sets"]
    assert first.title.endswith("cross_entropy · tiny")
    assert [c.title for c in second.columns][:3] == ["rank", "method", "training"]


def test_only_what_the_numbers_depend_on_is_stated(two):
    (table, *_) = across(found(two, "threshold"), "threshold")
    assert table.header == "AUTC: scaling benchmark, w = 0.5"


def test_an_interval_is_explained_only_where_one_is_shown():
    header = "95 % intervals: DeLong (AUROC)"
    runs = [replace(with_seed(make_record(), seed, 0.9), header=header) for seed in (0, 1)]
    one, several = (across(found(records, "overview"), "overview")[0].header for records in (runs[:1], runs))
    assert (one, several) == (header, "")


def test_an_unknown_view_or_set_offers_the_nearest():
    with pytest.raises(ConfigError, match=r"view — found 'rankin', .*; did you mean 'ranking'"):
        needed("rankin")
    record = replace(make_record(), metrics=metrics(0.9, 0.9))
    with pytest.raises(ConfigError, match="--of: 'fat' not found; did you mean 'far'"):
        across(found([record], "ranking"), "ranking", ["fat"])


def test_costs_are_sums_over_runs_beside_what_openoods_evaluator_reads():
    """The order of its `setup`, `hyperparam_search`, `eval_ood` and `eval_acc`, a call of the network at a time."""
    sizes = {"id_train": 500, "id_val": 10, "id_test": 90, "ood_val": 9}
    ood = {"near/a": 70, "near/b": 60, "far/c": 50}
    counts = {f"{role}/x": {"n": n, "expected": n} for role, n in sizes.items()}
    counts |= {name: {"n": n, "expected": n} for name, n in ood.items()}
    read = [sizes["id_train"]]
    for _ in range(3):
        read += [sizes["id_val"], sizes["ood_val"]]
    read += [sizes["id_test"], *ood.values(), sizes["id_test"]]
    seconds, peak = {"features": 20.0, "score": 1.5}, {"score": 700}
    knn = make_record(
        counts=counts,
        trials=[{"params": {"k": k}, "auroc": 0.9} for k in (1, 2, 3)],
        provenance={"utc": "2025-01-01T00:00:00+00:00", "seconds": seconds, "peak_mib": peak, "passes": 790},
    )
    later = {**knn.provenance, "seconds": {"score": 2.0}, "peak_mib": {"score": 800}, "passes": 0}
    msp = with_method(replace(knn, trials=[], provenance=later), "msp")
    (table,) = costs(boards([knn, with_seed(knn, 1, 0.9), msp]), {"knn": ["id_train"]})
    once, without = sum(read), 2 * 90 + 180
    assert [row[0] for row in table.rows] == ["knn", "msp", "all"]
    assert table.rows[0][1:] == (2, 43, 700, 1580, 2 * once)
    assert table.rows[1][1:] == (1, 2, 800, 0, without)
    assert table.rows[2][1:] == (3, 45, 800, 1580, 2 * once + without)
    often = replace(msp, provenance={**later, "passes": without + 5})
    assert costs(boards([often]), {})[0].rows[0][4:] == (without + 5, without + 5)
