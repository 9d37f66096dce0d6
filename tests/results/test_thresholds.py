"""Tables of thresholds over the groups of several runs."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from openbench.__main__ import main
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import CacheError, RecordError
from openbench.results.comparisons.thresholds import (
    GroupedScores,
    group_table,
    scored_runs,
    summary_table,
    summary_tables,
)
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore

from .records import make_record, with_method, with_seed


def split(name, role, scores):
    n = len(scores)
    return SetScores.of_split(name, role, np.asarray(scores, np.float32), np.zeros(n, np.int64), np.zeros(n, np.int64))


@pytest.fixture
def runs(tmp_path):
    """Two methods on two groups, one of them also on another benchmark: records, scores, and the scores' sides."""
    rng = np.random.default_rng(0)
    records, scores, sides = [], ScoreStore(tmp_path / "cache" / "scores"), {}
    for method, shift in (("knn", 0.0), ("msp", 4.0)):
        for group in ("case_a", "case_b", "other_c"):
            record = with_method(make_record(), method)
            named = {**record.benchmark, "name": group}
            record = replace(record, benchmark=named, run_id=f"{len(records):016x}")
            first = rng.normal(shift * (group == "case_b"), 1, 40).astype(np.float32)
            near, far = (rng.normal(shift * (group == "case_b") + 2, 1, size).astype(np.float32) for size in (20, 30))
            parts = [
                ("a", Role.ID_TEST, first),
                ("v", Role.ID_VAL, first + 9),
                ("w", Role.OOD_VAL, near - 9),
                ("s", Role.CSID, first + 9),
                ("b", Role.NEAR, near),
                ("c", Role.FAR, far),
            ]
            scores.write(record.run_id, [split(*part) for part in parts])
            records.append(record)
            sides[method, group] = (first, np.concatenate([near, far]))
    return records, scores, sides


def test_runs_are_grouped_by_method_and_their_ood_sets_thrown_together(runs):
    records, scores, sides = runs
    found = scored_runs(records, scores, ["case"])
    assert [(s.method, list(s.groups)) for s in found] == [(m, ["case_a", "case_b"]) for m in ("knn", "msp")]
    for scored in found:
        for name, pair in scored.groups.items():
            for got, expected in zip(pair, sides[scored.method, name], strict=True):
                np.testing.assert_array_equal(got, expected)


def test_the_summary_holds_means_over_groups_and_the_spread(runs):
    records, scores, sides = runs
    table = summary_table(scored_runs(records, scores, ["case"]))
    rows = [dict(zip([c.title for c in table.columns], row, strict=True)) for row in table.rows]
    for row in rows:
        truth = np.repeat([0, 1], [40, 50])
        pooled = [np.concatenate(sides[row["method"], group]) for group in ("case_a", "case_b")]
        assert row["AUROC ↑"] == pytest.approx(np.mean([roc_auc_score(truth, s) for s in pooled]))
        flagged = [s >= s[:, None] for s in pooled]  # at every threshold
        f1 = [2 * (f & (truth == 1)).sum(axis=1) / (f.sum(axis=1) + 50) for f in flagged]
        assert row["F1 ↑"] == pytest.approx(np.mean([of_group.max() for of_group in f1]))
        assert row["groups"] == 2
    # The scores of msp lie elsewhere in the second group: its thresholds do not carry over.
    knn, msp = rows
    assert msp["threshold relative std ↓"] > 4 * knn["threshold relative std ↓"]
    assert msp["F1 ↑"] - msp["others F1 ↑"] > 0.1 > knn["F1 ↑"] - knn["others F1 ↑"]


def test_seeds_hyper_parameters_and_the_data_of_tuning_are_rows_of_their_own(runs):
    records, scores, _ = runs
    again = replace(with_seed(records[0], 7, 0.9), benchmark=records[0].benchmark)
    others = [again, with_method(records[0], "knn", k=3)]
    for run_id, strategy in (("e" * 16, "oracle"), ("f" * 16, "validation")):
        config = {**records[0].config, "tune": {"strategy": strategy}}
        others.append(replace(records[0], run_id=run_id, tuned={"k": 5}, config=config))
    for record in others:
        scores.write(record.run_id, scores.read(records[0].run_id))
    found = scored_runs([*records, *others], scores, ["case_a"])
    assert sorted(s.about for s in found if s.method == "knn") == [
        "cross_entropy · tiny · seed 0",
        "cross_entropy · tiny · seed 7",
        "k=3 · cross_entropy · tiny · seed 0",
        "tuned on test data (oracle) · cross_entropy · tiny · seed 0",
        "tuned on validation · cross_entropy · tiny · seed 0",
    ]


@pytest.mark.parametrize("what", ["params", "network"])
def test_runs_that_a_row_cannot_tell_apart_are_refused_rather_than_one_taken(runs, what):
    records, scores, _ = runs
    first, second = (replace(records[0], run_id=run_id, tuned={"k": 5}) for run_id in ("e" * 16, "f" * 16))
    if what == "params":
        second = replace(second, method={**second.method, "params": {"k": 9}})
    else:
        second = replace(second, backbone={**second.backbone, "digest": "other"})
    with pytest.raises(RecordError, match=r"runs e{16} and f{16} of method 'knn' differ"):
        scored_runs([first, second], scores, ["case_a"])


def test_what_is_missing_is_named(runs):
    records, scores, _ = runs
    with pytest.raises(RecordError, match="no record of a benchmark 'cases_a…'; did you mean 'case_a'"):
        scored_runs(records, scores, ["cases_a"])
    scores.path(records[0].run_id).unlink()
    with pytest.raises(CacheError, match=f"scores of run {records[0].run_id} not found"):
        scored_runs(records, scores, ["case"])
    said = []
    assert scored_runs(records, scores, ["case"], said.append)
    assert len(said) == 1
    with pytest.raises(CacheError, match="not found"):
        scored_runs(records, ScoreStore(scores.root / "empty"), ["case"], said.append)
    assert len(said) == 1  # one error where there are no scores, not one for each run


def grouped(record, case, group, **backbone):
    """The record as that of a group of a collection of three sets, one ID and one OOD."""
    node = {"group": group, "collection": {"declared": ["a", "b", "c"], "id": 1, "ood": 1, "sets": {}}}
    return replace(
        record,
        benchmark={**record.benchmark, "name": f"{case}_{group}"},
        config={**record.config, "benchmark": node},
        backbone={**record.backbone, **backbone},
    )


def test_collections_have_tables_of_their_own(runs):
    records, scores, _ = runs
    names = [("case_1", "a_vs_b"), ("case_1", "b_vs_a"), ("case_2", "a_vs_b")]
    cases = [grouped(r, *name) for r, name in zip(records[:3], names, strict=True)]
    found = scored_runs(cases, scores, ["case"])
    assert [(s.case, list(s.groups)) for s in found] == [
        ("case_1", ["case_1_a_vs_b", "case_1_b_vs_a"]),
        ("case_2", ["case_2_a_vs_b"]),
    ]
    first, second = summary_tables(found, {})
    assert (first.title, second.title) == ("thresholds over groups · case_1", "thresholds over groups · case_2")
    assert (first.rows[0][2], second.rows[0][2]) == (2, 1)
    assert first.notes == ("case_1 has 6 groups; rows with fewer are means over those that were run.",)


@pytest.fixture
def gradnorm(runs):
    """Runs of the norm itself on two groups with 3 and 7 classes."""
    records, scores, sides = runs
    found = [
        grouped(with_method(r, "gradnorm", mean=False), "case_1", group, num_classes=classes)
        for r, group, classes in zip(records[:2], ("a_vs_b", "b_vs_a"), (3, 7), strict=True)
    ]
    # Digests of benchmarks tell real runs of two groups apart; here they are alike.
    found = [replace(r, run_id=f"{index:x}" * 16) for index, r in enumerate(found, 1)]
    for old, new in zip(records, found, strict=False):
        scores.write(new.run_id, scores.read(old.run_id))
    return found, scores, [sides["knn", name] for name in ("case_a", "case_b")]


def test_both_variants_of_gradnorm_come_from_one_run(gradnorm):
    records, scores, sides = gradnorm
    plain, mean = scored_runs(records, scores, ["case_1"])
    assert [s.about.split(" · ")[0] for s in (plain, mean)] == ["mean=False", "mean=True"]
    for name, pair, classes in zip(plain.groups, sides, (3, 7), strict=True):
        for got, scaled, raw in zip(plain.groups[name], mean.groups[name], pair, strict=True):
            np.testing.assert_array_equal(got, raw)
            np.testing.assert_array_equal(scaled, (raw / np.float32(classes)).astype(np.float64))
    # Division by another number in each group moves the thresholds apart, and no F1 of a group's own.
    first, second = (
        dict(zip([c.title for c in t.columns], t.rows[0], strict=True))
        for t in (summary_table([plain]), summary_table([mean]))
    )
    assert first["F1 ↑"] == second["F1 ↑"]
    assert first["threshold std"] != second["threshold std"]


def test_the_papers_figures_stand_beside_the_variant_that_it_used(gradnorm):
    records, scores, _ = gradnorm
    figures = {("case_1", "cross_entropy", "gradnorm"): {"f1": 0.82, "auroc": 0.73, "fpr95": 0.53, "aupr": 0.76}}
    own, beside = summary_tables(scored_runs(records, scores, ["case_1"]), figures)
    plain, mean = (dict(zip([c.title for c in beside.columns[:4]], row, strict=False)) for row in beside.rows)
    assert [row[4::2] for row in beside.rows] == [(None,) * 4, (0.82, 0.73, 0.53, 0.76)]
    assert plain["F1 ↑"] == mean["F1 ↑"] == own.rows[0][3]


def test_runs_without_common_scores_of_the_id_side_are_left_out(runs):
    records, scores, _ = runs
    config = {**records[0].config, "tune": {"strategy": "oracle_per_set"}}
    per_set = replace(records[0], run_id="e" * 16, tuned={"k": {"b": 5, "c": 9}}, config=config)
    found = scored_runs([*records, per_set], scores, ["case_a"])
    assert [s.method for s in found] == ["knn", "msp"]


def test_a_group_table_shows_each_groups_thresholds():
    pairs = {"a": (np.array([0.0, 1.0]), np.array([2.0, 3.0])), "b": (np.array([4.0, 5.0]), np.array([6.0, 7.0]))}
    table = group_table(GroupedScores("knn", "", pairs))
    # a is parted at 2, b at 6; at 6 nothing of a is flagged, at 2 all of b is: F1 = 2·2/(4 + 2).
    assert table.rows == (("a", 2.0, 1.0, 6.0, 0.0, 1.0), ("b", 6.0, 1.0, 2.0, 2 / 3, pytest.approx(2 / 3)))


def test_the_command_reads_records_and_files(runs, tmp_path, capsys):
    records, _, sides = runs
    store = RecordStore(tmp_path / "results")
    for record in records:
        store.write(record)
    where = ["--results", str(tmp_path / "results"), "--cache", str(tmp_path / "cache")]
    assert main(["thresholds", "case", "--groups", *where]) == 0
    out = capsys.readouterr().out
    assert out.index("knn") < out.index("msp")
    assert out.count("case_b") == 2
    for group in ("case_a", "case_b"):
        rows = [
            f"{s},{name},{role}"
            for name, role, side in zip("io", ("id_test", "far"), sides["knn", group], strict=True)
            for s in side
        ]
        (tmp_path / f"{group}.csv").write_text("\n".join(["score,set,role", *rows]))
    assert main(["thresholds", *(str(tmp_path / f"{g}.csv") for g in ("case_a", "case_b")), "--format", "csv"]) == 0
    files = capsys.readouterr().out.splitlines()[-1].split(",")
    assert main(["thresholds", "case", "--format", "csv", *where]) == 0
    stored = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("knn")).split(",")
    assert [float(v) for v in files[3:]] == pytest.approx([float(v) for v in stored[3:]], rel=1e-6)


def test_a_file_without_an_id_side_is_refused(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("score,set,role\n1,o,far\n")
    assert main(["thresholds", str(tmp_path / "a.csv")]) == 2
    assert "found the roles far — a group needs id_test, and near or far" in capsys.readouterr().err
