"""The probe: whatever a network or its preprocessing reads from elsewhere, its numbers are its own."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import openbench as ob
from openbench.backbones.anatomy import Anatomy
from openbench.backbones.network import NetworkBackbone
from openbench.errors import ConfigError, RecordError
from openbench.results.records.store import RecordStore

from .own_models import DIGITS, DIGITS_PREPROCESS, Small, small

ARGS = SimpleNamespace(gain=1.0)


class ReadsGlobal(Small):
    def forward(self, x):
        return super().forward(x * ARGS.gain)


class Dropping(Small):
    def forward(self, x):
        return self.fc(nn.functional.dropout(self.pooled(x), 0.5))


class InTraining(Small):
    """What Monte-Carlo dropout is often written like."""

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        self.drop.train()
        return self.fc(self.drop(self.pooled(x)))


class BatchStatistics(Small):
    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.norm = nn.BatchNorm2d(12, track_running_stats=False)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3)))


def of_a_config(name: str, num_classes: int) -> NetworkBackbone:
    """A backbone that a config of the user's names."""
    anatomy = Anatomy("fc", {}, "nchw", 0)
    backbone = NetworkBackbone(
        name, "readsglobal", lambda: small(kind=ReadsGlobal), lambda _: anatomy, preprocess=DIGITS_PREPROCESS
    )
    return backbone.load_state(small(kind=ReadsGlobal).state_dict(), "the test")


def near(results):
    (result,) = results.values()
    return result.metrics["near"]["auroc"]


def reused(results):
    return any("reused: nothing was computed" in note for result in results.values() for note in result.notes)


def brightened(image):
    """Black stays black and white stays white: nothing that is measured of it tells the gain."""
    return (torch.from_numpy(np.array(image.resize((16, 16)))).permute(2, 0, 1) / 255) ** ARGS.gain


def check_is_another(evaluate, tmp_path, model, change, restore, **given):
    """A change that no file shows makes another network, whose numbers are those of a fresh cache, and are reused."""
    first = evaluate(model, **given)
    change()
    try:
        second, again = evaluate(model, **given), evaluate(model, **given)
        fresh = evaluate(model, cache=tmp_path / "fresh", results=tmp_path / "fresh results", **given)
    finally:
        restore()
    assert near(second) == near(fresh) != near(first)
    (one,), (other,) = first.values(), second.values()
    assert one.record.run_id != other.record.run_id
    # Another preprocess is known by its pixels, before the network is asked.
    told = any("gave other outputs for the same images before" in note for note in other.notes)
    assert told == (given.get("preprocess") is not brightened)
    assert not reused(second)
    assert reused(again)
    assert reused(evaluate(model, **given))


@pytest.fixture
def gain(monkeypatch):
    monkeypatch.setattr(ARGS, "gain", 1.0)
    return lambda value: setattr(ARGS, "gain", value)


def test_a_global_that_preprocess_reads(evaluate, tmp_path, gain):
    check_is_another(evaluate, tmp_path, small(), lambda: gain(3.0), lambda: gain(1.0), preprocess=brightened)


def test_a_global_that_forward_reads(evaluate, tmp_path, gain):
    check_is_another(evaluate, tmp_path, small(kind=ReadsGlobal), lambda: gain(-3.0), lambda: gain(1.0))


def test_forward_that_is_replaced_on_the_class(evaluate, tmp_path, monkeypatch):
    whole = ReadsGlobal.forward
    change = lambda: monkeypatch.setattr(ReadsGlobal, "forward", lambda self, x: whole(self, -x))  # noqa: E731
    check_is_another(evaluate, tmp_path, small(kind=ReadsGlobal), change, monkeypatch.undo)


def test_records_alone_and_cached_features_alone_are_compared(evaluate, tmp_path, gain):
    first = evaluate(small(kind=ReadsGlobal))
    gain(-3.0)
    by_record = evaluate(small(kind=ReadsGlobal), cache=tmp_path / "empty")
    by_cache = evaluate(small(kind=ReadsGlobal), results=tmp_path / "none")
    assert near(by_record) == near(by_cache) != near(first)
    mixed = evaluate(small(kind=ReadsGlobal), cache=tmp_path / "other", results=tmp_path / "other")
    assert near(mixed) == near(by_cache)
    mixed = evaluate(small(kind=ReadsGlobal), cache=tmp_path / "other")  # a cache of one network, a record of another
    assert near(mixed) == near(by_cache)


def test_a_network_that_a_config_of_the_users_names_is_asked(evaluate, tmp_path, gain):
    (tmp_path / "configs" / "backbone").mkdir(parents=True)
    (tmp_path / "configs" / "backbone" / "mine.yaml").write_text(f"_target_: {__name__}.of_a_config\nname: mine\n")
    given = {"preprocess": None, "config_dir": tmp_path / "configs"}
    check_is_another(evaluate, tmp_path, "mine", lambda: gain(-3.0), lambda: gain(1.0), **given)


def test_a_detector_refuses_a_network_that_draws():
    images = [np.full((16, 16, 3), shade, np.uint8) for shade in range(0, 240, 10)]
    with pytest.raises(ConfigError, match="model 'dropping' is not deterministic"):
        ob.Detector(small(kind=Dropping), preprocess=DIGITS_PREPROCESS, method="msp").fit(images)


def test_another_benchmark_with_the_same_images_does_not_reuse_them(evaluate, gain, tmp_path):
    """The benchmarks share their OOD set alone."""
    evaluate(small(kind=ReadsGlobal))
    gain(-3.0)
    fewer = [word.replace("id.test.limit=30", "id.test.limit=20") for word in DIGITS]
    second = evaluate(small(kind=ReadsGlobal), overrides=fewer)
    folders = {"cache": tmp_path / "fresh", "results": tmp_path / "fresh results"}
    fresh = evaluate(small(kind=ReadsGlobal), overrides=fewer, **folders)
    assert near(second) == near(fresh)


def test_a_variant_in_a_record_names_no_path(evaluate, tmp_path):
    (found,) = evaluate(small()).values()
    outside = {**found.record.provenance, "probe": {**found.record.provenance["probe"], "variant": "../../outside"}}
    with pytest.raises(RecordError, match="variant"):
        RecordStore(tmp_path / "results").write(replace(found.record, run_id="0" * 16, provenance=outside))


def test_one_activation_at_other_places_is_another_network(evaluate):
    """The modules that `named_children` lists are the same ones: it leaves out those that it has listed before."""

    def network(*order):
        torch.manual_seed(0)
        acts = {"relu": nn.ReLU(), "tanh": nn.Tanh()}
        conv, pool = nn.Conv2d(3, 12, 5, stride=4), nn.AdaptiveAvgPool2d(1)
        first = (acts["relu"], acts["tanh"], nn.BatchNorm2d(12).eval())
        return nn.Sequential(conv, *first, *(acts[name] for name in order), pool, nn.Flatten(), nn.Linear(12, 6))

    found = [evaluate(network(*order)) for order in (("tanh", "relu"), ("relu", "relu"), ("relu", "tanh"))]
    assert len({next(iter(results.values())).record.run_id for results in found}) == 3
    assert not any(map(reused, found))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Dropping, "model 'dropping' is not deterministic in eval mode: .* differ by up to"),
        (InTraining, "model 'intraining' is not deterministic in eval mode: drop is in training mode"),
        (BatchStatistics, "an output depends on the batch|fails on a batch of 1 images"),
    ],
)
def test_a_network_that_draws_or_mixes_the_images_of_a_batch_is_refused(evaluate, kind, says):
    with pytest.raises(ConfigError, match=says):
        evaluate(small(kind=kind), batch_size=16)


def test_a_preprocess_that_draws_is_refused(evaluate):
    with pytest.raises(ConfigError, match="preprocess gives other pixels each time it is called"):
        evaluate(small(), preprocess=lambda image: torch.rand(3, 8, 8))
