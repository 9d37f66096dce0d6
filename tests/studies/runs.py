"""Records that a study of the benchmark digits is made of, and its yaml."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from openbench.compose.config import composed
from openbench.core.record import ResultRecord
from openbench.public import public
from openbench.results.frame import run_of
from openbench.results.records.store import RecordStore
from openbench.studies.cells import Cell, StudyOptions, cells
from openbench.studies.runs import Records
from openbench.studies.study import Study, read_study

from ..results.records import make_record, metrics, named  # noqa: TID252 — the tests are no package

YAML = """\
# Two methods on digits.
title: Two methods
run: +benchmark=digits
seeds: [0, 1, 2]
rows: {MSP: method=msp, KNN: method=knn}
columns: {near: near.auroc, far: far.auroc}
"""
DRAWS = """\
# One table of ADBench.
run: [+benchmark=adbench, benchmark.table=wine]
repeat: {benchmark.draw: [1, 2, 3]}
rows: {PCA: method=pca, KNN: method=pyod_knn}
columns: {AUROC: far.auroc}
"""
_SIZES = {"near/eight": 174, "near/nine": 180, "far/patches": 400, "far/noise": 400}


@lru_cache
def config_of(*words: str) -> dict[str, Any]:
    """The scientific config of overrides, as a record has it."""
    found: dict[str, Any] = public(composed("run", words).config)
    return found


def run(method: str, seed: int, near: float, far: float = 0.95, **changes: Any) -> ResultRecord:
    """A run of a method on digits with a network of its own for every seed."""
    config = config_of("+benchmark=digits", f"method={method}")
    config = {**config, "seed": seed, "method": {**config["method"], **changes.pop("params", {})}}
    record = make_record(
        config={key: node for key, node in config.items() if key != "outliers"},
        benchmark={"name": "digits", "digest": "aaaa", "pristine": True, "deviations": []} | changes.pop("of", {}),
        backbone={"name": "resnet8_digits", "digest": f"net{seed}", "training": "cross_entropy"},
        method={"name": method, "version": 1, "reference": "", "params": {}},
        metrics=numbers(near, far),
        counts={key: {"n": size, "expected": size} for key, size in _SIZES.items()},
        **changes,
    )
    return named(record)


def numbers(near: float, far: float) -> dict[str, dict[str, Any]]:
    """Metrics of the sets of digits, with an interval of ±1 % around each group's AUROC."""
    found, names = metrics(near, far), {"a": ("eight",), "b": ("nine",), "c": ("patches", "noise")}
    renamed = {name: values for key, values in found.items() for name in names.get(key, (key,))}
    return {**renamed, "far": {**found["far"], "n_sets": 2}}


def drawn(method: str, draw: int, near: float) -> ResultRecord:
    """A run of a method on a draw of a table, without a network; every draw has rows of its own."""
    record = run(method, 0, near, near, of={"name": "adbench_wine", "digest": f"draw{draw}"})
    table = ("+benchmark=adbench", "benchmark.table=wine")
    node = config_of(*table, "benchmark.draw=1", f"method={method}")["method"]
    config = {**config_of(*table, f"benchmark.draw={draw}", "method=pca"), "method": node}
    backbone = {"name": "identity", "digest": "same", "training": None}
    found = dict.fromkeys(("anomalies", "far"), record.metrics["far"])
    found["far"] = {**found["far"], "n_sets": 1}
    counts = {"far/anomalies": {"n": 3, "expected": 3}}
    return named(replace(record, config=config, backbone=backbone, metrics=found, counts=counts))


def study(folder: Path, text: str = YAML, name: str = "two") -> Study:
    """The study that a yaml in a folder says."""
    (folder / f"{name}.yaml").write_text(text)
    return read_study(folder / f"{name}.yaml", name)


def lookup(records: Iterable[ResultRecord]) -> Records:
    """The look-up of records."""
    return Records(map(run_of, records))


def of(found: Study, records: Iterable[ResultRecord], options: StudyOptions | None = None) -> list[list[Cell]]:
    """The cells of a study of records."""
    return cells(found, options or StudyOptions(), lookup(records))


def write(folder: Path, records: Iterable[ResultRecord]) -> Path:
    """Records in a results folder."""
    for record in records:
        RecordStore(folder).write(record)
    return folder
