"""The two papers' tables in our names, against figures read off the papers."""

import csv
import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from openbench.errors import RecordError
from openbench.paths import config_dir
from openbench.results.tables.published import rebench_figures, rejection_figures

REFERENCE = Path(__file__).parents[2] / "results" / "reference"


def test_the_reject_option_table_is_read_in_our_names():
    found, keys = rejection_figures(REFERENCE), ("min_tpr", "max_fpr", "risk", "auroc", "oscr")
    react, knn_msp = found["mnist", "fashion_mnist", "react"], found["cifar10_rejection", "tin", "knn_msp"]
    assert react == dict(zip(keys, (0.8, 0.10, 0.00637, 0.985, 0.990), strict=True))
    assert knn_msp == dict(zip(keys, (0.8, 0.19, 0.00652, 0.914, 0.976), strict=True))
    assert len(found) == 2 * 3 * 8
    assert {frozenset(figure) for figure in found.values()} == {frozenset(keys)}


def test_the_rebenchmark_tables_are_read_in_our_names():
    found = rebench_figures(REFERENCE)
    gradnorm = {"f1": 0.70, "auroc": 0.72, "fpr95": 0.47, "aupr": 0.62}
    assert found["rebench_case2", "cross_entropy", "gradnorm"] == gradnorm
    # Outlier exposure is a training here, which the paper scores by MSP.
    assert found["rebench_case3", "outlier_exposure", "msp"]["f1"] == 0.90
    assert found["rebench_case3", "cross_entropy", "msp"]["f1"] == 0.93
    assert len(found) == 15


@pytest.mark.parametrize(
    ("row", "said"), [("New,1", r"training 'New' is not in paper_names\.csv"), ("MSP,x", "found 'x' — allowed")]
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path, row, said):
    assert (rejection_figures(tmp_path), rebench_figures(tmp_path)) == ({}, {})
    shutil.copy(REFERENCE / "paper_names.csv", tmp_path)
    (tmp_path / "rebenchmarking_tables.csv").write_text(f"case,method,f1,auroc,fpr95,aupr\n1,{row},1,1,1\n")
    with pytest.raises(RecordError, match=rf"rebenchmarking_tables\.csv, line 2: {said}"):
        rebench_figures(tmp_path)


def test_every_name_is_one_of_ours():
    """Methods, trainings and benchmarks are config files; a set is one of its benchmark."""
    with (REFERENCE / "paper_names.csv").open(newline="") as stream:
        rows = [(row["kind"], row["ours"]) for row in csv.DictReader(stream)]
    missing = [row for row in rows if row[0] != "set" and not (config_dir() / row[0] / f"{row[1]}.yaml").is_file()]
    assert missing == []
    benchmarks = [OmegaConf.load(config_dir() / f"benchmark/{name}.yaml") for name in ("mnist", "cifar10_rejection")]
    sets = {name for benchmark in benchmarks for name in benchmark.metrics.fpr}
    assert {ours for kind, ours in rows if kind == "set"} == sets
