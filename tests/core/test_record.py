"""What names a run, spelt out here: a record made today must be found tomorrow."""

import hashlib
import json
from dataclasses import replace

import pytest

from openbench.core.record import SCHEMA, ResultRecord, RunIdentity
from openbench.digest import digest
from openbench.errors import RecordError

from ..results.records import make_record  # noqa: TID252 — the tests are no package

CONFIG = {"method": {"k": 50}, "seed": 0, "benchmark": {"name": "toy"}, "backbone": {"name": "net"}}
METHOD, BENCHMARK, BACKBONE = {"name": "knn", "version": 2}, {"digest": "bench"}, {"digest": "back", "training": None}
RELEASED = RunIdentity({**CONFIG, "training": {"epochs": 1}}, METHOD, BENCHMARK, BACKBONE)


def named(content):
    """The first 16 hexadecimal digits of the SHA-256 of a document with ordered keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def document(config, **more):
    return {"config": config, "method": ["knn", 2], "benchmark": "bench", "backbone": "back", **more}


def test_a_run_of_released_weights_is_named_by_method_metrics_and_digests_not_by_a_training():
    assert RELEASED.run_id == named(document({"method": {"k": 50}, "seed": 0}))


def test_a_run_of_trained_weights_is_named_by_its_training_without_the_name_of_the_augmentation():
    config = {**CONFIG, "training": {"epochs": 1, "_augment_": "pixmix"}}
    trained = RunIdentity(config, METHOD, BENCHMARK, {**BACKBONE, "training": "job"})
    assert trained.run_id == named(document({"method": {"k": 50}, "seed": 0, "training": {"epochs": 1}}))


def test_images_and_outliers_and_code_enter_the_name_only_where_there_are_such():
    config = {"method": {"k": 50}, "seed": 0}
    images, outliers, texts = {"ood_train": "x"}, {"outliers_digest": "y"}, [{"digest": "z"}]
    with_images = replace(RELEASED, benchmark={**BENCHMARK, "images": images})
    assert with_images.run_id == named(document(config, images=images))
    assert replace(RELEASED, backbone=BACKBONE | outliers).run_id == named(document(config, outliers="y"))
    assert replace(RELEASED, method={**METHOD, "texts": texts}).run_id == named(document(config, texts=["z"]))
    for key in ("sources", "uncommitted"):
        made_by = {key: {"x": "1"}}
        assert replace(RELEASED, provenance=made_by).run_id == named(document(config, **made_by))


def test_a_record_is_read_back_and_another_schema_or_key_is_refused():
    record = make_record()
    content = json.loads(json.dumps(record.to_dict()))
    assert content["schema"] == SCHEMA == 2
    assert ResultRecord.from_dict(content) == record  # older ones say neither their overrides nor a digest
    assert not content.keys() & {"overrides", "config_digest"}
    whole = replace(record, overrides=["method=knn"], config_digest=digest(record.config))
    assert ResultRecord.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
    for wrong in (0, 1, 3, True, 2.0, "2"):
        with pytest.raises(RecordError, match=r"here: schema .* reads schema 2"):
            ResultRecord.from_dict({**content, "schema": wrong}, "here")
    with pytest.raises(RecordError, match=r"^record: .*missing keys \['counts'\], unknown keys \['extra'\]"):
        ResultRecord.from_dict({**{k: v for k, v in content.items() if k != "counts"}, "extra": 1})


def test_a_record_has_the_name_of_the_run_that_made_it():
    record = ResultRecord("id", CONFIG, BENCHMARK, BACKBONE, METHOD, {}, [], {}, "", {}, {"sources": {"mine": "1"}})
    assert RunIdentity.of(record).run_id == named(document({"method": {"k": 50}, "seed": 0}, sources={"mine": "1"}))
    changed = replace(RunIdentity.of(record), provenance={**record.provenance, "uncommitted": {"a.py": "2"}})
    assert changed.run_id != changed.committed.run_id == RunIdentity.of(record).run_id
