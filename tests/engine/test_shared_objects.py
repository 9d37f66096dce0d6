"""What jobs of a sweep share: opened and loaded once, and no number or name in a record differs for it."""

from unittest.mock import Mock

import pytest

from openbench.core.runtime import Runtime
from openbench.engine import prepare
from openbench.engine.prepare import SharedObjects
from openbench.engine.provenance import TrainingInfo

from ..prepared import run_config  # noqa: TID252 — the tests are no package


@pytest.fixture
def counted(monkeypatch):
    """How often a benchmark was opened and a backbone made ready."""
    calls = {name: Mock(wraps=getattr(prepare, name)) for name in ("load_benchmark", "ready_backbone")}
    for name, call in calls.items():
        monkeypatch.setattr(prepare, name, call)
    return lambda: tuple(call.call_count for call in calls.values())


METHODS = ("msp.MSP", "energy.Energy", "mls.MLS")


def test_jobs_open_the_benchmark_and_load_the_network_once(config, runtime, counted):
    shared = SharedObjects()
    for method in METHODS:
        run_config(config(method), runtime, shared=shared)
    assert counted() == (1, 1)


def test_records_are_those_of_jobs_that_share_nothing(config, tmp_path, runtime):
    methods = ("fdbd.FDBD", *METHODS)
    run_config(config("fdbd.FDBD", seed=1), {**runtime, "results": tmp_path / "first"})  # extracts features

    def records(results, shared):
        found = [
            vars(run_config(config(m), {**runtime, "results": tmp_path / results}, shared=shared).record)
            for m in methods
        ]
        for record in found:
            provenance = record.pop("provenance")
            # Times and memory differ from run to run.
            record["provenance"] = {k: provenance[k] for k in ("device", "passes", "reused") if k in provenance}
            record["keys"] = set(provenance)
        return found

    apart = records("apart", None)
    assert apart == records("together", SharedObjects())
    assert all(record["provenance"]["reused"] for record in apart)


def test_another_training_set_benchmark_seed_or_runtime_is_not_taken_for_the_same(config, runtime, counted):
    shared = SharedObjects()
    run_config(config("msp.MSP"), runtime, shared=shared)
    renamed = {**config("msp.MSP")["benchmark"], "name": "other"}
    run_config(config("msp.MSP", benchmark=renamed), runtime, shared=shared)
    assert counted() == (2, 2)
    run_config(config("msp.MSP", seed=2), runtime, shared=shared)
    assert counted() == (2, 3)
    run_config(config("msp.MSP", seed=2), {**runtime, "batch_size": 5}, shared=shared)
    assert counted() == (2, 4)


def test_a_method_that_runs_the_network_itself_has_one_of_its_own(config, runtime, counted):
    shared = SharedObjects()
    run_config(config("msp.MSP"), runtime, shared=shared)
    run_config(config("rankfeat.RankFeat"), runtime, shared=shared)
    assert counted() == (1, 2)
    run_config(config("mls.MLS"), runtime, shared=shared)
    assert counted() == (1, 2)


@pytest.mark.parametrize(("reused", "policy", "made"), [("", "auto", 2), ("0.1, today", "auto", 1), ("x", "force", 2)])
def test_weights_that_were_trained_now_are_not_kept(config, runtime, monkeypatch, counted, reused, policy, made):
    # The next job reads them back, and its record says when they were trained.
    ready = prepare.ready_backbone

    def trained(*arguments):
        return ready(*arguments)[0], TrainingInfo("cross_entropy", reused=reused)

    monkeypatch.setattr(prepare, "ready_backbone", trained)
    shared, how = SharedObjects(), Runtime.from_config({**runtime, "train": policy})
    for _ in range(2):
        prepare.prepare(config("msp.MSP"), how, shared=shared)
    assert counted()[1] == made
