"""Backbones without a classifier of their own: a head is fitted once for each cache, recorded, and read back."""

import pytest
import torch

from openbench.backbones import heads
from openbench.compose.config import composed
from openbench.config.build import build
from openbench.config.folders import shipped
from openbench.core.request import Field, Perturb, Request
from openbench.core.runtime import Runtime
from openbench.data.build import build_benchmark
from openbench.engine.prepare import ready_backbone
from openbench.errors import ConfigError, NotApplicableError
from openbench.features.store import FeatureStore
from openbench.paths import config_dir

from ..logged import logged  # noqa: TID252 — the tests are no package
from ..prepared import job, run_config  # noqa: TID252 — the tests are no package

DIGITS = ["+benchmark=openset_digits", "+benchmark.id.train.limit=90", "metrics.families=[ranking]"]
DIGITS += [f"+benchmark.{place}.limit=30" for place in ("id.val", "id.test", "near.unknown")]
SMALL = {"embed_dim": 16, "depth": 4, "num_heads": 2}
FOUNDATION = sorted(
    f.stem for f in (config_dir() / "backbone").glob("*.yaml") if "\nhead: linear_probe" in f.read_text()
)
SIDE = 28  # two patches of 14 pixels


@pytest.fixture(autouse=True)
def large_penalties(monkeypatch):
    """The linear probe converges in a few steps."""
    monkeypatch.setattr(heads, "LAMBDAS", heads.LAMBDAS[:2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def words(folder):
    """The words that choose a small DINOv2 with random weights."""
    chosen = [*DIGITS, "backbone=dinov2_vits14", "backbone.weights=null", f"backbone.options.img_size={SIDE}"]
    chosen += [f"+backbone.options.{key}={value}" for key, value in SMALL.items()]
    chosen += [f"backbone.preprocess.resize={SIDE}", f"backbone.preprocess.crop={SIDE}"]
    config = composed("run", chosen).config
    untrained = build(config["backbone"], "backbone", num_classes=6)
    torch.save(untrained.initialise(3).module().state_dict(), folder / "vit.pt")
    return [*chosen, f"backbone.weights='{folder / 'vit.pt'}'"]


def ready(config, runtime):
    benchmark, setting = build_benchmark(config["benchmark"]), Runtime.from_config(runtime)
    with logged() as said:
        return ready_backbone(config, benchmark, setting)[0], benchmark, FeatureStore(setting.features), said


def test_a_head_is_fitted_once_recorded_and_read_back(tmp_path, words):
    first, benchmark, store, said = ready(*job(tmp_path, *words))
    assert said[0] == "head: linear_probe of dinov2_vits14 is fitted on 90 images of digits"
    assert first.name == "dinov2_vits14_linear_probe"
    again, _, _, silent = ready(*job(tmp_path, *words))
    assert silent == []
    assert again.digest == first.digest
    assert torch.equal(again.head.weight, first.head.weight)
    record = run_config(*job(tmp_path, *words)).record
    assert record.backbone["name"] == first.name
    assert record.backbone["head"] == first.fitted_head
    assert record.backbone["head"]["sha256"]
    x = store.get(first, benchmark.id_test, Request(fields=frozenset({Field.LOGITS})))
    accuracy = float((x.logits.argmax(1).numpy() == benchmark.id_test.labels).mean())
    assert record.metrics["id"]["accuracy"] == pytest.approx(accuracy)
    (kept,) = (tmp_path / "cache/heads").glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:-1] + b"x")
    repaired, _, _, said = ready(*job(tmp_path, *words))
    assert said[0].endswith("has changed since it was written — fitted again")
    assert torch.equal(repaired.head.weight, first.head.weight)


def test_heads_share_the_features_and_differ_in_identity(folder, words):
    node, runtime = job(folder, *words)  # composed once
    ready(node, runtime)  # caches the features
    config = {k: {**node, "backbone": {**node["backbone"], "head": k}} for k in ("nearest_mean", "knn", "linear_probe")}
    made = [ready(of_kind, runtime)[0] for of_kind in config.values()]
    assert len({backbone.digest for backbone in made}) == 3
    assert [backbone.passes for backbone in made] == [0, 0, 0]
    knn = run_config(config["knn"], runtime).record
    assert knn.backbone["head"] == {"kind": "knn"}
    for method, read in (("odin", "input gradients"), ("react", "the head")):
        wrong = f"'{method}' reads {read}, but backbone 'dinov2_vits14_knn' has feat"
        with pytest.raises(NotApplicableError, match=wrong):
            run_config({**config["knn"], "method": {**shipped("method", method), "_name_": method}}, runtime)


def test_methods_that_take_gradients_see_the_linear_head(folder, words):
    backbone, benchmark, store, _ = ready(*job(folder, *words))
    still = Request(perturb=Perturb(epsilon=0.0))
    clean, moved = (store.get(backbone, benchmark.id_test, request) for request in (Request(), still))
    assert moved.logits.numpy() == pytest.approx(clean.logits.numpy(), abs=1e-4)
    step = store.get(backbone, benchmark.id_test, Request(perturb=Perturb(epsilon=0.01))).logits
    assert not torch.allclose(step, clean.logits, atol=1e-4)
    with backbone.frozen() as whole:
        assert whole(torch.zeros(2, 3, SIDE, SIDE)).shape == (2, 6)


@pytest.mark.parametrize("stem", FOUNDATION)
def test_every_foundation_model_runs_small(stem):
    node = {**(shipped("backbone", stem) or {}), "weights": None}
    assert node["name"] == stem
    side = 2 * (14 if "14" in stem else 16)
    options = {**node["options"], **SMALL, "img_size": side}
    preprocess = {**node["preprocess"], "resize": side, "crop": side}
    backbone = build({**node, "options": options, "preprocess": preprocess}, stem)
    assert (backbone.name, backbone.head_to_fit, backbone.num_classes) == (stem, "linear_probe", 0)
    found = backbone.outputs(torch.randn(2, 3, side, side), Request(fields=frozenset({Field.FEATURES})))
    assert found.features.shape == (2, 16)
    assert found.features.isfinite().all()


def test_a_network_that_does_not_take_the_images_is_an_error_before_it_is_trained(tmp_path):
    words = ["backbone=timm", "backbone.model=test_resnet", "backbone.weights=null", "+backbone.options.in_chans=1"]
    with pytest.raises(ConfigError, match=r"'timm_test_resnet' fails on an image of 3×\d+×\d+ .* — change its prepr"):
        ready(*job(tmp_path, *DIGITS, *words))
    words = ["backbone=torchvision", "backbone.model=alexnet", "backbone.weights=null", "backbone.preprocess=null"]
    with pytest.raises(ConfigError, match=r"'torchvision_alexnet' fails on an image of 3×16×16 .*too small"):
        ready(*job(tmp_path, *DIGITS, *words))


def test_a_head_is_named_by_what_it_was_fitted_on(folder, words):
    backbone, benchmark, _, _ = ready(*job(folder, *words))
    fewer, other, _, said = ready(*job(folder, *words, "benchmark.id.train.limit=80"))
    assert said
    assert other.id_train.digest != benchmark.id_train.digest
    assert fewer.digest != backbone.digest
