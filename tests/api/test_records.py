"""Results from disk as data: one tidy frame of all records, and one run with the names of its images."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import openbench as ob
from openbench.compose.config import composed
from openbench.core.record import RunIdentity
from openbench.core.scores import SetScores
from openbench.data.build import build_benchmark
from openbench.errors import CacheError, RecordError
from openbench.public import public
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import PUBLISHED, ScoreStore

from ..results.records import (  # noqa: TID252 — the tests are no package
    full_record,
    make_record,
    metrics,
    split_scores,
    with_method,
    with_seed,
)


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    store = RecordStore(tmp_path / "results")
    store.root.mkdir()
    return store


def test_a_row_per_record_and_set_with_types(results):
    written = [
        make_record(),
        with_seed(make_record(), 1, 0.8),
        full_record(tuned={"k": 50}, method={**make_record().method, "version": 2}),
    ]
    places = {record.run_id: str(results.write(record)) for record in written}
    found = ob.records()
    assert len(found[found["run_id"] == written[0].run_id]) == 5
    assert found.attrs["skipped"] == []
    one = found.query("run_id == @written[1].run_id and set == 'a'").iloc[0]
    assert (one["seed"], one["role"], one["side"]) == (1, "near", "standard")
    assert one["auroc"] == 0.8 - 0.02
    assert (one["training"], one["backbone"], one["benchmark"]) == ("cross_entropy", "tiny", "toy")
    assert (one["params"], one["tuned_on"], one["id_accuracy"]) == ("k=50", "", 0.75)
    assert one["path"] == places[one["run_id"]]
    assert (one["pristine"], one["complete"]) == (True, True)
    assert one["utc"] == pd.Timestamp("2025-01-01", tz="UTC")
    assert found.query("role == 'mean' and set == 'near'")["auroc_low"].notna().all()
    expected = {"method": "category", "set": "category", "seed": "Int64", "auroc": "float64", "n_ood": "Int64"}
    assert found.dtypes[list(expected)].astype(str).to_dict() == expected
    full = found[found["run_id"] == written[2].run_id]
    assert full["tuned_on"].unique().tolist() == ["validation"]
    side = full.set_index(["side", "set"])["fpr95"]
    assert side["full spectrum", "a"] == written[2].metrics["full_spectrum/a"]["fpr95"]


@pytest.mark.parametrize("chosen", ["ranking", "all", ["fpr95"]])
def test_records_that_have_not_changed_are_not_read_again(results, monkeypatch, chosen):
    unable = {**metrics(0.8, 0.7), "far": {"auroc": "unable", "n_sets": 1}}
    for record in (full_record(), with_method(make_record(metrics=unable), "msp")):
        results.write(record)
    first = ob.records(metrics=chosen)
    monkeypatch.setattr(RecordStore, "read", lambda self, path: pytest.fail(f"{path} is read again"))
    pd.testing.assert_frame_equal(ob.records(metrics=chosen), first)
    assert len(first) > 5  # a row for each set, with numbers that were asked for or without


def test_metrics_are_a_family_or_keys_or_all(results):
    record = full_record()
    results.write(record)
    keys = ob.records(metrics=["risk@tpr0.8,fpr0.2", "id_aurc"])
    assert keys["id_aurc"].tolist() == [record.metrics["id"]["aurc"]] * len(keys)
    assert "auroc" not in keys
    assert "autc" in ob.records(metrics="threshold")
    every = ob.records(metrics="all")
    near = every.query("set == 'near' and side == 'standard'").iloc[0]
    for key, value in record.metrics["near"].items():
        assert (value == "unable" and np.isnan(near[key])) or near[key] == value
    with pytest.raises(RecordError, match="metric 'aurok' is in no record"):
        ob.records(metrics=["aurok"])
    with pytest.raises(RecordError, match="metrics is a int — pass a family"):
        ob.records(results, metrics=3)
    with pytest.raises(RecordError, match="'rankin' not found; did you mean 'ranking'"):
        ob.records(metrics="rankin")


def test_numbers_that_are_unable_or_absent_are_missing_in_their_own_rows(results):
    first, second = make_record(), with_method(make_record(), "msp")
    first.metrics["a"]["oscr"] = 0.5
    second = replace(second, metrics=metrics(0.6, 0.7))
    second.metrics["c"]["oscr"] = "unable"
    second.metrics["b"]["oscr"] = 0.25
    for record in (first, second):
        results.write(record)
    found = ob.records(metrics=["oscr", "auroc"])
    there = found.dropna(subset="oscr").set_index(["method", "set"])["oscr"]
    assert there.to_dict() == {("knn", "a"): 0.5, ("msp", "b"): 0.25}
    assert found.set_index(["method", "set"])["auroc"]["msp", "c"] == 0.7


def test_files_that_are_not_records_are_left_out_with_one_warning(results):
    good, bad = results.write(make_record()), results.write(with_method(make_record(), "msp"))
    bad.write_text(bad.read_text().replace("0.9", "0.8"))
    (good.parent / "ffff.json").write_text("{")
    with pytest.warns(UserWarning, match="and 1 more") as told:
        found = ob.records()
    assert len(told) == 1
    assert found["method"].unique().tolist() == ["knn"]
    assert sum("the record has changed" in text for text in found.attrs["skipped"]) == 1
    assert len(found.attrs["skipped"]) == 2


def test_a_folder_without_records_has_the_columns_all_the_same(results):
    found = ob.records()
    assert len(found) == 0
    assert {"method", "set", "run_id", "pristine"} <= set(found.columns)
    with pytest.raises(RecordError, match=r"results folder '.*nowhere' not found"):
        ob.records(results.root / "nowhere")


def kept_run(results, cache):
    record = full_record()
    path = results.write(record)
    ScoreStore(cache / "scores").write(record.run_id, split_scores())
    return record, path


@pytest.mark.parametrize("by", ["id", "prefix", "latest", "path"])
def test_a_run_is_loaded_by_id_or_file_with_its_scores(results, tmp_path, by):
    record, path = kept_run(results, tmp_path / "cache")
    name = {"id": record.run_id, "prefix": record.run_id[:5], "latest": "latest", "path": path}[by]
    found = ob.load(name)
    assert (found.record.run_id, found.path) == (record.run_id, path)
    assert [len(s.scores) for s in found.scores] == [len(s.scores) for s in split_scores()]
    assert (found.notes, found.warnings) == ((), ())


def test_scores_that_are_published_beside_the_record_are_read(results):
    record = full_record()
    path = results.write(record)
    ScoreStore(results.root / PUBLISHED).write(record.run_id, split_scores())
    assert len(ob.load(record.run_id).scores) == len(ob.load(path).scores) == len(split_scores())


def test_a_run_without_scores_says_so_and_a_damaged_file_of_scores_warns(results, tmp_path):
    record, _ = kept_run(results, tmp_path / "cache")
    file = ScoreStore(tmp_path / "cache" / "scores").path(record.run_id)
    content = bytearray(file.read_bytes())
    content[100] ^= 255
    file.write_bytes(content)
    damaged = ob.load(record.run_id)
    assert damaged.scores == ()
    assert "not the scores of a run" in damaged.warnings[0]
    file.unlink()
    missing = ob.load(record.run_id)
    assert "run it again to compute them" in missing.notes[0]
    with pytest.raises(CacheError, match="no scores per image"):
        missing.images()
    with pytest.raises(RecordError, match="run '' — allowed: a run id"):
        ob.load("", results)
    with pytest.raises(RecordError, match="record '0000000' not found"):
        ob.load("0000000")


def digits_run(results, cache, **changes):
    """A record of the digits with scores, as `run` keeps them."""
    dropped = ["~benchmark.csid", "~benchmark.near.nine", "benchmark.incomplete=allow"]
    node = composed("run", ["+benchmark=digits", *dropped]).config["benchmark"]
    node = public(node)
    for name in ("patches", "noise"):  # not here, and written to the record in another order
        node["far"][name]["sources"] = {"gone": {"_target_": "ImageFolder", "at": ["nowhere"]}}
    benchmark = build_benchmark(node)
    rng = np.random.default_rng(0)
    scores = [drawn(split, rng) for split in (benchmark.id_test, *benchmark.near.values())]
    record = make_record(config={"benchmark": node, **changes.pop("config", {})})
    of_benchmark = {"name": "digits", "digest": benchmark.digest, "pristine": False, **changes}
    record = replace(record, benchmark=of_benchmark)
    record = replace(record, run_id=RunIdentity.of(record).run_id)
    results.write(record)
    ScoreStore(cache / "scores").write(record.run_id, scores)
    return benchmark, scores, record


def drawn(split, rng):
    n = len(split)
    scores, predictions = rng.normal(size=n).astype("f4"), rng.integers(0, 6, n)
    return SetScores.of_split(split.name, split.role, scores, split.labels, predictions)


def test_every_image_has_its_score_and_its_name_in_the_lists(results, tmp_path):
    benchmark, scores, record = digits_run(results, tmp_path / "cache")
    found = ob.load(record.run_id).images()
    assert found.attrs["unnamed"] == {}
    for s, split in zip(scores, (benchmark.id_test, *benchmark.near.values()), strict=True):
        rows = found[(found["set"] == s.name) & (found["role"] == str(s.role))]
        assert rows["image"].tolist() == list(split.keys)
        np.testing.assert_array_equal(rows["score"], s.scores)
    ids, ood = found[found["role"] == "id_test"], found[found["role"] == "near"]
    assert (ids["correct"] == (ids["label"] == ids["prediction"])).all()
    assert ood[["label", "correct"]].isna().all(axis=None)


def test_images_of_other_data_have_no_names_and_the_reason_is_said(results, tmp_path):
    _, _, record = digits_run(results, tmp_path / "cache", digest="ffff")
    found = ob.load(record.run_id).images()
    assert found["image"].isna().all()
    assert "digest" in found.attrs["unnamed"]["near/eight"]


def test_code_that_a_record_names_is_not_run_for_the_names(results, tmp_path):
    _, _, record = digits_run(results, tmp_path / "cache")
    loaded = ob.load(record.run_id)
    node = {**loaded.record.config["benchmark"], "extra": {"sources": [{"_target_": "os.system"}]}}
    result = replace(loaded, record=replace(loaded.record, config={"benchmark": node}))
    assert "os.system" in result.images().attrs["unnamed"]["id_test/digits"]
