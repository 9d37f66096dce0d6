"""The site: its files follow from the records, and nothing in a record becomes part of the page."""

import json
import os
import re
import shutil
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pandas as pd
import pytest

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import ConfigError
from openbench.report.site import write
from openbench.report.site._boards import comparisons_of, value_of
from openbench.report.site._others import other_boards, table_of
from openbench.report.site.write import write_site
from openbench.results.checks import Check, write_check
from openbench.results.leaderboard import ranking
from openbench.results.records.store import digest_of
from openbench.results.scores.stored import ScoreStore
from openbench.results.tables.frames import write_frame
from openbench.results.tables.published import ADBENCH_COLUMNS, Figure, Setup
from openbench.results.tables.render import Estimate

from .conftest import FACTS, HOSTILE, record, records


def read(site, name="assets/data.js"):
    """What a script of the site hands to the page, read as JSON."""
    return [json.loads(line[line.index("(") + 1 : -2]) for line in (site / name).read_text().splitlines()]


def boards(site):
    (data,) = read(site)
    return {board["benchmark"]: board for board in data["boards"]}


def test_every_number_is_that_of_a_record(site):
    toy, knn = boards(site)["toy"], records()[0]
    row = next(row for row in toy["rows"] if row["method"] == "knn")
    values = {metric["id"]: value for metric, value in zip(toy["metrics"], row["values"], strict=True)}
    assert values["near.auroc"] == [0.9, 0.89, 0.91]
    assert values["id.accuracy"] == knn.metrics["id"]["accuracy"]
    assert {name: values[f"{name}.auroc"] for name in "abc"} == {"a": 0.88, "b": 0.92, "c": 0.95}
    assert row["ms"] == 1.0  # 19 ms for 19 images
    assert row["mib"] == 100.0
    assert f"{100 * value_of(Estimate(0.4150503)):.2f}" == "41.51"  # as in a table: .41505 would be 41.50


def test_the_page_says_how_much_there_is_and_what_each_method_does(site):
    assert "4 results on 2 benchmarks, " in (site / "index.html").read_text()
    about = {"reads": "features", "needs": ["training data"], "year": "2022", "summary": "Distance to a neighbour."}
    assert read(site)[0]["methods"]["knn"] == about


def test_ranked_rows_come_first_and_others_say_why_they_are_not(site):
    rows = boards(site)["toy"]["rows"]
    assert [(row["method"], row["rank"]) for row in rows] == [("knn", 1), ("msp", 2), ("vim", None)]
    assert "near/a incomplete" in rows[2]["reasons"][0]
    assert [row["complete"] for row in rows] == [True, True, False]


def drawn(name, role, scores):
    labels = np.full(len(scores), -1)
    return SetScores.of_split(name, role, scores.astype("f4"), labels, labels)


def test_a_row_states_the_ranks_that_it_may_have(results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    rng, store = np.random.default_rng(0), ScoreStore(tmp_path / "results" / "scores")
    for made, shift in zip(records()[:2], (9.0, 0.0), strict=True):
        plan = ((Role.ID_TEST, "toy", 0.0), (Role.NEAR, "a", shift), (Role.NEAR, "b", shift), (Role.FAR, "c", shift))
        store.write(made.run_id, [drawn(name, role, rng.normal(mean, 1, 50)) for role, name, mean in plan])
    write_site(tmp_path / "results", tmp_path / "site", {})
    rows = boards(tmp_path / "site")["toy"]["rows"]
    assert [(row["method"], row["ranks"]) for row in rows] == [("knn", [1, 1]), ("msp", [2, 2]), ("vim", None)]
    assert [row["groups"] for row in rows] == ["a", "b", ""]


def test_every_record_opens(site):
    opened = [found for file in (site / "records").glob("*.js") for found in read(site, f"records/{file.name}")]
    assert {found["run_id"]: found["config"] for found in opened} == {r.run_id: r.config for r in records()}


def test_equal_records_give_equal_bytes(site, results, tmp_path):
    write_site(results, tmp_path / "again", FACTS)
    names = sorted(path.relative_to(site) for path in site.rglob("*") if path.is_file())
    assert names == sorted(p.relative_to(tmp_path / "again") for p in (tmp_path / "again").rglob("*") if p.is_file())
    assert all((site / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in names)


def test_nothing_in_a_record_ends_a_script(site):
    scripts = [site / "assets" / "data.js", *(site / "records").glob("*.js")]
    assert any(HOSTILE.replace("<", r"\u003c") in path.read_text() for path in scripts)
    assert not [path for path in scripts if "<" in path.read_text()]


def test_a_folder_with_other_files_is_refused(results, tmp_path):
    (tmp_path / "thesis.tex").write_text("text")
    with pytest.raises(ConfigError, match="holds other files"):
        write_site(results, tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_missing_library_is_named_with_the_command_that_installs_it(results, tmp_path, monkeypatch):
    monkeypatch.setattr(write, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs itables.*pip install .*\[site\]"):
        write_site(results, tmp_path / "site", {})
    assert not (tmp_path / "site").exists()


def test_a_site_is_written_over_an_earlier_one_and_counts_what_is_not_a_record(results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    write_site(results, tmp_path / "site", {})
    stale = tmp_path / "site" / "records" / "zz.js"
    stale.write_text("")
    next((tmp_path / "results").rglob("*.json")).write_text("{")
    _, unreadable = write_site(tmp_path / "results", tmp_path / "site", {})
    assert len(unreadable) == 1
    assert not stale.exists()
    assert "1 file is missing, because it could not be read" in (tmp_path / "site" / "index.html").read_text()


def test_a_run_whose_page_cannot_be_made_keeps_its_record_and_the_others_their_pages(results, tmp_path, monkeypatch):
    shutil.copytree(results, tmp_path / "results")
    monkeypatch.setattr(write, "_FEW", 0)  # in a process of their own
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    damaged, whole = (made.run_id for made in records()[:2])
    scores, rng = ScoreStore(tmp_path / "results" / "scores"), np.random.default_rng(0)
    plan = (("toy", Role.ID_TEST), ("a", Role.NEAR))
    scores.write(whole, [drawn(name, role, rng.normal(size=9)) for name, role in plan])
    scores.path(damaged).write_bytes(b"")
    files, errors = write_site(tmp_path / "results", tmp_path / "site", FACTS, attrgetter("run_id"))
    assert [damaged in str(error) for error in errors] == [True]
    (page,) = [path for path in files if path.parent.name == "reports"]
    assert page.name == f"{whole}.html"
    assert f"<pre>{whole}</pre>" in page.read_text()
    assert "<style>" not in page.read_text().partition("<svg")[0]
    found = [one for file in files if file.parent.name == "records" for one in read(tmp_path / "site", file)]
    pages = {one["run_id"]: one["page"] for one in found}
    assert len(pages) == len(records())
    assert (pages[damaged], pages[whole]) == (None, f"reports/{whole}.html")


def test_no_file_names_another_host_as_a_source(site):
    texts = [(site / name).read_text() for name in ("index.html", "assets/site.css", "assets/site.js")]
    assert not [match for text in texts for match in re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?https?:""", text)]


def values_of(board, method):
    """A row, and its numbers by column."""
    (row,) = [row for row in board["rows"] if row["method"] == method]
    return row, dict(zip((metric["id"] for metric in board["metrics"]), row["values"], strict=True))


def test_published_figures_stand_beside_the_row_of_their_own_network(more):
    board = boards(more)["toy"]
    row, values = values_of(board, "knn")
    assert row["published"] == "tiny"
    assert (values["near.auroc.published"], values["near.auroc.apart"]) == (0.91, -0.01)
    assert "far.auroc.published" not in values  # the paper prints none
    better = {metric["id"]: metric["better"] for metric in board["metrics"]}
    assert [better[f"near.auroc{end}"] for end in ("", ".published", ".apart")] == [1, 0, 0]  # none is the best
    assert values_of(board, "msp")[0]["published"] == ""
    assert "OpenOOD's leaderboard page" in board["about"]
    assert not [m for m in boards(more)["toy2"]["metrics"] if m["id"].endswith((".published", ".apart"))]


def test_figures_of_another_network_say_so_and_have_no_difference(more):
    row, values = values_of(boards(more)["toy4"], "knn")
    assert row["published"] == "another network: big"
    found = [values[f"{group}.auroc.{key}"] for group in ("near", "far") for key in ("published", "apart")]
    assert found == [[0.88, 0.005], None, 0.9625, None]
    assert not row["comparable"]
    assert "results of other networks or images are in parentheses" in boards(more)["toy4"]["about"]
    assert "another" not in boards(more)["toy"]["about"]


@pytest.mark.parametrize(
    ("training", "deviations", "published"),
    [
        ("cross_entropy", ("1 of 5 images of a",), "another network: big, on other images"),
        (None, (), "another network: big"),  # released weights: that of cross-entropy
        ("logitnorm", (), ""),
    ],
)
def test_a_figure_says_what_is_other_than_the_row(training, deviations, published):
    made = record("knn", 0.9, 0.95, deviations)
    row = replace(made, backbone={**made.backbone, "training": training})
    (board,) = ranking.boards([row], lambda name, key: True)
    figure = Figure(Estimate(0.9), None, None, "openood_leaderboard.csv")
    found = comparisons_of(board, {Setup("toy", "cross_entropy", "big", "knn", "none"): figure})
    assert [one.network for one in found.values()] == [published] * bool(published)
    assert not any(one.comparable for one in found.values())


def test_rows_are_ranked_by_autc_on_a_board_of_its_own(more):
    (data,) = read(more)
    (board,) = [board for board in data["boards"] if board["title"] == "toy3: AUTC"]
    assert [(row["method"], row["rank"]) for row in board["rows"]] == [("mls", 1), ("gen", 2)]
    assert "near.autc" in board["first"]


def test_only_means_over_all_tables_of_adbench_are_ranked_beside_the_published_ones(tmp_path):
    auroc, conformal = "auroc", "conformal_auroc"
    cells = [("a", "knn", auroc, 0.9), ("b", "knn", auroc, 0.7), ("a", "mcd", auroc, 0.8), ("b", "mcd", auroc, 0.5)]
    cells += [("a", "knn", conformal, 0.8), ("b", "lof", auroc, 0.95), ("b", "abod", conformal, 0.8)]
    rows = [(*cell, 0.01, 3, 0.5, 0.0) for cell in cells]
    assert other_boards(tmp_path, []) == []
    (tmp_path / "adbench").mkdir()
    write_frame(
        pd.DataFrame(rows, columns=list(ADBENCH_COLUMNS)), tmp_path / "adbench" / "comparison.csv", ADBENCH_COLUMNS
    )
    (board,) = other_boards(tmp_path, [])
    rows = board["rows"]
    assert [(row["method"], row["rank"]) for row in rows] == [("knn", 1), ("mcd", 2), ("lof", None), ("abod", None)]
    reasons = [["1 of 2 tables: its mean is over others"], ["no AUROC was measured"]]
    assert [row["reasons"] for row in rows] == [[], [], *reasons]
    assert board["first"][:3] == ["mean.auroc", "mean.auroc.published", "mean.auroc.apart"]
    # knn has the second metric on one of its two tables: there is no mean of it.
    assert rows[0]["values"] == [0.8, 0.5, 0.3, None, None, None, [0.9, 0.01], [0.7, 0.01]]
    assert rows[3]["values"] == [None] * 8


def test_trainings_stand_beside_cross_entropy(more):
    rows = boards(more)["trainings on digits"]["rows"]
    assert [(row["training"], row["rank"], row["runs"]) for row in rows] == [
        ("logitnorm", 1, ["13", "14"]),
        ("cross_entropy", 2, ["11", "12"]),
    ]
    assert rows[0]["values"][4] == pytest.approx(0.15)  # (0.2 + 0.1) / 2
    assert r"\textbf{90.00 $\pm$ 0.00}" in (more / "tables/trainings-digits.tex").read_text()


def test_a_row_opens_to_the_check_of_the_very_same_record(more):
    found = {line["run_id"]: line for path in more.glob("records/*.js") for line in read(more, f"records/{path.name}")}
    first, second = (found[made.run_id] for made in records()[:2])
    assert (first["checked"]["utc"], first["checked"]["reproduces"]) == ("2026-01-02T03:04:05+00:00", True)
    assert second["checked"] is None
    assert first["scores"] is None


def test_a_check_from_scores_counts_for_these_very_scores(results, tmp_path):
    shutil.copytree(results, tmp_path / "results")
    store, made = ScoreStore(tmp_path / "results" / "scores"), records()[0]
    store.path(made.run_id).parent.mkdir()
    store.path(made.run_id).write_bytes(b"1")
    told = (True, "99 values equal", "openbench 1", "2026-01-02T03:04:05+00:00")
    check = Check(made.run_id, digest_of(made), "scores", *told, store.state(made.run_id))
    write_check(tmp_path / "results", check)
    checked = []
    for content in (b"1", b"2"):
        store.path(made.run_id).write_bytes(content)
        write_site(tmp_path / "results", tmp_path / "site", FACTS)
        found = read(tmp_path / "site", f"records/{made.run_id[:2]}.js")
        checked += [bool(one["checked"]) for one in found if one["run_id"] == made.run_id]
    assert checked == [True, False]


def test_pictures_of_mean_ranks_have_equal_bytes(more, site):
    shown = {board["title"]: board["picture"] for board in read(more)[0]["boards"]}
    assert shown["toy3: AUTC"] is None
    assert shown["digits: training methods"] is None  # there are no sets
    assert (more / shown["toy"]).read_bytes() == (site / shown["toy"]).read_bytes()
    assert "critical difference" in (more / shown["toy"]).read_text()


def test_a_board_prints_the_word_of_a_metric_without_a_value():
    row = {"rank": None, "tied": False, "method": "msp", "training": "cross_entropy", "values": ["unable", [0.5, 0.1]]}
    board = {"title": "AUTC", "about": "a note", "metrics": [{"title": "AUTC", "better": -1}] * 2, "rows": [row]}
    assert table_of(board).texts() == [["–", "msp", "cross_entropy", "unable", "50.00 ± 10.00"]]
