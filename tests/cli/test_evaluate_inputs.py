"""What `evaluate` makes of the files that runs keep, and of scores and options for which a number is undefined."""

import json

import numpy as np
import pandas as pd
import pytest

from openbench.__main__ import main
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.metrics import MetricOptions, evaluate
from openbench.results.scores.stored import ScoreStore

from .conftest import QUICK, numbers


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


def saved(tmp_path, ids, ood, **more):
    table = pd.DataFrame({"score": [*ids, *ood], "set": ["c"] * len(ids) + ["o"] * len(ood)})
    table["role"] = ["id_test"] * len(ids) + ["near"] * len(ood)
    for name, values in more.items():
        table[name] = values
    file = tmp_path / "scores.csv"
    table.to_csv(file, index=False)
    return file


def test_all_scores_equal_leave_areas_along_the_threshold_undefined(tmp_path):
    found = numbers(saved(tmp_path, [5.0] * 20, [5.0] * 10))["o"]
    assert found["auroc"] == 0.5
    assert (found["autc"], found["aufpr"], found["aufnr"]) == ("unable",) * 3


def test_an_infeasible_operating_point_is_unable_in_file_and_table(tmp_path, capsys):
    file = saved(tmp_path, [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.5], correct=[1, 0, 1, 1, "", "", ""])
    assert numbers(file, "--tpr", "0.5", "--fpr", "0.5")["o"]["risk@tpr0.5,fpr0.5"] == "unable"
    capsys.readouterr()
    assert main(["evaluate", str(file), *QUICK, "--view", "selective"]) == 0
    assert "unable" in capsys.readouterr().out


def test_a_share_of_accepted_ood_is_given_by_set(tmp_path, capsys):
    file = saved(tmp_path, [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 3.5], correct=[1, 0, 1, 1, "", "", ""])
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
    file = saved(tmp_path, [0.0, 1.0, 2.0], [1.0, 3.0])
    assert main(["evaluate", str(file), *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""


@pytest.mark.parametrize("rates", ["o=0.1,0.2", "o=0.1,o=0.2"])
def test_shares_of_which_it_is_not_clear_whose_they_are_are_refused(tmp_path, capsys, rates):
    assert main(["evaluate", str(saved(tmp_path, [0.0, 1.0], [1.0, 3.0])), "--fpr", rates]) == 2
    assert f"'--fpr': found '{rates}' — allowed: a rate for all sets, or SET=RATE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ids", "ood", "message"), [([0.0], [], "at least one near or far set"), ([], [1.0], "exactly one id_test")]
)
def test_a_missing_side_is_named(tmp_path, capsys, ids, ood, message):
    assert main(["evaluate", str(saved(tmp_path, ids, ood)), *QUICK]) == 2
    assert message in capsys.readouterr().err
