"""What `evaluate` computes and prints of a file of scores, and what it refuses."""

import csv
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from openbench.__main__ import main
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.metrics import MetricOptions, evaluate
from openbench.results.scores.formats import read_sets
from openbench.results.scores.stored import ScoreStore

from .conftest import QUICK, numbers


def frame(seed=0, n=60):
    """ID test and validation with labels and probabilities, one validation and two test OOD sets, no ties."""
    rng = np.random.default_rng(seed)
    rows = []
    roles = [("id", "id_test", 0.0), ("id", "id_val", 0.0), ("v", "ood_val", 1.0)]
    roles += [("a", "near", 0.8), ("b", "far", 2.0)]
    for name, role, shift in roles:
        for score in rng.normal(shift, 1, n):
            id_side = role.startswith("id")
            p = rng.dirichlet([1, 1, 1]) if id_side else [np.nan] * 3
            label = int(rng.integers(3)) if id_side else -1
            rows.append([score, name, role, label, *p])
    return pd.DataFrame(rows, columns=["score", "set", "role", "label", "p_0", "p_1", "p_2"])


def saved(table, tmp_path, suffix):
    file = tmp_path / f"scores{suffix}"
    table.to_csv(file, index=False) if suffix == ".csv" else table.to_parquet(file)
    return file


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_auroc_of_a_file_is_scikit_learns(tmp_path, suffix):
    table = frame()
    values = numbers(saved(table, tmp_path, suffix))
    id_test = table.score[table.role == "id_test"]
    for name in ("a", "b"):
        ood = table.score[table.set == name]
        truth = np.r_[np.zeros(len(id_test)), np.ones(len(ood))]
        assert values[name]["auroc"] == pytest.approx(roc_auc_score(truth, np.r_[id_test, ood]), abs=1e-12)


def test_correctness_comes_from_predictions_or_the_column_correct_or_is_not_invented(tmp_path):
    table = frame()
    table["prediction"] = table.label
    assert numbers(saved(table, tmp_path, ".csv"))["id"]["accuracy"] == 1.0
    table = table.drop(columns="prediction").assign(correct=False)
    assert numbers(saved(table, tmp_path, ".csv"))["id"]["accuracy"] == 0.0
    values = numbers(saved(frame()[["score", "set", "role"]], tmp_path, ".csv"))
    assert "accuracy" not in values["id"]
    assert "auroc" in values["near"]


OPTIONS = [
    "--delta", "0.1", "--correction", "dkwm", "--prior", "0.4", "--tpr", "0.7", "--fpr", "0.3", "--precision", "0.6",
    "--recall", "0.5", "--autc-scaling", "pair", "--autc-weight", "0.3", "--fdr", "0.2", "--ccr-fprs", "0.1,0.25",
    "--alphas", "0.1,0.2", "--confidence", "0.9", "--cost-reject-id", "0.3", "--cost-accept-ood", "0.9",
    "--cost-reject-ood", "0.1",
]  # fmt: skip


def test_every_option_reaches_the_metrics(tmp_path):
    file = saved(frame(), tmp_path, ".csv")
    risks = {"prior": 0.4, "tpr": 0.7, "fpr": 0.3, "precision": 0.6, "recall": 0.5, "ccr_fprs": (0.1, 0.25)}
    costs = {"cost_reject_id": 0.3, "cost_accept_ood": 0.9, "cost_reject_ood": 0.1}
    rest = {"autc_scaling": "pair", "autc_weight": 0.3, "fdr": 0.2, "alphas": (0.1, 0.2), "confidence": 0.9}
    options = MetricOptions(replicates=0, delta=0.1, correction="dkwm", **risks, **costs, **rest)
    assert numbers(file, *OPTIONS) == evaluate(read_sets(file), options)
    assert "conformal_auroc" not in numbers(file, "--families", "ranking")["near"]
    selections = [any("bh_" in key for key in numbers(file, *fdr)["near"]) for fdr in ([], ["--fdr", "null"])]
    assert selections == [True, False]


def test_explain_prints_every_convention(tmp_path, capsys):
    numbers(saved(frame(), tmp_path, ".csv"), "--explain")
    assert "conformal: simes, δ = 0.05" in " ".join(capsys.readouterr().out.split())


def test_scores_that_rank_nothing_are_told_apart_from_the_tables(tmp_path, capsys):
    file = tmp_path / "equal.csv"
    file.write_text("score,set,role\n1,x,id_test\n1,x,id_test\n1,y,far\n")
    assert main(["evaluate", str(file), *QUICK, "--format", "csv"]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("WARNING: 'equal.csv' gives all 3 images of all sets the score 1: nothing is ranked")
    assert "WARNING" not in shown.out


def test_the_overview_shows_every_set_and_the_conventions_of_its_numbers(tmp_path, capsys):
    values = numbers(saved(frame(), tmp_path, ".csv"))
    out = capsys.readouterr().out
    assert f"{100 * values['a']['auroc']:.2f} [" in out
    assert f"{100 * values['far']['fpr95']:.2f}" in out
    assert f"scores.csv · ID accuracy {100 * values['id']['accuracy']:.2f} %" in out
    words = " ".join(out.split())
    assert "FPR@95: OOD positive" in words
    assert "δ" not in words


def test_all_views_together_show_every_number(tmp_path, capsys):
    values = numbers(saved(frame(), tmp_path, ".csv"), "--view", "all", "--format", "csv")
    shown = set(capsys.readouterr().out.replace("\n", ",").split(","))
    for name, group in values.items():
        missing = {
            key for key, value in group.items() if (value if isinstance(value, str) else repr(value)) not in shown
        }
        assert missing == set(), name


def test_sets_called_na_or_7_keep_their_names(tmp_path):
    table = frame().replace({"set": {"a": "NA", "b": "7"}})
    names = {s.name for s in read_sets(saved(table, tmp_path, ".csv"))}
    assert names == {"id", "v", "NA", "7"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["scores.txt"], "allowed: .csv, .parquet"),
        (["no_folder"], "'no_folder' not found"),
        (["none.csv"], "not found"),
        (["scores.csv", "--correction", "simms"], "did you mean 'simes'?"),
        (["scores.csv", "--delta", "little"], "'--delta': 'little' is not a valid float"),
    ],
)
def test_files_and_options_that_cannot_be_used_are_exit_2(tmp_path, capsys, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    saved(frame(), tmp_path, ".csv")
    (tmp_path / "scores.txt").write_text("x")
    assert main(["evaluate", *words]) == 2
    assert expected in capsys.readouterr().err


def test_each_row_of_several_tables_in_csv_says_which_table_it_is_of(tmp_path, capsys):
    file = saved(frame(), tmp_path, ".csv")
    assert main(["evaluate", str(file), "--view", "all", "--format", "csv"]) == 0
    tables = [list(csv.DictReader(io.StringIO(text))) for text in capsys.readouterr().out.split("\n\n")]
    titles = [{row["table"] for row in table} for table in tables]
    assert [len(title) for title in titles] == [1] * len(tables)
    assert len(set.union(*titles)) == len(tables) > 3


def printed(table, tmp_path, capsys, *options):
    assert main(["evaluate", str(saved(table, tmp_path, ".csv")), *options]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_thresholds_are_printed_with_their_values(tmp_path, capsys):
    table = frame()
    text = printed(table, tmp_path, capsys, "--view", "threshold")
    found = {name: float(value) for name, value in re.findall(r"(95tnr|val) = (\S+) \(", text)}
    ids, val, ood = (table.score[table.role == role].to_numpy() for role in ("id_test", "id_val", "ood_val"))
    assert found["95tnr"] == pytest.approx(min(t for t in ids if np.mean(ids <= t) >= 0.95), rel=1e-5)
    gaps = [abs(np.mean(val > t) - np.mean(ood <= t)) for t in (found["val"] + 1e-5, *val, *ood)]
    assert gaps[0] == min(gaps)
    assert "95tnr =" not in printed(table, tmp_path, capsys)  # in the overview
    without = printed(table[table.role != "ood_val"], tmp_path, capsys, "--view", "threshold")
    assert "val: needs the roles id_val and ood_val" in without


@pytest.mark.parametrize("view", ["ranking", "threshold"])
def test_tables_of_both_id_sides_are_told_apart(tmp_path, capsys, view):
    table = frame()
    shifted = table[table.role == "id_test"].assign(role="csid", set="s")
    text = printed(pd.concat([table, shifted]), tmp_path, capsys, "--view", view)
    assert f"{view} · scores.csv" in text
    assert f"{view} · full spectrum · scores.csv" in text


def run_scores():
    """Scores of a run with every role, float32 and with ties, as the engine hands them to the score store."""
    rng = np.random.default_rng(0)

    def split(name, role, n, shift):
        labels = rng.integers(0, 4, n) if role.is_id else np.full(n, -1)
        predictions = np.where(rng.random(n) < 0.2, rng.integers(0, 4, n), labels)
        scores = rng.normal(shift, 1, n).round(2).astype(np.float32)
        return SetScores.of_split(name, role, scores, labels.astype(np.int64), predictions.astype(np.int64))

    return [
        split("c", Role.ID_TEST, 80, 0.0),
        split("noisy", Role.CSID, 60, 0.4),
        split("a", Role.NEAR, 50, 0.8),
        split("b", Role.FAR, 40, 2.0),
        split("c", Role.ID_VAL, 70, 0.0),
        split("v", Role.OOD_VAL, 30, 1.0),
    ]


def test_the_scores_that_a_run_keeps_give_the_numbers_of_its_record(tmp_path):
    kept = run_scores()
    file = ScoreStore(tmp_path).write("0123456789abcdef", kept)
    out = tmp_path / "metrics.json"
    assert main(["evaluate", str(file), "--json", str(out)]) == 0
    sets = [SetScores(s.name, str(s.role), s.scores, s.correct, s.labels) for s in kept]
    record = evaluate(sets, MetricOptions())
    assert json.loads(out.read_text()) == record
    assert {"fpr@val", "oscr", "conformal_auroc", "fpr95_low", "bh_power@1e-1"} <= record["full_spectrum/a"].keys()


def saved_sides(tmp_path, ids, ood, **more):
    table = pd.DataFrame({"score": [*ids, *ood], "set": ["c"] * len(ids) + ["o"] * len(ood)})
    table["role"] = ["id_test"] * len(ids) + ["near"] * len(ood)
    for name, values in more.items():
        table[name] = values
    file = tmp_path / "scores.csv"
    table.to_csv(file, index=False)
    return file


def test_an_infeasible_operating_point_is_unable_in_file_and_table(tmp_path, capsys):
    file = saved_sides(tmp_path, [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.5], correct=[1, 0, 1, 1, "", "", ""])
    assert numbers(file, "--tpr", "0.5", "--fpr", "0.5")["o"]["risk@tpr0.5,fpr0.5"] == "unable"
    capsys.readouterr()
    assert main(["evaluate", str(file), *QUICK, "--view", "selective"]) == 0
    assert "unable" in capsys.readouterr().out


def test_a_share_of_accepted_ood_is_given_by_set(tmp_path, capsys):
    file = saved_sides(tmp_path, [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 3.5], correct=[1, 0, 1, 1, "", "", ""])
    # At 4 everything is accepted, one wrong of four; at 3 two of three OOD images, and one wrong of three.
    for rate, risk in (("1", 1 / 4), ("0.7", 1 / 3)):
        found = numbers(file, "--tpr", "0.75", "--fpr", f"o={rate}")["o"]["risk@tpr0.75,fpr_per_set"]
        assert found == pytest.approx(risk)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--delta", "0"], "metrics.delta — found 0.0, allowed: a number > 0 and < 1"),
        (["--confidence", "95"], "metrics.confidence — found 95.0, allowed: a number > 0 and < 1 (a fraction, not %)"),
        (["--replicates", "1"], "metrics.replicates — found 1, allowed: 0, or a whole number ≥ 2"),
        (["--families", "rankin"], "metrics.families — found ('rankin',), allowed: a list, each item ranking, "),
        (["--autc-scaling", "validation"], "AUTC scaling 'validation' has no scores"),
    ],
)
def test_options_that_fit_nothing_are_one_message_before_anything_is_computed(tmp_path, capsys, options, message):
    file = saved_sides(tmp_path, [0.0, 1.0, 2.0], [1.0, 3.0])
    assert main(["evaluate", str(file), *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


@pytest.mark.parametrize("rates", ["o=0.1,0.2", "o=0.1,o=0.2"])
def test_shares_of_which_it_is_not_clear_whose_they_are_are_refused(tmp_path, capsys, rates):
    assert main(["evaluate", str(saved_sides(tmp_path, [0.0, 1.0], [1.0, 3.0])), "--fpr", rates]) == 2
    assert f"'--fpr': found '{rates}' — allowed: a rate for all sets, or SET=RATE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ids", "ood", "message"), [([0.0], [], "at least one near or far set"), ([], [1.0], "exactly one id_test")]
)
def test_a_missing_side_is_named(tmp_path, capsys, ids, ood, message):
    assert main(["evaluate", str(saved_sides(tmp_path, ids, ood)), *QUICK]) == 2
    assert message in capsys.readouterr().err
