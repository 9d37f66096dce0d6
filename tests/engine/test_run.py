"""How a run ends: written, skipped, verified, or an error; also when another job was faster."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from openbench.core.record import ResultRecord
from openbench.core.request import Role
from openbench.core.scores import SplitScores
from openbench.engine import run as engine
from openbench.engine.runtime import Runtime
from openbench.errors import RecordError
from openbench.results.store import RecordStore

RECORD = ResultRecord(
    run_id="0123456789abcdef",
    config={"seed": 0},
    benchmark={"name": "toy", "digest": "a", "pristine": True, "deviations": []},
    backbone={"name": "tiny", "digest": "b", "training": None},
    method={"name": "msp", "version": 1, "reference": "-", "params": {}},
    tuned={},
    trials=[],
    metrics={"near": {"auroc": 0.9}},
    header="-",
    counts={"near/a": {"n": 5, "expected": 5}},
    provenance={"utc": "2026-01-01T00:00:00+00:00"},
)
SPEC = SimpleNamespace(run_id=RECORD.run_id)


@pytest.fixture
def runtime(tmp_path) -> Runtime:
    return Runtime(cache=tmp_path / "cache", results=tmp_path / "results")


def scores() -> list[SplitScores]:
    return [SplitScores("a", Role.NEAR, np.zeros(5, np.float32), np.full(5, -1), np.zeros(5, np.int64))]


def computing(monkeypatch, record: ResultRecord, faster: ResultRecord | None = None, store: RecordStore | None = None):
    """Let a run compute `record`, while another job writes `faster`."""

    def compute(spec, runtime, say):
        if faster is not None:
            store.write(faster)
        return record, scores()

    monkeypatch.setattr(engine, "compute", compute)


def test_a_run_writes_its_record_and_the_next_one_finds_it(monkeypatch, runtime):
    computing(monkeypatch, RECORD)
    assert engine.run(SPEC, runtime).status == "written"
    computing(monkeypatch, replace(RECORD, metrics={}))
    found = engine.run(SPEC, runtime)
    assert (found.status, found.record) == ("skipped", RECORD)


def test_of_two_jobs_the_slower_one_verifies_what_the_faster_one_wrote(monkeypatch, runtime):
    """Only how it was made may differ."""
    mine = replace(RECORD, provenance={"utc": "2026-01-02T00:00:00+00:00"})
    computing(monkeypatch, mine, faster=RECORD, store=RecordStore(runtime.records))
    found = engine.run(SPEC, runtime)
    assert (found.status, found.record) == ("verified", RECORD)
    assert len(RecordStore(runtime.records)) == 1


@pytest.mark.parametrize("policy", ["skip", "verify"])
def test_two_jobs_that_disagree_are_an_error(monkeypatch, runtime, policy):
    mine = replace(RECORD, metrics={"near": {"auroc": 0.8}})
    computing(monkeypatch, mine, faster=RECORD, store=RecordStore(runtime.records))
    with pytest.raises(RecordError, match=r"0123456789abcdef does not reproduce: 1 values differ — metrics.near.auroc"):
        engine.run(SPEC, replace(runtime, on_existing=policy))
    assert RecordStore(runtime.records).find(RECORD.run_id)[0] == RECORD


def test_a_record_from_another_job_is_an_error_where_any_is(monkeypatch, runtime):
    computing(monkeypatch, RECORD, faster=RECORD, store=RecordStore(runtime.records))
    with pytest.raises(RecordError, match="written once"):
        engine.run(SPEC, replace(runtime, on_existing="error"))


def test_a_folder_that_cannot_be_written_stays_an_error(monkeypatch, runtime):
    def refused(self, record):
        raise RecordError("results folder cannot be written")

    computing(monkeypatch, RECORD)
    monkeypatch.setattr(RecordStore, "write", refused)
    with pytest.raises(RecordError, match="cannot be written"):
        engine.run(SPEC, runtime)
