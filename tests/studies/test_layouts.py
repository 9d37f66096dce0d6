"""Layouts that bring their numbers: the synthetic problem, methods at one bound, one threshold for several groups."""

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from openbench.__main__ import main
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.results.scores.stored import ScoreStore
from openbench.studies.study import study
from openbench.studies.tables import grid_tables

from ..results.records import named, split_scores  # noqa: TID252 — the tests are no package
from .runs import YAML, of, run, study as made_of, write

# What integration gives for an OOD mean of 2 (see tests/metrics): AUROC, AUPR with ID positive, OSCR, risk.
INTEGRATED = {"A: g": (0.878, 0.962, 0.820, 0.1585), "B: r + 0.2 g": (0.865, 0.954, 0.827, 0.1418)}


def test_the_synthetic_table_is_that_of_numerical_integration():
    found = {line[0].row.name: line for line in of(study("reject_option/synthetic"), [])}
    for name, values in INTEGRATED.items():
        assert [cell.ours.value for cell in found[name]] == pytest.approx(values, abs=2.5e-3)
        assert all(cell.published is not None for cell in found[name])
    assert found["C: r"][3].reason.startswith("unable")


NAMES = {"a": ("eight", "nine"), "c": ("patches", "noise")}


def kept(folder, records, names=NAMES) -> None:
    """Scores of every record, as a run keeps them."""
    sets: list[SetScores] = [s for s in split_scores() if s.name not in ("noisy", "a", "c")]
    sets += [replace(s, name=name) for s in split_scores() for name in names.get(s.name, ())]
    for record in records:
        ScoreStore(folder / "cache" / "scores").write(record.run_id, sets)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Records of two methods with one network, and their scores."""
    records = [run(method, 0, 0.9) for method in ("msp", "knn")]
    monkeypatch.setenv("OPENBENCH_RESULTS", str(write(tmp_path / "results", records)))
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    kept(tmp_path, records)
    return tmp_path


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("layout: rejection\noptions: {doubles: [msp+knn]}\n", ("digits · against eight", "msp+knn", "OSCR")),
        ("layout: thresholds\n", ("thresholds over groups", "threshold", "knn")),
    ],
)
def test_a_layout_of_kept_scores_is_made_of_the_studys_runs_only(folder, capsys, layout, words):
    text = YAML.replace("columns: {near: near.auroc, far: far.auroc}", "columns: {Digits: []}").replace("1, 2]", "]")
    text = text.replace("[0, ]", "[0]").replace("KNN: method=knn", "KNN: method=knn, ViM: method=vim") + layout
    (folder / "layout.yaml").write_text(text)
    assert main(["study", str(folder / "layout.yaml"), "--table"]) == 0
    out = capsys.readouterr().out
    assert [word for word in words if word not in out] == [], out
    assert "without, not run yet: ViM (Digits)" in out


def test_curves_of_the_kept_scores_are_pictures_points_and_a_table_beside_published_figures(folder, capsys):
    kept(folder, [run(method, 0, 0.9) for method in ("msp", "knn")], {"a": ("nine",)})  # each set is a panel to draw
    (folder / "printed.csv").write_text("who,value\nMSP,0.321\nKNN,/\n")
    text = YAML.replace("[0, 1, 2]", "[0]").replace("near: near.auroc, far: far.auroc", "nine: nine.oscr")
    more = "published: {file: printed.csv, row: who}\noptions: {curves: [oscr, autc]}\n"
    (folder / "two.yaml").write_text(text + more)
    assert main(["study", str(folder / "two.yaml"), "--table", "--to", str(folder / "out")]) == 0
    names = {path.name for path in (folder / "out").glob("two-*")}
    assert names == {f"two-{kind}.{suffix}" for kind in ("oscr", "autc") for suffix in ("png", "svg", "csv")}
    out = capsys.readouterr().out
    words = ("OSCR curves: OSCR", "rates by threshold: area", "AUTC", "(0.321)")
    assert [word for word in words if word not in out] == []
    points = list(csv.DictReader(io.StringIO((folder / "out/two-oscr.csv").read_text())))
    of = {
        line: [row for row in points if (row["panel"], row["line"]) == ("digits: nine", line)]
        for line in ("KNN", "MSP")
    }
    (value,) = {row["value"] for row in of["KNN"]}
    assert f"{float(value):.4f}" in out
    assert 10 < len(of["MSP"]) <= 50
    assert [{row["published"] for row in of[line]} for line in ("KNN", "MSP")] == [{""}, {"0.321"}]
    (folder / "cache/scores" / f"{run('knn', 0, 0.9).run_id}.parquet").unlink()
    assert main(["study", str(folder / "two.yaml"), "--table"]) == 0
    assert "without, since their scores are not kept: KNN" in capsys.readouterr().out


def test_curves_are_of_the_metrics_that_the_records_have(folder, capsys):
    scaling, weight = "pair", 0.25
    words = f"metrics.autc_scaling={scaling}, metrics.autc_weight={weight}"
    text = YAML.replace("[0, 1, 2]", "[0]").replace("run: +benchmark=digits", f"run: [+benchmark=digits, {words}]")
    assert words in text
    (folder / "two.yaml").write_text(f"{text}options: {{curves: [autc]}}\n")
    one = run("msp", 0, 0.9)
    metrics = {**one.config["metrics"], "autc_scaling": scaling, "autc_weight": weight}
    one = named(replace(one, config={**one.config, "metrics": metrics}))
    write(folder / "results", [one])
    kept(folder, [one])
    assert main(["study", str(folder / "two.yaml"), "--table"]) == 0
    sets = ScoreStore(folder / "cache" / "scores").read(one.run_id)
    (ids,) = (s.scores.astype(float) for s in sets if s.role == Role.ID_TEST)
    oods = {s.name: s.scores.astype(float) for s in sets if s.role in (Role.NEAR, Role.FAR)}
    every = np.concatenate([ids, oods["nine"]])
    scaled = [(scores - every.min()) / np.ptp(every) for scores in (ids, oods["nine"])]
    # The area under FPR is the mean scaled ID score, that under FNR one less the mean scaled OOD score.
    autc = weight * scaled[0].mean() + (1 - weight) * (1 - scaled[1].mean())
    assert f"MSP, nine: AUTC {100 * autc:.2f}" in capsys.readouterr().out


def test_each_group_of_columns_beside_published_figures_is_a_table_of_its_own(tmp_path):
    (tmp_path / "printed.csv").write_text("who,where,value\nMSP,near,0.9\nMSP,far,0.9\n")
    columns = "".join(
        f"  {name}:\n    columns: {{{name}: {{value: {name}.auroc, published: {{where: {name}}}}}}}\n"
        for name in ("near", "far")
    )
    text = YAML.replace("columns: {near: near.auroc, far: far.auroc}\n", f"columns:\n{columns}")
    found = made_of(tmp_path, text + "published: {file: printed.csv, row: who, value: value}\n")
    tables = grid_tables(found, of(found, [run("msp", 0, 0.8, 0.7)]))
    titles = {table.title: [column.title for column in table.columns[1:]] for table in tables}
    beside = ["paper", "difference"]
    assert titles == {"Two methods · near": ["near ↑", *beside], "Two methods · far": ["far ↑", *beside]}


def test_the_legend_explains_deviations_and_intervals_where_a_table_has_both(tmp_path):
    found = made_of(tmp_path)
    (table,) = grid_tables(found, of(found, [run("knn", 0, 0.8), *(run("msp", seed, 0.8) for seed in range(3))]))
    assert table.notes[0].split(" · ") == [
        "mean ± population standard deviation over runs",
        "in brackets the 95 % interval of a single run",
        "(n of N): so many of the runs are there",
    ]
