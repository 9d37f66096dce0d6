"""How a run ends: written, skipped, verified, or an error; also when another job was faster."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from openbench.backbones.cifar import resnet
from openbench.core.method import Method
from openbench.core.preprocess import Preprocess
from openbench.core.record import ResultRecord
from openbench.core.request import Request, Role
from openbench.core.runtime import Runtime
from openbench.core.scores import SetScores
from openbench.digest import OMIT_IF_DEFAULT
from openbench.engine import run as engine
from openbench.engine.provenance import TrainingInfo, describe_backbone
from openbench.engine.run import RunSpec, plain_params
from openbench.errors import RecordError
from openbench.methods.double_score import DoubleScore
from openbench.methods.msp import MSP
from openbench.metrics.suite import MetricOptions
from openbench.results.records.store import RecordStore
from tests.results.records import make_record

from .toy import split, toy

RECORD = make_record(run_id="0123456789abcdef", metrics={"near": {"auroc": 0.9}})
SPEC = SimpleNamespace(run_id=RECORD.run_id, method=MSP())


@pytest.fixture
def runtime(tmp_path) -> Runtime:
    return Runtime(cache=tmp_path / "cache", results=tmp_path / "results")


def scores() -> list[SetScores]:
    return [SetScores.of_split("a", Role.NEAR, np.zeros(5, np.float32), np.full(5, -1), np.zeros(5, np.int64))]


def computing(monkeypatch, record: ResultRecord, faster: ResultRecord | None = None, store: RecordStore | None = None):
    """Let a run compute `record`, while another job writes `faster`."""

    def compute(spec, runtime):
        if faster is not None:
            store.write(faster)
        return record, {record.run_id: scores()}

    monkeypatch.setattr(engine, "compute", compute)


def test_a_run_writes_its_record_and_the_next_one_finds_it(monkeypatch, runtime):
    computing(monkeypatch, RECORD)
    assert engine.run(SPEC, runtime).status == "written"
    computing(monkeypatch, replace(RECORD, metrics={}))
    found = engine.run(SPEC, runtime)
    assert (found.status, found.record) == ("skipped", RECORD)


@pytest.mark.parametrize("near", [0.9, 0.8])
def test_of_two_jobs_the_slower_one_verifies_what_the_faster_one_wrote(monkeypatch, runtime, near):
    mine = replace(RECORD, metrics={"near": {"auroc": near}}, provenance={"utc": "2026-01-02T00:00:00+00:00"})
    computing(monkeypatch, mine, faster=RECORD, store=RecordStore(runtime.records))
    if near == 0.9:
        found = engine.run(SPEC, runtime)
        assert (found.status, found.record) == ("verified", RECORD)
    else:
        with pytest.raises(RecordError, match=r"cdef does not reproduce: 1 values differ: metrics.near.auroc"):
            engine.run(SPEC, runtime)
    assert list(RecordStore(runtime.records)) == [RECORD]


def test_a_hyper_parameter_that_came_later_is_written_down_where_it_is_not_as_before():
    @dataclass
    class Grown(Method):
        needs: ClassVar[Request] = Request()
        reference: ClassVar[str] = "test"
        k: int = 5
        late: bool = field(default=True, metadata={OMIT_IF_DEFAULT: True})

        def score(self, x):
            return x.logits[:, 0]

    assert plain_params(Grown()) == {"k": 5}
    assert plain_params(Grown(late=False)) == {"k": 5, "late": False}
    both = DoubleScore(Grown(), Grown(7, late=False))
    name = Grown.__qualname__
    assert plain_params(both)["risk"] == f"{name}(k=5)"
    assert plain_params(both)["ood"] == f"{name}(k=7, late=False)"


def test_a_class_that_the_method_has_not_met_fits_no_image(monkeypatch):
    some = {"name": "some", "unread": False, "labels": np.arange(3)}
    splits = {role: SimpleNamespace(role=Role(role), **some) for role in ("id_val", "id_test")}
    benchmark = SimpleNamespace(name="toy", classes=("a", "b", "c"), **splits)
    p = np.array([[0.7, 0.2], [0.2, 0.6]], np.float32)
    monkeypatch.setattr(engine, "class_scores", lambda *_: 1 - p)
    values = engine._class_values(MSP(), SimpleNamespace(benchmark=benchmark, metrics=MetricOptions()), None)
    assert set(values) == {Role.ID_VAL, Role.ID_TEST}
    np.testing.assert_allclose(values[Role.ID_TEST]["class_scores"], [[0.3, 0.8, np.inf], [0.8, 0.4, np.inf]])
    np.testing.assert_allclose(
        values[Role.ID_TEST]["class_probabilities"], [[0.7, 0.2, 0.0], [0.2, 0.6, 0.0]], atol=1e-7
    )


def test_a_record_counts_the_passes_of_its_own_run_only(tmp_path):
    sizes = {"id_train": 4, "id_val": 5, "id_test": 6}
    parts = {role: split("a", Role(role), n) for role, n in sizes.items()}
    benchmark = toy(**parts, near={"n": split("n", Role.NEAR, 7)})
    backbone = resnet("toy", "resnet8", num_classes=2, preprocess=Preprocess(8, 8)).initialise(0)
    backbone.load_state(backbone.module().state_dict(), "random")
    spec = RunSpec(benchmark, backbone, MSP(), "msp", metrics=MetricOptions(families=("ranking",)))
    for cache, passes in (("first", 18), ("first", 0), ("second", 18)):
        runtime = Runtime(device="cpu", cache=tmp_path / cache, results=tmp_path, progress=False)
        record, _ = engine.compute(spec, runtime)
        assert record.provenance["passes"] == passes


def spec(training: dict, name: str | None = "cross_entropy") -> RunSpec:
    """A run of a training node; everything else stands in."""
    method = MSP()
    benchmark, backbone = SimpleNamespace(digest="a", splits=list), SimpleNamespace(digest="b")
    return RunSpec(benchmark, backbone, method, "msp", config={"training": training}, training_info=TrainingInfo(name))


def test_the_name_of_an_augmentation_is_recorded_and_changes_no_run_id(monkeypatch):
    monkeypatch.setattr("openbench.engine.run.version_of", lambda method: 1)
    recipe = {"augment": [{"_target_": "PixMix"}]}
    typed, listed = spec({"recipe": recipe, "_augment_": "pixmix"}), spec({"recipe": recipe})
    backbone = resnet("toy", "resnet8", num_classes=2, preprocess=Preprocess(8, 8))
    backbone.load_state(backbone.module().state_dict(), "random")
    described = [describe_backbone(backbone, s.training_info, s.config) for s in (typed, listed)]
    assert [one.get("augment") for one in described] == ["pixmix", None]
    assert typed.run_id == listed.run_id
    assert spec({"recipe": {"augment": []}}).run_id != listed.run_id
