"""Verifying a record: the same network, another one, or another run; nothing is ever written."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from openbench.core.method import version_of
from openbench.core.record import ResultRecord, RunIdentity
from openbench.core.runtime import Runtime
from openbench.engine import run as engine
from openbench.engine.provenance import TrainingInfo
from openbench.engine.run import check_material, recorded
from openbench.errors import NotReproducedError, RecordError
from openbench.methods.msp import MSP
from openbench.results.records.store import RecordStore
from tests.results.records import make_record

# Three seeds of one training: near AUROC .90, .91, .92.
SEEDS = {0: 0.90, 1: 0.91, 2: 0.92}
HERE = {"processor": "Xeon", "instructions": "AVX512", "device": "cpu", "threads": 2, "libraries": {"torch": "2"}}


def record(seed: int = 0, near: float = 0.90, **changes) -> ResultRecord:
    made = make_record(
        run_id=f"{seed:016x}",
        config={"benchmark": {"name": "toy"}, "seed": seed, "method": {"_name_": "msp"}},
        benchmark={"name": "toy", "digest": "images", "pristine": False, "deviations": ["far.x: dropped"]},
        backbone={
            "name": "tiny",
            "digest": f"net{seed}",
            "training": "cross_entropy",
            "weights_sha256": f"{seed}" * 64,
        },
        method={"name": "msp", "version": version_of(MSP()), "reference": "-", "params": {}},
        metrics={"near": {"auroc": near, "fpr95": 0.25}, "id": {"accuracy": 0.8, "n_id": 9000}},
        counts={"near/a": {"n": 9000, "expected": 9000}},
        provenance={"utc": "2026-01-01T00:00:00+00:00", "threads": 2},
    )
    return replace(made, **changes)


def spec_of(old: ResultRecord, **changes) -> SimpleNamespace:
    """The run of a record as it would be built here."""
    facts = {
        "run_id": old.run_id,
        "identity": RunIdentity.of(old),
        "benchmark": SimpleNamespace(name="toy", digest="images", deviations=("far.x: dropped",)),
        "backbone": SimpleNamespace(name="tiny", digest=old.backbone["digest"], weights_sha256="f" * 64),
        "method": MSP(),
        "method_name": "msp",
        "training_info": TrainingInfo(old.backbone["training"]),
    }
    return SimpleNamespace(**{**facts, **changes})


@pytest.fixture
def runtime(tmp_path) -> Runtime:
    store = RecordStore(tmp_path / "results")
    for seed, near in SEEDS.items():
        store.write(record(seed, near))
    return Runtime(cache=tmp_path / "cache", results=tmp_path / "results", on_existing="verify")


def verified(monkeypatch, runtime: Runtime, spec: SimpleNamespace, new: ResultRecord):
    """The outcome of verifying, with the folder seen to be untouched."""
    before = contents(runtime.records)
    monkeypatch.setattr(engine, "compute", lambda *_: (new, []))
    try:
        return engine.run(spec, runtime)
    finally:
        assert contents(runtime.records) == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_weights_reproduce_and_both_processors_are_named(monkeypatch, runtime):
    old = record(0)
    found = verified(monkeypatch, runtime, spec_of(old), replace(old, provenance=HERE))
    assert (found.status, found.record) == ("verified", old)
    assert found.notes[1] == (
        "recorded on a processor that the record does not name, 2 threads, repeated on Xeon (AVX512), 2 threads"
    )


def test_a_value_that_differs_is_named_with_both_numbers_before_the_processors(monkeypatch, runtime):
    old = record(0)
    new = record(0, 0.5, provenance=HERE)
    with pytest.raises(NotReproducedError, match=r"near\.auroc: 0\.9 was recorded, 0\.5 came out \(recorded on"):
        verified(monkeypatch, runtime, spec_of(old), new)


def test_other_weights_are_said_to_be_others_and_their_numbers_to_be_those_of_one_more_seed(monkeypatch, runtime):
    old = record(0)
    other = record(0, 0.915, run_id="e" * 16, backbone={**old.backbone, "digest": "here", "weights_sha256": "e" * 64})
    found = verified(monkeypatch, runtime, spec_of(old, run_id="e" * 16), other)
    assert (found.status, found.record) == ("compared", old)
    assert found.notes[0].startswith("not the same network: weights eeeeeeeeeeee, in the record 000000000000")
    # Mean .91, standard deviation .01; Student's 99.5 % quantile with 2 degrees of freedom is 9.925; √(1 + 1/3).
    # Three pairs of 81 million move no digit that is shown.
    half = 9.925 * 0.01 * (4 / 3) ** 0.5
    line = next(note for note in found.notes if "near AUROC" in note)
    assert line == (
        "  near AUROC: 90.00 recorded, 91.50 here, recorded seeds 90.00 … 92.00, one more may lie in "
        f"{100 * (0.91 - half):.2f} … 100.00"
    )


@pytest.mark.parametrize(
    ("near", "outcome"),
    [(0.80, nullcontext()), (0.79, pytest.raises(NotReproducedError, match="1 of 3 numbers are out"))],
)
def test_numbers_that_no_further_seed_would_give_do_not_reproduce(monkeypatch, runtime, near, outcome):
    old = record(0)
    other = record(0, near, run_id="e" * 16, backbone={**old.backbone, "digest": "here"})
    with outcome:
        assert verified(monkeypatch, runtime, spec_of(old, run_id="e" * 16), other).status == "compared"


def test_with_one_seed_recorded_the_numbers_are_set_side_by_side(monkeypatch, tmp_path, runtime):
    old = record(7, config={**record().config, "training": {"_target_": "another.Training"}, "seed": 7})
    RecordStore(runtime.records).write(old)
    elsewhere = {**old.backbone, "digest": "here"}
    other = replace(old, run_id="e" * 16, backbone=elsewhere, metrics={"near": {"auroc": 0.1}})
    found = verified(monkeypatch, runtime, spec_of(old, run_id="e" * 16), other)
    assert found.status == "compared"
    assert "  near AUROC: 90.00 recorded, 10.00 here" in found.notes
    assert "no other seed is recorded" in found.notes[-1]


@pytest.mark.parametrize(("libraries", "same"), [({"torch": "2", "pillow": "1"}, True), ({"torch": "3"}, False)])
def test_other_weights_from_the_same_processor_point_at_the_training(monkeypatch, runtime, libraries, same):
    old = record(8, provenance=HERE)
    RecordStore(runtime.records).write(old)
    here = {**HERE, "libraries": libraries}
    other = replace(old, run_id="e" * 16, backbone={**old.backbone, "digest": "here"}, provenance=here)
    found = verified(monkeypatch, runtime, spec_of(old, run_id="e" * 16), other)
    assert ("although processor, threads and libraries are the same" in found.notes[0]) is same


def test_other_images_are_refused_with_what_is_missing_on_either_side():
    fewer = SimpleNamespace(name="toy", digest="fewer", deviations=("near.a: 5 of 9000 images found",))
    said = r"cannot be verified: images differ .* here: near.a: 5 of 9000 images found; in the record: far.x: dropp"
    with pytest.raises(RecordError, match=said):
        check_material(record(0), fewer, MSP())


def test_a_newer_version_of_the_method_is_refused():
    class Newer(MSP):
        version: ClassVar[int] = 9

    with pytest.raises(RecordError, match=r"method 'msp' is at version 9, the record was made with \d — check"):
        check_material(record(0), spec_of(record(0)).benchmark, Newer())


def test_where_there_is_no_record_verifying_says_so_and_writes_none(monkeypatch, runtime):
    identity = RunIdentity.of(record(0, config={"seed": 0, "method": {"_name_": "msp", "k": 3}}))
    unknown = spec_of(record(0), run_id="e" * 16, identity=identity)
    with pytest.raises(RecordError, match=r"no record of this run in .* leave out"):
        verified(monkeypatch, runtime, unknown, record(0))


def test_a_record_of_other_sources_is_not_verified_by_these(runtime):
    """Numbers of an edited method would else be those of another run that happens to agree, or not."""
    old = record(0, provenance={"sources": {"mine": "1" * 64, "same": "3" * 64}})
    now = record(0, provenance={"sources": {"mine": "2" * 64, "same": "3" * 64}})
    with pytest.raises(RecordError, match="cannot be verified: mine changed since — restore"):
        engine.verify(spec_of(old, identity=RunIdentity.of(now)), runtime, (old, Path("x")))


def test_a_checkout_with_changes_can_verify_what_was_made_before_them(monkeypatch, runtime):
    old = record(0)
    changed = {"uncommitted": {"openbench/methods/msp.py": "1" * 64}}
    new = record(0, run_id="e" * 16, provenance=old.provenance | changed)
    spec = spec_of(old, run_id="e" * 16, identity=RunIdentity.of(new))
    RecordStore(runtime.records).write(replace(old, run_id=RunIdentity.of(old).run_id))
    assert verified(monkeypatch, runtime, spec, new).status == "verified"


def test_another_run_of_the_same_setting_stands_for_trained_weights_only(monkeypatch, runtime):
    trained = spec_of(record(0), run_id="e" * 16)
    assert recorded(RecordStore(runtime.records), trained)[0].config["method"] == {"_name_": "msp"}
    store = RecordStore(runtime.records)
    with pytest.raises(RecordError, match="no record of this run in"):
        recorded(store, spec_of(record(0), run_id="e" * 16, training_info=TrainingInfo()))
    released = record(0)
    released = replace(released, run_id="f" * 16, backbone={**released.backbone, "training": None})
    store.write(released)
    with pytest.raises(RecordError, match="no record of this run in"):
        recorded(store, spec_of(released, run_id="e" * 16, training_info=TrainingInfo()))


def test_a_bad_record_stands_in_nobodys_way_and_is_named(monkeypatch, runtime):
    store, old = RecordStore(runtime.records), record(0)
    store.path(old).with_name("bad.json").write_text("{}")
    assert verified(monkeypatch, runtime, spec_of(old), replace(old, provenance=HERE)).status == "verified"
    other = record(0, run_id="e" * 16, backbone={**old.backbone, "digest": "here"})
    found = verified(monkeypatch, runtime, spec_of(old, run_id="e" * 16), other)
    assert "skipped, not records: " in found.notes[0]
    assert "within the intervals of 3 recorded seeds" in found.notes[-1]
    with pytest.raises(RecordError, match=r"with other settings; skipped, not records: .*bad\.json"):
        recorded(store, spec_of(old, run_id="e" * 16, training_info=TrainingInfo()))
