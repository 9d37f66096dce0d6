"""What jobs of a sweep share: opened and loaded once, and no number or name in a record differs for it."""

import numpy as np
import pytest
from PIL import Image as Pillow
from safetensors.torch import save_file

from openbench.backbones.cifar import resnet
from openbench.core.preprocess import Preprocess
from openbench.engine import api
from openbench.engine.kept import Kept
from openbench.engine.outcomes.learnt import Learnt
from openbench.engine.runtime import Runtime

CLASSES = ["first", "second"]
FOLDER = {"folder": {"_target_": "openbench.data.sources.base.ImageFolder"}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images, their manifests and the weights of a network."""
    place = tmp_path_factory.mktemp("kept")
    draw = np.random.default_rng(0)
    for name in ("train", "val", "test", "ood"):
        lines = []
        for label, title in enumerate(CLASSES):
            (place / name / str(label)).mkdir(parents=True)
            for i in range(3):
                pixels = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Pillow.fromarray(pixels).save(place / name / str(label) / f"{i}.png")
            shown = "van" if name == "ood" else title
            lines.append(f"key: {name}/{label}/{{index}}.png\n{shown}: 0-2\n")
        (place / f"{name}.txt").write_text("".join(lines))
    state = resnet("own", "resnet8", num_classes=2, preprocess=Preprocess(16, 16)).initialise(1).module().state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, place / "weights.safetensors")
    return place


@pytest.fixture
def config(place, monkeypatch):
    """A config of `run` less the method."""
    monkeypatch.setenv("OPENBENCH_DATA", str(place))

    def part(name):
        return {"name": name, "manifest": str(place / f"{name}.txt"), "sources": FOLDER}

    nodes = {
        "benchmark": {
            "name": "own",
            "classes": CLASSES,
            "declared": ["far.ood"],
            "id": {name: part(name) for name in ("train", "val", "test")},
            "far": {"ood": part("ood")},
            "preprocess": {"resize": 16, "crop": 16, "mean": [0.5] * 3, "std": [0.5] * 3},
        },
        "backbone": {
            "_target_": "openbench.backbones.cifar.resnet",
            "name": "own",
            "model": "resnet8",
            "weights": str(place / "weights.safetensors"),
            "num_classes": 2,
        },
        "training": {"_name_": "cross_entropy"},
        "tune": {"strategy": "none"},
        "metrics": {"replicates": 0},
        "seed": 0,
    }

    def made(method, **others):
        name = method.rpartition(".")[2].lower()
        return {**nodes, "method": {"_name_": name, "_target_": f"openbench.methods.{method}"}, **others}

    return made


@pytest.fixture
def counted(monkeypatch):
    """How often a benchmark was opened and a backbone made ready."""
    counts = {"opened": 0, "ready_backbone": 0}

    def counting(name):
        original = getattr(api, name)

        def call(*arguments, **named):
            counts[name] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(api, name, call)

    for name in counts:
        counting(name)
    return counts


def setting(tmp_path, results="results"):
    return {"cache": tmp_path / "cache", "results": tmp_path / results, "progress": False, "device": "cpu"}


METHODS = ("msp.MSP", "energy.Energy", "mls.MLS")


def test_jobs_open_the_benchmark_and_load_the_network_once(config, tmp_path, counted):
    given = api.Given(kept=Kept())
    for method in METHODS:
        api.run(config(method), setting(tmp_path), given=given)
    assert counted == {"opened": 1, "ready_backbone": 1}


@pytest.mark.slow
def test_records_are_those_of_jobs_that_share_nothing(config, tmp_path):
    methods = ("fdbd.FDBD", *METHODS)
    api.run(config("fdbd.FDBD", seed=1), setting(tmp_path, "first"))  # extracts, so that both sides find the features

    def records(results, given):
        found = [vars(api.run(config(m), setting(tmp_path, results), given=given).record) for m in methods]
        for record in found:
            provenance = record.pop("provenance")
            # Times and memory differ from run to run.
            record["provenance"] = {k: provenance[k] for k in ("device", "passes", "reused") if k in provenance}
            record["keys"] = set(provenance)
        return found

    apart = records("apart", api.NOTHING)
    assert apart == records("together", api.Given(kept=Kept()))
    assert all(record["provenance"]["reused"] for record in apart)


def test_another_training_set_benchmark_seed_or_runtime_is_not_taken_for_the_same(config, tmp_path, counted):
    given = api.Given(kept=Kept())
    api.run(config("msp.MSP"), setting(tmp_path), given=given)
    renamed = {**config("msp.MSP")["benchmark"], "name": "other"}
    api.run(config("msp.MSP", benchmark=renamed), setting(tmp_path), given=given)
    assert counted == {"opened": 2, "ready_backbone": 2}
    api.run(config("msp.MSP", seed=2), setting(tmp_path), given=given)
    assert counted == {"opened": 2, "ready_backbone": 3}
    api.run(config("msp.MSP", seed=2), {**setting(tmp_path), "batch_size": 5}, given=given)
    assert counted == {"opened": 2, "ready_backbone": 4}


def test_a_method_that_runs_the_network_itself_has_one_of_its_own(config, tmp_path, counted):
    given = api.Given(kept=Kept())
    api.run(config("msp.MSP"), setting(tmp_path), given=given)
    api.run(config("rankfeat.RankFeat"), setting(tmp_path), given=given)
    assert counted == {"opened": 1, "ready_backbone": 2}
    api.run(config("mls.MLS"), setting(tmp_path), given=given)
    assert counted == {"opened": 1, "ready_backbone": 2}


@pytest.mark.parametrize(("reused", "policy", "made"), [("", "auto", 2), ("0.1, today", "auto", 1), ("x", "force", 2)])
def test_weights_that_were_trained_now_are_not_kept(tmp_path, reused, policy, made):
    # The next job reads them back, and its record says when they were trained.
    kept, calls = Kept(), []

    def make():
        calls.append(1)
        return object(), Learnt("cross_entropy", reused=reused)

    for _ in range(2):
        kept.backbone({"backbone": {}}, False, Runtime(cache=tmp_path, results=tmp_path, train=policy), make)
    assert len(calls) == made


def test_two_benchmarks_are_kept_at_most(monkeypatch):
    kept, made = Kept(), []
    for name in ("a", "b", "a", "c", "a", "b"):
        kept.benchmark({"benchmark": name}, False, lambda name=name: made.append(name))
    assert made == ["a", "b", "c", "b"]


def test_nothing_is_kept_of_what_failed(monkeypatch):
    kept = Kept()
    with pytest.raises(ZeroDivisionError):
        kept.benchmark({"benchmark": "a"}, False, lambda: 1 / 0)
    assert kept.benchmark({"benchmark": "a"}, False, lambda: "opened") == "opened"
