"""Records that a study of the benchmark digits is made of, and its yaml."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from openbench.core.record import ResultRecord
from openbench.results.records.store import RecordStore
from openbench.studies.cells import Asked, Cell, archive_of, cells
from openbench.studies.runs import definition
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


def run(method: str, seed: int, near: float, far: float = 0.95, **changes: Any) -> ResultRecord:
    """A run of a method on digits with a network of its own for every seed."""
    config = {
        "seed": seed,
        "method": {"_name_": method} | changes.pop("params", {}),
        "tune": {"_name_": "validation", "strategy": "validation"},
        "backbone": {"_name_": "resnet8_digits"},
        "training": {"_name_": "cross_entropy"},
        "benchmark": dict(definition("digits", None)),
    }
    record = make_record(
        config=config,
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
    found = metrics(near, far)
    eight, nine = (found.pop(name) for name in ("a", "b"))
    patches = found.pop("c")
    return {
        "eight": eight,
        "nine": nine,
        "patches": patches,
        "noise": patches,
        **found,
        "far": {**found["far"], "n_sets": 2},
    }


def drawn(method: str, draw: int, near: float) -> ResultRecord:
    """A run of a method on a draw of a table, without a network; every draw has rows of its own."""
    record = run(method, 0, near, near, of={"name": "adbench_wine", "digest": f"draw{draw}"})
    texts = json.dumps(definition("adbench", None))
    for key, value in (("table", "wine"), ("protocol", "adbench"), ("draw", str(draw))):
        texts = texts.replace(f"${{benchmark.{key}}}", value)
    node = json.loads(texts) | {"table": "wine", "draw": draw}
    nodes = {"benchmark": node, "backbone": {"_name_": "identity"}, "tune": {"_name_": "none"}}
    backbone = {"name": "identity", "digest": "same", "training": None}
    found = dict.fromkeys(("anomalies", "far"), record.metrics["far"])
    found["far"] = {**found["far"], "n_sets": 1}
    counts = {"far/anomalies": {"n": 3, "expected": 3}}
    return named(replace(record, config={**record.config, **nodes}, backbone=backbone, metrics=found, counts=counts))


def study(folder: Path, text: str = YAML, name: str = "two") -> Study:
    """The study that a yaml in a folder says."""
    (folder / f"{name}.yaml").write_text(text)
    return read_study(folder / f"{name}.yaml", name)


def of(found: Study, records: Iterable[ResultRecord], asked: Asked | None = None) -> list[list[Cell]]:
    """The cells of a study of records."""
    asked = asked or Asked()
    return cells(found, asked, archive_of(found, asked, records))


def write(folder: Path, records: Iterable[ResultRecord]) -> Path:
    """Records in a results folder."""
    for record in records:
        RecordStore(folder).write(record)
    return folder
