"""Records and scores as small as a test needs them, built through the public types."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from openbench.core.record import ResultRecord, RunIdentity
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.metrics.suite import MetricOptions, describe, evaluate


def undigested(path: Path) -> dict[str, Any]:
    """The content of a record's file without its digest, as somebody who edits the file on purpose leaves it."""
    content = json.loads(path.read_text())
    del content["content_sha256"]
    return content


def named(record: ResultRecord) -> ResultRecord:
    """The record under the run id that follows from it."""
    return replace(record, run_id=RunIdentity.of(record).run_id)


def make_record(**changes: Any) -> ResultRecord:
    """A pristine record of a run with two near sets and one far set; `changes` replaces whole fields."""
    record = ResultRecord(
        run_id="",
        config={"seed": 0, "method": {"_name_": "knn", "k": 50}, "tune": {"strategy": "none", "_name_": "none"}},
        benchmark={"name": "toy", "digest": "aaaa", "pristine": True, "deviations": []},
        backbone={"name": "tiny", "digest": "bbbb", "training": "cross_entropy"},
        method={"name": "knn", "version": 1, "reference": "Sun et al., ICML 2022", "params": {"k": 50}},
        tuned={},
        trials=[],
        metrics=metrics(0.9, 0.95),
        header="FPR@95: OOD positive",
        counts={"near/a": {"n": 5, "expected": 5}, "near/b": {"n": 5, "expected": 5}, "far/c": {"n": 9, "expected": 9}},
        provenance={"utc": "2025-01-01T00:00:00+00:00"},
    )
    changed = replace(record, **changes)
    return changed if "run_id" in changes else named(changed)


def metrics(near: float, far: float, accuracy: float = 0.75) -> dict[str, dict[str, Any]]:
    """Metrics of the sets of `make_record`, with an interval of ±1 % around each group's AUROC."""
    group = {
        name: {"auroc": value, "auroc_low": value - 0.01, "auroc_high": value + 0.01, "fpr95": 1 - value, "n_sets": n}
        for name, value, n in (("near", near, 2), ("far", far, 1))
    }
    sets = {
        name: {"auroc": value, "fpr95": 1 - value}
        for name, value in (("a", near - 0.02), ("b", near + 0.02), ("c", far))
    }
    return {**sets, **group, "id": {"accuracy": accuracy, "n_id": 100}}


def with_method(record: ResultRecord, name: str, **params: Any) -> ResultRecord:
    """The same run of another method."""
    config = {**record.config, "method": {"_name_": name, **params}}
    return named(replace(record, config=config, method={**record.method, "name": name, "params": params}))


def with_seed(record: ResultRecord, seed: int, near: float, far: float = 0.95) -> ResultRecord:
    """The same run of a backbone trained from another seed."""
    config, backbone = {**record.config, "seed": seed}, {**record.backbone, "digest": f"seed{seed}"}
    return named(replace(record, config=config, backbone=backbone, metrics=metrics(near, far)))


def split_scores(seed: int = 0) -> list[SetScores]:
    """Gaussian scores of an ID, a csID, a near and a far split."""
    rng = np.random.default_rng(seed)
    plan = [("toy", Role.ID_TEST, 0.0), ("noisy", Role.CSID, 0.5), ("a", Role.NEAR, 1.0), ("c", Role.FAR, 3.0)]
    plan += [("toy", Role.ID_VAL, 0.0), ("v", Role.OOD_VAL, 1.5)]
    found = []
    for index, (name, role, shift) in enumerate(plan):
        n = 40 + index
        labels = rng.integers(0, 3, n) if role.is_id else np.full(n, -1)
        scores = rng.normal(shift, 1.0, n).astype(np.float32)
        found.append(SetScores.of_split(name, role, scores, labels, rng.integers(0, 3, n)))
    return found


def full_record(**changes: Any) -> ResultRecord:
    """A record with every metric family, computed by the metric suite from `split_scores`."""
    options = MetricOptions(replicates=20, correction="simes")
    rng = np.random.default_rng(1)
    sets = []
    for s in split_scores():
        probabilities = rng.dirichlet(np.ones(3), len(s.scores)) if s.role.is_id else None
        own = rng.exponential(size=(len(s.scores), 3)) if s.role.is_id else None
        sets.append(SetScores(s.name, str(s.role), s.scores, s.correct, s.labels, probabilities, own))
    counts = {f"{s.role}/{s.name}": {"n": len(s.scores), "expected": len(s.scores)} for s in split_scores()}
    return make_record(metrics=evaluate(sets, options), header=describe(options), counts=counts, **changes)


def markdown_table(text: str, title: str) -> list[dict[str, str]]:
    """The rows of the Markdown table under a heading, by column title."""
    section = next(part for part in text.split("\n### ") if part.startswith(title))
    lines = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("|")]
    titles = [cell.strip() for cell in lines[0]]
    return [dict(zip(titles, (cell.strip() for cell in line), strict=True)) for line in lines[2:]]
