"""Boards of published results: every row of the reference files, and one's own runs beside them."""

import csv
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from openbench.__main__ import main
from openbench.report.site._others import published
from openbench.results.leaderboard.pages import COLUMNS, GIVEN, MEASURED, published_boards
from openbench.results.leaderboard.ranking import boards
from openbench.results.tables.render import Estimate
from tests.results.records import make_record, named, with_method

REFERENCE = Path(__file__).parents[2] / "results/reference"
TITLES = [column.title for column in COLUMNS]
IMAGENET = ("imagenet1k", "imagenet1k_fs", "imagenet200", "imagenet200_fs")


@pytest.fixture(scope="module")
def page():
    with open(REFERENCE / "openood_leaderboard.csv", newline="") as stream:
        return [row for row in csv.DictReader(stream) if row["benchmark"] != "benchmark"]


def number(text):
    return None if text in ("", "/") else float(text)


def own(benchmark="imagenet1k", **changes):
    about = {"name": benchmark, "digest": "aaaa", "pristine": True, "deviations": []}
    return make_record(benchmark=about | changes)


def rows_of(board):
    return [dict(zip(TITLES, cells, strict=True)) for cells in board.table.rows]


def test_every_row_of_the_leaderboard_page_has_its_numbers_and_its_source(page):
    found = {board.benchmark: board for board in published_boards(REFERENCE, ())}
    for benchmark in (*IMAGENET, "cifar100"):
        printed = Counter(
            tuple(map(number, (r["near_auroc"], r["far_auroc"]))) for r in page if r["benchmark"] == benchmark
        )
        cited = [r for r in rows_of(found[benchmark]) if "leaderboard page, state of 19 July 2025" in r["source"]]
        cells = [(r["near AUROC ↑"], r["far AUROC ↑"]) for r in cited]
        here = Counter(tuple(cell and round(100 * cell.value, 6) for cell in pair) for pair in cells)
        assert here == printed
    assert sum(r["benchmark"] in IMAGENET for r in page) == 296


def test_rows_are_sorted_by_near_auroc_and_say_that_nobody_verified_them():
    for board in published_boards(REFERENCE, ()):
        near = [r["near AUROC ↑"].value for r in rows_of(board) if isinstance(r["near AUROC ↑"], Estimate)]
        assert near == sorted(near, reverse=True)
        assert board.table.title == f"{board.benchmark}: published, not verified here"


def test_runs_of_ones_own_stand_among_them_and_say_what_they_are():
    record, other = own(), with_method(own(), "msp")
    given = named(replace(other, config={**other.config, "scores": {"sha256": "00", "images": "named"}}))
    part = own(pristine=False, digest="bbbb", deviations=["far.textures: dropped"])
    (found,) = (b for b in published_boards(REFERENCE, boards([record, given, part])) if b.benchmark == "imagenet1k")
    rows = {runs[0]: at for at, runs in enumerate(found.runs) if runs}
    said = {run: rows_of(found)[at]["source"] for run, at in rows.items()}
    assert said == {record.run_id: MEASURED, given.run_id: GIVEN, part.run_id: MEASURED}
    assert found.reasons[rows[part.run_id]] == ("benchmark not as defined: far.textures: dropped",)
    at = rows[record.run_id]
    assert (rows_of(found)[at]["method"], rows_of(found)[at]["near AUROC ↑"].value) == ("knn", 0.9)
    assert 0 < at < len(found.runs) - 1
    board = published(found)
    assert {row["rank"] for row in board["rows"]} == {None}
    assert len({row["id"] for row in board["rows"]}) == len(board["rows"])


def test_a_benchmark_with_more_rows_of_its_own_has_no_page(tmp_path):
    (tmp_path / "openood_leaderboard.csv").write_text(
        "benchmark,training,postprocessor,architecture,outlier_data,near_auroc,near_std,far_auroc,far_std,id_acc\n"
        "toy,CE,KNN,R,no,80,0.00,90,0.00,/\n"
    )
    assert [board.benchmark for board in published_boards(tmp_path, ())] == ["toy"]
    assert published_boards(tmp_path, boards([own("toy")])) == []


def test_they_are_printed_and_written_for_programs(tmp_path, capsys):
    shutil.copytree(REFERENCE, tmp_path / "reference")
    command = ["leaderboard", "--results", str(tmp_path), "--published", "--benchmark"]
    assert main([*command, "imagenet200", "--format", "csv", "--columns", "method,near_auroc,source"]) == 0
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header.startswith("method,near AUROC")
    assert "leaderboard page" in first
    assert main([*command, "imagenet"]) == 2
    assert "did you mean 'imagenet1k'?" in capsys.readouterr().err
