"""What `evaluate` says about thresholds: their values, and which ID side a table is about."""

import re

import numpy as np
import pytest

from openbench.__main__ import main

RNG = np.random.default_rng(0)
PARTS = {
    ("c", "id_test"): RNG.normal(0, 1, 90).round(2),
    ("s", "csid"): RNG.normal(0.5, 1, 40).round(2),
    ("c", "id_val"): RNG.normal(0, 1, 70).round(2),
    ("v", "ood_val"): RNG.normal(1, 1, 50).round(2),
    ("a", "near"): RNG.normal(1.5, 1, 60).round(2),
}


def printed(tmp_path, capsys, *options, without=()):
    rows = [f"{x},{name},{role}" for (name, role), scores in PARTS.items() if role not in without for x in scores]
    (tmp_path / "scores.csv").write_text("\n".join(["score,set,role", *rows]))
    assert main(["evaluate", str(tmp_path / "scores.csv"), *options]) == 0
    return re.sub(r"\s+", " ", capsys.readouterr().out)


def test_thresholds_are_printed_with_their_values(tmp_path, capsys):
    text = printed(tmp_path, capsys, "--view", "threshold")
    found = {name: float(value) for name, value in re.findall(r"(95tnr|val) = (\S+) \(", text)}
    ids = np.sort(PARTS["c", "id_test"])
    accepted = [np.mean(ids <= t) for t in ids]
    assert found["95tnr"] == min(t for t, share in zip(ids, accepted, strict=True) if share >= 0.95)
    ids, ood = PARTS["c", "id_val"], PARTS["v", "ood_val"]
    gaps = {t: abs(np.mean(ids > t) - np.mean(ood <= t)) for t in np.concatenate([ids, ood])}
    assert gaps[found["val"]] == pytest.approx(min(gaps.values()))
    assert text.count("95tnr =") == 1


def test_what_the_threshold_of_validation_needs_is_named(tmp_path, capsys):
    text = printed(tmp_path, capsys, "--view", "threshold", without=("ood_val",))
    assert "val: needs the roles id_val and ood_val" in text
    assert "val =" not in text
    assert "above which a score is flagged" not in printed(tmp_path, capsys)  # in the overview


@pytest.mark.parametrize("view", ["ranking", "threshold"])
def test_tables_of_both_id_sides_are_told_apart(tmp_path, capsys, view):
    text = printed(tmp_path, capsys, "--view", view)
    assert f"{view} · scores.csv" in text
    assert f"{view} · full spectrum · scores.csv" in text
