"""What a record says of its training: outliers and augmentation by name, apart from the benchmark's digest."""

import json
from pathlib import Path
from typing import Any

import pytest

from openbench.__main__ import main
from openbench.compose.config import composed
from openbench.core.record import ResultRecord
from openbench.data.build import build_benchmark
from openbench.results.records.store import RecordStore

SHORT = ["+benchmark=openset_digits", "training.recipe.epochs=1", "metrics.replicates=0", "runtime.progress=false"]
SHORT += ["benchmark.preprocess.resize=8", "benchmark.preprocess.crop=8"]  # a quarter of the pixels
EXPOSED = ["training=outlier_exposure", "training.outliers_per_step=16"]


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> dict[str, ResultRecord]:
    """Records of short trainings, by what was typed."""
    folder = tmp_path_factory.mktemp("place")
    typed = {
        "plain": [],
        "fewer": [*EXPOSED, "outliers.limit=12", "+augment=cutout"],  # than a step takes
        "photographs": [*EXPOSED, "dataset@outliers=kept"],
    }
    own = folder / "mine" / "dataset"
    own.mkdir(parents=True)
    (own / "kept.yaml").write_text("defaults:\n  - textures_drawn\n  - _self_\nname: kept\nkeep: [blobs]\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBENCH_CACHE", str(folder / "cache"))
        for name, words in typed.items():
            patch.setenv("OPENBENCH_RESULTS", str(folder / name))
            assert main(["run", *SHORT, *words, "--config-dir", str(folder / "mine")]) == 0
    return {name: next(iter(RecordStore(folder / name))) for name in typed}


def of(records: dict[str, ResultRecord], key: str) -> dict[str, Any]:
    return {name: record.backbone.get(key) for name, record in records.items()}


def test_names_are_there_only_where_there_is_something_to_say(records):
    assert not {"augment", "outliers", "outliers_digest"} & set(records["plain"].backbone)
    assert "outliers" not in records["plain"].config
    assert of(records, "augment") == {"plain": None, "fewer": "cutout", "photographs": None}
    shown = "textures_drawn (12 of 600)"
    assert of(records, "outliers") == {"plain": None, "fewer": shown, "photographs": "kept"}


def test_outliers_change_the_run_and_the_weights_but_not_the_benchmark(records):
    assert len({r.benchmark["digest"] for r in records.values()}) == 1
    assert all(r.benchmark["pristine"] for r in records.values())
    assert len({r.run_id for r in records.values()}) == 3
    assert len({r.backbone["weights_sha256"] for r in records.values()}) == 3
    assert records["photographs"].counts["ood_train/kept"] == {"n": 200, "expected": 200}


def test_the_benchmark_digits_is_the_one_of_the_committed_records():
    bench = build_benchmark(composed("run", ["+benchmark=digits"]).config["benchmark"])
    kept = (Path(__file__).parents[2] / "results/records/digits").rglob("*.json")
    digests = {json.loads(file.read_text())["benchmark"]["digest"] for file in kept}
    assert digests == {bench.digest}
