"""Methods compared as reject options, against counting at every threshold and scikit-learn."""

import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from openbench.__main__ import main
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import CacheError, RecordError
from openbench.metrics.selective.double_score import DEFAULT_MUS
from openbench.metrics.selective.risk import SelectiveCurve, oscr_selective
from openbench.results.comparisons.rejection import contenders, rejection_tables
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore, per_set_name

from .records import make_record, with_method

N, SETS = 60, {"a": 40, "b": 50, "c": 45}
LABELS = np.arange(N) % 3
PREDICTIONS = np.where(np.arange(N) % 5 == 0, (LABELS + 1) % 3, LABELS)


def split(name, role, scores, predictions=None):
    n = len(scores)
    labels = LABELS[:n] if role.is_id else np.full(n, -1)
    predictions = labels if predictions is None else predictions
    return SetScores.of_split(name, role, np.asarray(scores, np.float32), labels, predictions)


def splits(seed, sets=SETS):
    """Scores of one run: wrong predictions and OOD inputs lie higher, by how much depends on the seed."""
    rng = np.random.default_rng(seed)
    wrong = LABELS != PREDICTIONS
    parts = [split("toy", Role.ID_TEST, rng.normal(1.5 * wrong, 1), PREDICTIONS)]
    parts += [split("toy", Role.ID_VAL, rng.normal(0.2, 2, 30)), split("v", Role.OOD_VAL, rng.normal(1, 1, 20))]
    for index, (name, n) in enumerate(sets.items()):
        parts.append(split(name, Role.FAR if name == "c" else Role.NEAR, rng.normal(0.7 + 0.4 * index, 1, n)))
    return parts


@pytest.fixture
def store(tmp_path):
    return ScoreStore(tmp_path / "cache" / "scores")


@pytest.fixture
def runs(store):
    """Records of three methods with kept scores, and these scores by method."""
    records, kept = [], {}
    for seed, method in enumerate(("knn", "msp", "vim")):
        record = with_method(make_record(), method)
        kept[method] = splits(seed)
        store.write(record.run_id, kept[method])
        records.append(record)
    return records, kept


def oracle(record, strategy, values):
    config = {**record.config, "tune": {"strategy": strategy}}
    return replace(record, run_id="e" * 16, config=config, tuned={"k": values})


def sides(parts, name):
    """Scores of ID test, whether its predictions are wrong, and scores of an OOD set."""
    by_name = {(s.role, s.name): s for s in parts}
    (ood,) = (s for s in parts if s.name == name)
    return by_name[Role.ID_TEST, "toy"].scores.astype(float), LABELS != PREDICTIONS, ood.scores.astype(float)


def accepted_shares(*sides):
    """The share of each side up to every threshold."""
    return [(scores <= np.concatenate(sides)[:, None]).mean(axis=1) for scores in sides]


def fpr_at_tpr(inside, outside, tpr):
    accepted, passed = accepted_shares(inside, outside)
    return passed[accepted >= tpr].min()


def least_risk(inside, wrong, outside, tpr, fpr):
    accepted, passed = accepted_shares(inside, outside)
    found = [wrong[inside <= t].mean() for t in np.r_[inside, outside][(accepted >= tpr) & (passed <= fpr)]]
    return min(found, default="unable")


def the(found):
    """The rows of the only version of the benchmark."""
    ((_, rows),) = found.items()
    return rows


def compared(rows, tpr=0.8, doubles=(), figures=()):
    """The table of each OOD set, and its rows by the titles of their columns."""
    tables = rejection_tables("toy", rows, tpr, doubles, dict(figures))
    return [(t, [dict(zip((c.title for c in t.columns), row, strict=True)) for row in t.rows]) for t in tables]


def test_every_method_is_judged_at_the_largest_fpr_among_them(runs, store):
    records, kept = runs
    found = compared(the(contenders(records, store, "toy")))
    assert len(found) == len(SETS)
    for name, (table, rows) in zip(SETS, found, strict=True):
        by_method = {method: sides(parts, name) for method, parts in kept.items()}
        shares = {m: fpr_at_tpr(inside, outside, 0.8) for m, (inside, _, outside) in by_method.items()}
        bound = max(shares.values())
        decided = f"ρ_max = {100 * bound:.2f} % (by {max(shares, key=shares.get)}) · cross_entropy · tiny · seed 0"
        assert table.title == f"toy · against {name} · TPR ≥ 0.8 · FPR ≤ {decided}"
        for row in rows:
            inside, wrong, outside = by_method[row["method"]]
            truth = np.repeat([0, 1], [len(inside), len(outside)])
            assert row["FPR ↓"] == shares[row["method"]]
            assert row["risk ↓"] == least_risk(inside, wrong, outside, 0.8, bound)
            assert row["AUROC ↑"] == pytest.approx(roc_auc_score(truth, np.r_[inside, outside]), abs=1e-12)
            assert row["OSCR ↑"] == oscr_selective(SelectiveCurve.of(inside, wrong.astype(float), outside))
            at = np.unique(np.r_[inside, outside])[:, None]
            right, accepted = (inside[~wrong] <= at).sum(axis=1), (np.r_[inside, outside] <= at).sum(axis=1)
            assert row["DS-F1 ↑"] == pytest.approx((2 * right / (accepted + inside.size)).max(), abs=1e-12)


def test_the_order_is_that_in_which_methods_are_named(runs, store):
    ((_, rows), *_) = compared(the(contenders(runs[0], store, "toy", ["vim", "msp"])))
    assert [row["method"] for row in rows] == ["vim", "msp"]


@pytest.mark.parametrize("strategy", ["oracle", "oracle_per_set"])
def test_what_was_chosen_on_test_data_has_no_say_in_the_bound(runs, store, strategy):
    records, _ = runs
    bad = oracle(records[0], strategy, {"a": 1, "b": 1, "c": 1})
    terrible = [replace(s, scores=-s.scores) if s.role in (Role.NEAR, Role.FAR) else s for s in splits(0)]
    store.write(bad.run_id, terrible)
    for name in SETS:
        store.write(per_set_name(bad.run_id, name), terrible)
    alone, both, only = (compared(the(contenders(r, store, "toy"))) for r in (records, [*records, bad], [bad]))
    bounds = [[re.search(r"ρ_max = .*?\)", table.title)[0] for table, _ in found] for found in (alone, both, only)]
    assert bounds[0] == bounds[1]
    assert all("by knn" in bound for bound in bounds[2])
    assert [sum("†" in row["method"] for row in rows) for _, rows in both] == [1, 1, 1]


def test_a_run_with_a_choice_per_set_has_scores_of_its_own_for_each(runs, store):
    record = oracle(runs[0][0], "oracle_per_set", {"a": 1, "b": 2, "c": 3})
    kept = {name: splits(seed, {name: n}) for seed, (name, n) in enumerate(SETS.items(), start=7)}
    for name, parts in kept.items():
        store.write(per_set_name(record.run_id, name), parts)
    for name, (_, rows) in zip(SETS, compared(the(contenders([record], store, "toy"))), strict=True):
        inside, _, outside = sides(kept[name], name)
        assert rows[0]["FPR ↓"] == fpr_at_tpr(inside, outside, 0.8)


def test_a_double_score_has_the_best_weight_of_every_point(runs, store):
    records, kept = runs
    found = compared(the(contenders(records, store, "toy")), doubles=[("msp", "knn")])
    for name, (_, (*rows, double)) in zip(SETS, found, strict=True):
        assert double["method"] == "msp+knn †"
        (r, wrong, r_ood), (g, _, g_ood) = (sides(kept[m], name) for m in ("msp", "knn"))
        r_val, g_val = (next(s.scores for s in kept[m] if s.role == Role.ID_VAL).astype(float) for m in ("msp", "knn"))
        combined = [
            tuple(
                (x - r_val.mean()) / r_val.std() + mu * (y - g_val.mean()) / g_val.std()
                for x, y in ((r, g), (r_ood, g_ood))
            )
            for mu in DEFAULT_MUS
        ]
        risks = [least_risk(a, wrong, b, 0.8, max(row["FPR ↓"] for row in rows)) for a, b in combined]
        assert double["risk ↓"] == min(risk for risk in risks if risk != "unable")
        assert double["FPR ↓"] == min(fpr_at_tpr(a, b, 0.8) for a, b in combined)
        areas = [(a[:, None] < b).mean() + (a[:, None] == b).mean() / 2 for a, b in combined]
        assert double["AUROC ↑"] >= max(areas)


def test_a_double_score_needs_both_methods_on_one_network(runs, store):
    records, _ = runs
    with pytest.raises(RecordError, match=r"msp\+odin: no run of odin \(compared: knn, msp, vim\)"):
        compared(the(contenders(records, store, "toy")), doubles=[("msp", "odin")])
    other = replace(records[0], backbone={**records[0].backbone, "digest": "other"})
    with pytest.raises(RecordError, match=r"msp\+knn: no runs of the two on the same network"):
        compared(the(contenders([other, *records[1:]], store, "toy")), doubles=[("msp", "knn")])


def test_what_is_missing_is_named(runs, store):
    with pytest.raises(RecordError, match=r"no record of benchmark 'tow'; did you mean 'toy'\?, found toy"):
        contenders(runs[0], store, "tow")
    with pytest.raises(RecordError, match="no record of method 'vin'; did you mean 'vim'"):
        contenders(runs[0], store, "toy", ["vin"])
    said = []
    with pytest.raises(CacheError, match=r"scores of run .* not found"):
        contenders(runs[0], ScoreStore(store.root / "empty"), "toy", (), said.append)
    assert said == []  # one error, not one for each run


def test_a_benchmark_without_a_classifier_has_no_selective_risk(runs, store):
    metrics = {**runs[0][0].metrics, "id": {"n_id": 60}}
    with pytest.raises(RecordError, match="has one class, so no prediction can be wrong"):
        contenders([replace(runs[0][0], metrics=metrics)], store, "toy")


def test_versions_of_a_benchmark_are_kept_apart(runs, store):
    records, _ = runs
    smaller = replace(records[0], run_id="f" * 16, benchmark={**records[0].benchmark, "digest": "bbbb"})
    store.write(smaller.run_id, splits(9))
    found = contenders([*records, smaller], store, "toy")
    assert {digest: len(rows) for digest, rows in found.items()} == {"aaaa": 3, "bbbb": 1}


KEYS = ("min_tpr", "max_fpr", "risk", "auroc", "oscr")
FIGURES = {
    ("toy", "a", "msp"): dict(zip(KEYS, (0.8, 0.21, 0.00676, 0.871, 0.977), strict=True)),
    ("toy", "a", "knn_msp"): dict(zip(KEYS, (0.8, 0.21, 0.00652, 0.896, 0.976), strict=True)),
}


def test_the_papers_figures_stand_beside_ours(runs, store):
    benchmark = {**runs[0][0].benchmark, "deviations": ["tin: dropped"]}
    rows = the(contenders([replace(record, benchmark=benchmark) for record in runs[0]], store, "toy"))
    (first, _), (second, _), (last, _) = compared(rows, 0.8, [("msp", "knn")], FIGURES)
    titles = [c.title for c in first.columns]
    by_method = {row[0]: row for row in first.rows}
    # Risks are small: they have a digit more than the rest.
    assert [c.decimals for c in first.columns if c.title == "paper"] == [3, 2, 2]
    assert [c.decimals for c in first.columns if c.title in ("risk ↓", "AUROC ↑", "OSCR ↑")] == [3, 2, 2]
    papers = [i for i, title in enumerate(titles) if title == "paper"]
    assert [by_method["msp"][i] for i in papers] == [0.00676, 0.871, 0.977]
    assert [by_method["msp+knn †"][i] for i in papers] == [0.00652, 0.896, 0.976]
    assert [by_method["vim"][i] for i in papers] == [None] * 3
    assert "there ρ_max = 21 %" in first.notes[-1]
    assert last.notes[-1] == "Not the benchmark as defined: tin: dropped."
    for other in (second, compared(rows, 0.7, (), FIGURES)[0][0]):
        assert "paper" not in [c.title for c in other.columns]


def test_the_command_prints_a_table_per_set(runs, store, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # a narrow terminal shows a wide table in parts
    for record in runs[0]:
        RecordStore(tmp_path / "results").write(record)
    where = ["--results", str(tmp_path / "results"), "--cache", str(tmp_path / "cache")]
    assert main(["risk", "toy", "--methods", "msp,knn", "--double", "msp+knn", *where]) == 0
    printed = capsys.readouterr().out
    assert [printed.count(text) for text in ("against a", "against b", "against c", "msp+knn †")] == [1, 1, 1, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--double", "msp"], "--double: found 'msp' — allowed: two methods joined by '+'"),
        (["--tpr", "80"], "--tpr is out of range: found 80.0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message, tmp_path, capsys):
    assert main(["risk", "toy", "--results", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err
