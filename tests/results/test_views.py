import csv
import io
import re
from dataclasses import replace

import pytest

from openbench.results.records.settings import hyper_parameters
from openbench.results.tables.render import Estimate, to_console, to_csv
from openbench.results.tables.views import VIEWS, family_of, kind_of, metric_column, run_tables

from .records import full_record, make_record


@pytest.fixture(scope="module")
def record():
    return full_record()


def shown(record) -> dict[tuple[str, str], set[str]]:
    """What the CSVs of all views hold: (set or side, column title without arrow) → texts."""
    found: dict[tuple[str, str], set[str]] = {}
    for view in VIEWS:
        for table in run_tables(record, view):
            side = "full_spectrum/" if "full spectrum" in table.title.split("·")[1] else ""
            for row in csv.DictReader(io.StringIO(to_csv(table))):
                for title, text in row.items():
                    name = f"{side}{(row.get('set') or row.get('side') or '').strip()}"
                    key = re.sub(r" [↑↓]", "", title)
                    if row.get("role") == "pooled":
                        key = f"pooled_{key}"
                    found.setdefault((name, key.replace(" ", "_")), set()).add(text)
    return found


def test_every_number_of_a_record_is_in_some_view(record):
    table = shown(record)
    sides = {"id": "standard", "full_spectrum/id": "full spectrum"}
    prediction_sets = re.compile(r"\w+_(coverage|size|singletons|worst_class)(_mean|_std)?@.+")
    missing = [
        (name, key)
        for name, values in record.metrics.items()
        for key, value in values.items()
        if not (name in sides and prediction_sets.fullmatch(key))
        and str(value) not in table.get((sides.get(name, name), key), set())
    ]
    assert missing == []


def test_every_prediction_set_number_is_shown(record):
    rows = [r for t in run_tables(record, "prediction_sets") for r in csv.DictReader(io.StringIO(to_csv(t)))]
    titles = {"coverage": "coverage", "size": "size ↓", "singletons": "singletons ↑", "worst_class": "worst class ↑"}
    titles |= {"coverage_mean": "coverage over splits", "coverage_std": "coverage over splits std"}
    titles |= {"size_mean": "size over splits ↓", "size_std": "size over splits ↓ std"}
    parts = re.compile(r"(\w+?)_((?:coverage|size)(?:_mean|_std)?|singletons|worst_class)@(.+)")
    expected = {
        (side, *match.groups()): repr(value)
        for prefix, side in (("", "standard"), ("full_spectrum/", "full spectrum"))
        for key, value in record.metrics[f"{prefix}id"].items()
        if (match := parts.fullmatch(key))
    }
    found = {(r["side"], r["sets"], q, r["α"]): r[title] for r in rows for q, title in titles.items()}
    # Seven kinds at four levels: four values on either side, and four over splits on the standard one.
    assert len(expected) == 7 * 4 * (4 + 4 + 4)
    assert {place: text for place, text in found.items() if text} == expected


def test_the_view_of_prediction_sets_says_what_its_names_mean(record):
    (table,) = run_tables(record, "prediction_sets")
    notes = " ".join(table.notes)
    assert "score_…: made of softmax(−s)" in notes
    assert "mean ± deviation over 10 random splits" in notes
    row = next(row for row in table.texts() if row[0] == "score_aps" and row[1] == "standard")
    assert re.fullmatch(r"[\d.]+ ± [\d.e-]+", row[-1])


def test_a_metric_that_nobody_has_heard_of_is_shown_too():
    record = make_record()
    record = replace(record, metrics={**record.metrics, "a": {"auroc": 0.5, "brand_new": 0.25}})
    assert "25.00" in to_console(run_tables(record, "other")[0])


def test_every_view_is_a_table_for_each_id_side_that_names_its_run_and_fits_a_terminal(record):
    accuracy = f"ID accuracy {100 * record.metrics['id']['accuracy']:.2f} %"
    for view in VIEWS:
        tables = run_tables(record, view)
        sides = ["full spectrum" in table.title.split("·")[1] for table in tables]
        assert sides in ([], [False], [False, True])
        for table in tables:
            assert max(map(len, to_console(table, 120).split("\n"))) <= 120
            assert accuracy in table.title
            assert "knn(k=50)" in table.title


def test_the_threshold_view_has_the_layout_of_the_autc_paper(record):
    table, wide = run_tables(record, "threshold")
    assert [column.title.split(" ")[0] for column in table.columns] == [
        "set", "role", "AUROC", "AUTC", "AUFPR", "AUFNR",
        "FPR@test", "FNR@test", "FPR@95TNR", "FNR@95TNR", "FPR@val", "FNR@val",
    ]  # fmt: skip
    assert table.rows[0][2] == record.metrics["near"]["auroc"]
    assert wide.rows[0][2] == record.metrics["full_spectrum/near"]["auroc"]
    assert run_tables(make_record(), "threshold") == []  # AUROC alone


def test_the_overview_shows_groups_before_their_sets_with_interval_and_both_sides(record):
    table = run_tables(record)[0]
    assert [row[0].strip() for row in table.rows] == ["near", "a", "far", "c"]
    titles = [column.title for column in table.columns]
    assert [row[titles.index("role")] for row in table.rows] == ["mean", "near", "mean", "far"]
    for prefix, side in (("", ""), ("FS ", "full_spectrum/")):
        values = record.metrics[f"{side}near"]
        for title, key in (("AUROC ↑ [interval]", "auroc"), ("FPR@95 ↓ [interval]", "fpr95")):
            cell = table.rows[0][titles.index(f"{prefix}{title}")]
            assert cell == Estimate(values[key], values[f"{key}_low"], values[f"{key}_high"])
    bare = {name: dict.fromkeys(("auroc", "fpr95", "fpr95_low"), 0.9) for name in record.metrics}
    titles = [column.title for column in run_tables(replace(record, metrics=bare))[0].columns]
    assert titles[3:5] == ["AUROC ↑", "FPR@95 ↓ [interval]"]


def clauses(view, record):
    return [table.header for table in run_tables(record, view) if table.header]


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (
            "overview",
            "FPR@95: OOD positive; AUPR by trapezoid, AP step-wise · 95 % intervals: DeLong (AUROC), stratified "
            "bootstrap × 20, seed 0 (fpr95, fpr95_id_positive)",
        ),
        ("threshold", "AUTC: scaling benchmark, w = 0.5"),
        ("selective", "risk: TPR ≥ 0.8, FPR ≤ 0.2; precision ≥ 0.9, recall ≥ 0.8, prior π = 0.25; costs 0.5/1/0"),
        ("conformal", "FPR@95: OOD positive · conformal: simes, δ = 0.05, n = n_id scores of the ID side"),
        ("prediction_sets", "prediction sets: lac, aps, raps, score at α = 0.005, 0.01, 0.05, 0.1"),
    ],
)
def test_a_view_states_once_the_conventions_that_its_numbers_depend_on(record, view, said):
    assert clauses(view, record) == [said]


def test_chosen_hyper_parameters_are_shown():
    record = make_record(
        tuned={"k": 10}, trials=[{"params": {"k": 10}, "auroc": 0.8}, {"params": {"k": 1}, "infeasible": "no"}]
    )
    assert "tuned on validation: k=10" in run_tables(record)[0].title
    oracle = replace(record, config={"seed": 0, "tune": {"strategy": "oracle"}})
    assert "tuned on test data (oracle): k=10" in run_tables(oracle)[0].title
    (trials,) = run_tables(record, "trials")
    assert [c.title for c in trials.columns] == ["hyper-parameters", "validation AUROC ↑", "chosen", "infeasible"]
    assert trials.texts() == [["k=10", "80.00", "yes", ""], ["k=1", "unable", "", "no"]]
    assert trials.notes[0] == "Chosen on validation: largest AUROC."


def test_trials_of_a_double_score_show_the_risk_that_decided():
    trials = [
        {"params": {"mu": 0.0}, "auroc": 0.9, "risk": 0.02, "threshold": -0.5},
        {"params": {"mu": 0.1}, "auroc": 0.8, "risk": 0.0125, "threshold": 0.25},
        {"params": {"mu": 9.0}, "infeasible": "no threshold"},
    ]
    (table,) = run_tables(make_record(tuned={"mu": 0.1}, trials=trials), "trials")
    titles = ["hyper-parameters", "validation risk ↓", "λ", "validation AUROC ↑", "chosen", "infeasible"]
    assert [c.title for c in table.columns] == titles
    assert table.texts() == [
        ["mu=0", "2.000", "-0.5", "90.00", "", ""],
        ["mu=0.1", "1.250", "0.25", "80.00", "yes", ""],
        ["mu=9", "unable", "unable", "unable", "", "no threshold"],
    ]
    assert table.notes[0] == "Chosen on validation: least selective risk, of equal ones the largest AUROC."


def test_trials_per_set_name_the_set_and_mark_each_sets_choice():
    trials = [{"set": s, "params": {"k": k}, "auroc": k / 10} for s in ("a", "c") for k in (5, 9)]
    config = {"seed": 0, "tune": {"strategy": "oracle_per_set"}}
    (table,) = run_tables(make_record(tuned={"k": {"a": 5, "c": 9}}, trials=trials, config=config), "trials")
    assert [c.title for c in table.columns] == ["hyper-parameters", "set", "test AUROC ↑", "chosen"]
    marked = [(row[1], row[0]) for row in table.rows if row[3] == "yes"]
    assert marked == [("a", "k=5"), ("c", "k=9")]
    assert table.notes[0].startswith("Chosen on each OOD test set (oracle per set)")


def test_a_benchmark_that_is_not_pristine_lists_its_deviations_under_every_table():
    record = make_record(
        benchmark={"name": "toy", "pristine": False, "deviations": ["tin: dropped", "a (near): 3 of 5"]}
    )
    for view in ("overview", "ranking", "counts"):
        for table in run_tables(record, view):
            assert "tin: dropped; a (near): 3 of 5" in table.notes[0]
    assert run_tables(make_record())[0].notes == ()


def test_the_selective_view_shows_both_oscr_and_says_which_is_which(record):
    tables = run_tables(record, "selective")
    titles = [c.title for t in tables for c in t.columns]
    assert {"OSCR ↑", "OSCR selective ↑"} <= set(titles)
    notes = " ".join(note for t in tables for note in t.notes)
    assert re.search(r"OSCR: .*all ID.*Dhamija", notes)
    assert re.search(r"OSCR selective: .*accepted ID.*Franc", notes)
    assert not any("Franc" in note for t in run_tables(record, "ranking") for note in t.notes)


def test_operating_points_are_in_numeric_order(record):
    titles = [
        c.title.split(" ")[0] for t in run_tables(record, "selective") for c in t.columns if c.title.startswith("CCR")
    ]
    rates = [float(title.removeprefix("CCR@FPR")) for title in titles]
    assert rates[: len(rates) // 2] == [1e-4, 1e-3, 1e-2, 1e-1]


@pytest.mark.parametrize(
    ("key", "title"),
    [
        ("auroc", "AUROC ↑"),
        ("fpr95_id_positive", "FPR@95 ID positive ↓"),
        ("aupr_in", "AUPR-in ↑"),
        ("n_ood", "OOD images"),
        ("risk@tpr0.8,fpr0.2", "risk@TPR0.8,FPR0.2 ↓"),
        ("lac_size@0.05", "LAC size@0.05 ↓"),
    ],
)
def test_headings_spell_metrics_as_papers_do_and_csvs_keep_the_keys(key, title):
    column = metric_column(key)
    assert column.title == title
    assert column.name.split(" ")[0] == key


@pytest.mark.parametrize(
    ("key", "family", "kind"),
    [
        ("auroc", "ranking", "percent"),
        ("f1_threshold", "ranking", "number"),
        ("n_ood", "ranking", "count"),
        ("fpr@95tnr", "threshold", "percent"),
        ("risk@tpr0.8,fpr0.2", "selective", "percent"),
        ("cost", "selective", "number"),
        ("bh_power@1e-1", "conformal", "percent"),
        ("lac_size@0.1", "other", "number"),
    ],
)
def test_a_key_belongs_to_one_view_and_one_way_of_writing(key, family, kind):
    assert (family_of(key), kind_of(key)) == (family, kind)


def test_hyper_parameters_are_short_and_in_a_fixed_order():
    params = {"p": 1e-3, "k": 50, "layers": ["a", 0.5], "on": True}
    assert hyper_parameters(params) == "k=50, layers=[a, 0.5], on=True, p=0.001"
    assert hyper_parameters({"mu": {"tin": 0.1, "mnist": 2.0}}) == "mu={tin: 0.1, mnist: 2}"


def test_accuracy_over_validation_and_test_is_that_of_the_pooled_images():
    record = make_record()
    counts = {"id_val/x": {"n": 1000, "expected": 1000}, "id_test/x": {"n": 9000, "expected": 9000}}
    values = {**record.metrics["id"], "accuracy": 8261 / 9000, "id_val_accuracy": 912 / 1000}
    record = replace(record, counts=counts, metrics={**record.metrics, "id": values})
    assert "91.73 % (with validation, n = 10000)" in run_tables(record)[0].title
