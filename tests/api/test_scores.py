"""Scores from elsewhere, from Python: the same numbers as the command line, and errors in plain words."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import openbench as ob
from openbench.__main__ import main
from openbench.errors import ConfigError, DataError, MetricError

QUICK = {"replicates": 0, "correction": "simes"}


def drawn(seed=0, n=80, c=3):
    rng = np.random.default_rng(seed)
    sets = {("id_test", "id_test"): 0.0, ("id_val", "id_val"): 0.0, ("blurred", "csid"): 0.2, ("v", "ood_val"): 1.0}
    sets |= {("a", "near"): 0.8, ("b", "far"): 2.0, ("d", "far"): 1.5}
    # Float32 with few digits: ties on both sides.
    return {
        (name, role): {
            "scores": rng.normal(shift, 1, n).round(2).astype(np.float32),
            "labels": rng.integers(c, size=n),
            "probabilities": rng.dirichlet([1] * c, n),
        }
        for (name, role), shift in sets.items()
    }


def as_file(sets, path):
    """The same scores as a file of rows."""
    parts = []
    for (name, role), columns in sets.items():
        part = pd.DataFrame({"score": columns["scores"], "set": name, "role": role})
        if role in ("id_test", "id_val", "csid"):
            part["label"] = columns["labels"]
            part[[f"p_{k}" for k in range(3)]] = columns["probabilities"]
        parts.append(part)
    pd.concat(parts).to_parquet(path)


def test_numbers_are_those_of_the_command_line_to_the_bit(tmp_path):
    sets = drawn()
    as_file(sets, tmp_path / "scores.parquet")
    out = tmp_path / "metrics.json"
    options = ["--replicates", "20", "--correction", "simes"]
    assert main(["evaluate", str(tmp_path / "scores.parquet"), "--json", str(out), *options]) == 0
    result = ob.evaluate_scores(
        sets["id_test", "id_test"],
        id_val=sets["id_val", "id_val"],
        csid={"blurred": sets["blurred", "csid"]},
        ood_val=sets["v", "ood_val"]["scores"],
        near={"a": sets["a", "near"]["scores"]},
        far={name: sets[name, "far"]["scores"] for name in ("b", "d")},
        metrics={"replicates": 20, "correction": "simes"},
    )
    assert result.metrics == json.loads(out.read_text())
    assert "full_spectrum/near" in result.metrics
    assert result.record.counts["far/d"] == {"n": 80, "expected": 80}


def test_arrays_of_other_libraries_are_the_same_scores():
    ids, ood = np.array([0.5, 1.0, 2.0]), np.array([1.5, 3.0])
    expected = ob.evaluate_scores(ids, {"x": ood}, id_labels=[0, 1, 1], predictions=[0, 1, 0], metrics=QUICK)
    assert expected.metrics["x"]["auroc"] == pytest.approx(5 / 6)  # five of six pairs in order
    assert expected.metrics["id"]["accuracy"] == pytest.approx(2 / 3)
    for kind in (torch.tensor, list, pd.Series):
        found = ob.evaluate_scores(
            kind(ids), {"x": kind(ood)}, id_labels=kind([0, 1, 1]), predictions=kind([0, 1, 0]), metrics=QUICK
        )
        assert found.metrics == expected.metrics
        assert found.record.run_id == expected.record.run_id
    unknown = ob.evaluate_scores(ids, {"x": ood}, id_labels=[0, 1, 1], metrics=QUICK)
    assert "accuracy" not in unknown.metrics["id"]  # nobody said what was predicted
    learning = torch.tensor(ood, requires_grad=True)
    assert ob.evaluate_scores(ids, {"x": learning}, metrics=QUICK).metrics["x"]["auroc"] == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("ids", "ood", "said"),
    [
        ([np.inf, np.inf], [np.inf], "WARNING: 'scores' gives all 3 images of all sets the score inf"),
        ([0.0, np.inf], [1.0], "WARNING: 'scores': 1 of 2 scores of id_test id_test are infinite"),
    ],
)
def test_scores_that_rank_nothing_or_little_are_told(ids, ood, said):
    (warning,) = ob.evaluate_scores(ids, {"x": ood}, metrics=QUICK).warnings
    assert warning.startswith(said)
    assert ob.evaluate_scores([0.0, 1.0], {"x": [1.0]}, metrics=QUICK).warnings == ()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"ood": None}, MetricError, "at least one near or far set"),
        ({"ood": [1.0]}, DataError, r"ood is a list — pass sets by name: ood=\{'svhn': scores\}"),
        ({"ood": {"x": [[1.0]]}}, MetricError, "scores of ood 'x' must be one-dimensional"),
        ({"ood": {"x": [np.nan]}}, MetricError, "scores of ood 'x' contains NaN"),
        ({"ood": {"x": ["high"]}}, DataError, "scores of ood 'x' is a list of <U4 — allowed: an array of numbers"),
        ({"ood": {"x": np.ma.array([1.0, 9.0], mask=[0, 1])}}, DataError, "scores of ood 'x' has masked numbers"),
        ({"ood": {"b": [1.0], "b ": [1.0]}}, MetricError, "look alike"),
        ({"far": {"x": [1.0]}, "near": {"x": [2.0]}}, MetricError, "'x' is used twice"),
        ({"id_labels": [0]}, DataError, r"labels of id_test: int64 of shape \(1,\), 0 to 0 — allowed: \(2,\)"),
        ({"id_labels": [0, 2], "probabilities": [[1, 0]] * 2}, DataError, "0 to 2 — allowed: .* 0 to 1"),
        ({"probabilities": [[3.0, -1.0]] * 2}, DataError, r"pass softmax\(logits\)"),
        ({"id": {"score": [0.0]}}, ConfigError, "id_test has no key 'score'; did you mean 'scores'"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(given, error, words):
    arguments = {"id": [0.0, 1.0], "ood": {"x": [1.0]}, "metrics": QUICK, **given}
    if "far" in given:
        arguments.pop("ood")
    with pytest.raises(error, match=words):
        ob.evaluate_scores(**arguments)


def test_scores_and_metrics_need_no_torch():
    program = (
        "import sys, openbench as ob\n"
        "r = ob.evaluate_scores([0., 1.], {'x': [2.]}, metrics={'replicates': 0, 'correction': 'simes'})\n"
        "print(r.metrics['x']['auroc'], ob.metrics.auroc([0.], [1.]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1.0", "1.0", "False"]
