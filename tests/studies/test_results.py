"""The committed tables of studies: every study is listed, and numbers are those of the committed records."""

import csv
import io
import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest

from openbench.cli.app import carry_out
from openbench.results.frame import runs
from openbench.results.records.store import RecordStore
from openbench.studies.study import names

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "studies"


def test_every_study_is_listed_with_its_page_or_why_it_has_none():
    page = (FOLDER / "README.md").read_text()
    lines = {
        line.split("|")[1].strip().partition("](")[0].strip("["): line for line in page.splitlines() if "|" in line
    }
    assert set(names()) <= set(lines)
    for name in names():
        has_page = f"({name}.md)" in lines[name]
        assert has_page == (FOLDER / f"{name}.md").is_file()
        assert has_page or lines[name].split("|")[5].strip() != "–"


def test_the_manuals_table_of_attacks_is_the_studys():
    rows = csv.DictReader(io.StringIO((FOLDER / "local" / "attacks.csv").read_text()))
    numbers = defaultdict(list)
    for row in rows:
        numbers[row["row"]].append(f"{100 * float(row['value']):.2f}" if row["value"] else "–")
    page = (ROOT / "docs" / "do" / "attacks.md").read_text()
    assert [f"| {name} | {' | '.join(values)} |" in page for name, values in numbers.items()] == [True] * 5


@pytest.fixture(scope="module")
def committed():
    """Every committed record as tables see it, of which a cache is left for the next reader."""
    return list(runs(RecordStore(ROOT / "results"), pytest.fail))


def test_every_committed_record_follows_from_itself(committed):
    assert len(committed) > 600
    assert [(run.run_id, run.problems) for run in committed if run.problems] == []


@pytest.mark.usefixtures("committed")
def test_the_manuals_table_of_costs_is_that_of_the_records(capsys):
    shown = ["cifar10", "cifar100_32px", "cifar10_32px"]
    words = ["--results", str(ROOT / "results"), "--benchmark", ",".join(shown), "--view", "cost", "--format", "csv"]
    assert carry_out(["leaderboard", *words]) == 0
    rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    sums = [list(row.values())[2:] for row in rows if row["method"] == "all"]
    page = (ROOT / "docs" / "do" / "find_a_fast_method.md").read_text().replace(",", "")
    for name, numbers in zip(shown, sums, strict=True):
        assert f"| `{name}` | {' | '.join(numbers)} |" in page


@pytest.fixture(scope="module")
def records():
    """{run id: (its path among the records, its text)}."""
    packed = [pd.read_parquet(path) for path in (ROOT / "results").glob("*/records.parquet")]
    found = {Path(path).stem: (Path(path), content) for path, content in pd.concat(packed).itertuples(index=False)}
    paths = (ROOT / "results/records").rglob("*.json")
    return found | {path.stem: (path.relative_to(ROOT / "results"), path.read_bytes()) for path in paths}


@pytest.fixture(scope="module")
def metrics(records):
    return cache(lambda run_id: json.loads(records[run_id][1])["metrics"])


def test_numbers_of_the_committed_tables_are_means_over_the_records_that_they_name(metrics):
    wrong, checked = [], 0
    for path in FOLDER.rglob("*.csv"):
        for row in csv.DictReader(io.StringIO(path.read_text())):
            if not (row.get("records") and row.get("value") and row.get("metric")):
                continue
            values = [metrics(run_id)[row["set"]][row["metric"]] for run_id in row["records"].split()]
            checked += 1
            if float(row["value"]) != pytest.approx(fmean(values), abs=1e-12):
                wrong.append((path.name, row["row"], row["column"]))
    assert wrong == []
    assert checked > 300


def test_adbench_beside_the_published_figures_is_made_of_the_records(records, metrics):
    runs = defaultdict(list)
    for run_id, (path, _) in records.items():
        *_, benchmark, _, method, _ = path.parts
        if benchmark.startswith("adbench_"):
            runs[benchmark.removeprefix("adbench_"), method].append(metrics(run_id)["anomalies"])
    rows = csv.DictReader(io.StringIO((ROOT / "results/adbench/comparison.csv").read_text()))
    said = {(row["dataset"], row["method"], row["metric"]): (row["ours"], row["draws"]) for row in rows}
    assert said == {
        (*cell, metric): (f"{fmean(values[metric] for values in drawn):.4f}", str(len(drawn)))
        for cell, drawn in runs.items()
        for metric in ("auroc", "conformal_auroc")
    }


def test_a_file_that_is_missing_changed_or_left_over_is_said_and_rounding_is_no_change(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from results_studies import outdated, same

    assert same("MSP | **91.06** | 0.1231", "**MSP** | 91.06 | 0.1232")
    assert not any(same("MSP | 91.06 (1456)", other) for other in ("MSP | 92.06 (1456)", "MSP | 91.06 (1457)", "KNN"))
    for name, text in (("current.md", "91.06"), ("changed.md", "91.06"), ("gone-oscr.csv", "x"), ("drawn.png", "old")):
        (tmp_path / name).write_text(text)
    today = {"current.md": b"91.06", "changed.md": b"82.06", "missing.csv": b"x", "drawn.png": b"new"}
    files = {tmp_path / name: (lambda content=content: content) for name, content in today.items()}
    names = [Path(line.split()[0]).name for line in outdated(tmp_path, files)]
    assert names == ["changed.md", "missing.csv", "gone-oscr.csv"]
