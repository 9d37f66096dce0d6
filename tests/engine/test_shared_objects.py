"""What jobs of a sweep share: opened and loaded once, and no number or name in a record differs for it."""

import numpy as np
import pytest
from PIL import Image as Pillow
from safetensors.torch import save_file

from openbench.backbones.cifar import resnet
from openbench.core.preprocess import Preprocess
from openbench.core.runtime import Runtime
from openbench.engine import prepare
from openbench.engine.prepare import SharedObjects
from openbench.engine.provenance import TrainingInfo

from ..prepared import run_config  # noqa: TID252 — the tests are no package

CLASSES = ["first", "second"]
FOLDER = {"folder": {"_target_": "openbench.data.sources.base.ImageFolder"}}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images, their manifests and the weights of a network."""
    place = tmp_path_factory.mktemp("kept")
    draw = np.random.default_rng(0)
    for name in ("train", "val", "test", "ood"):
        lines = ["path,label\n"]
        for label, title in enumerate(CLASSES):
            (place / name / str(label)).mkdir(parents=True)
            for i in range(3):
                pixels = draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Pillow.fromarray(pixels).save(place / name / str(label) / f"{i}.png")
            shown = "van" if name == "ood" else title
            lines += [f"{name}/{label}/{i}.png,{shown}\n" for i in range(3)]
        (place / f"{name}.csv").write_text("".join(lines))
    state = resnet("own", "resnet8", num_classes=2, preprocess=Preprocess(16, 16)).initialise(1).module().state_dict()
    save_file({name: value.contiguous() for name, value in state.items()}, place / "weights.safetensors")
    return place


@pytest.fixture
def config(place, monkeypatch):
    """A config of `run` less the method."""
    monkeypatch.setenv("OPENBENCH_DATA", str(place))

    def part(name):
        return {"name": name, "manifest": str(place / f"{name}.csv"), "sources": FOLDER}

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
    counts = {"load_benchmark": 0, "ready_backbone": 0}

    def counting(name):
        original = getattr(prepare, name)

        def call(*arguments, **named):
            counts[name] += 1
            return original(*arguments, **named)

        monkeypatch.setattr(prepare, name, call)

    for name in counts:
        counting(name)
    return counts


def setting(tmp_path, results="results"):
    return {"cache": tmp_path / "cache", "results": tmp_path / results, "progress": False, "device": "cpu"}


METHODS = ("msp.MSP", "energy.Energy", "mls.MLS")


def test_jobs_open_the_benchmark_and_load_the_network_once(config, tmp_path, counted):
    shared = SharedObjects()
    for method in METHODS:
        run_config(config(method), setting(tmp_path), shared=shared)
    assert counted == {"load_benchmark": 1, "ready_backbone": 1}


def test_records_are_those_of_jobs_that_share_nothing(config, tmp_path):
    methods = ("fdbd.FDBD", *METHODS)
    run_config(config("fdbd.FDBD", seed=1), setting(tmp_path, "first"))  # extracts features for both

    def records(results, shared):
        found = [vars(run_config(config(m), setting(tmp_path, results), shared=shared).record) for m in methods]
        for record in found:
            provenance = record.pop("provenance")
            # Times and memory differ from run to run.
            record["provenance"] = {k: provenance[k] for k in ("device", "passes", "reused") if k in provenance}
            record["keys"] = set(provenance)
        return found

    apart = records("apart", None)
    assert apart == records("together", SharedObjects())
    assert all(record["provenance"]["reused"] for record in apart)


def test_another_training_set_benchmark_seed_or_runtime_is_not_taken_for_the_same(config, tmp_path, counted):
    shared = SharedObjects()
    run_config(config("msp.MSP"), setting(tmp_path), shared=shared)
    renamed = {**config("msp.MSP")["benchmark"], "name": "other"}
    run_config(config("msp.MSP", benchmark=renamed), setting(tmp_path), shared=shared)
    assert counted == {"load_benchmark": 2, "ready_backbone": 2}
    run_config(config("msp.MSP", seed=2), setting(tmp_path), shared=shared)
    assert counted == {"load_benchmark": 2, "ready_backbone": 3}
    run_config(config("msp.MSP", seed=2), {**setting(tmp_path), "batch_size": 5}, shared=shared)
    assert counted == {"load_benchmark": 2, "ready_backbone": 4}


def test_a_method_that_runs_the_network_itself_has_one_of_its_own(config, tmp_path, counted):
    shared = SharedObjects()
    run_config(config("msp.MSP"), setting(tmp_path), shared=shared)
    run_config(config("rankfeat.RankFeat"), setting(tmp_path), shared=shared)
    assert counted == {"load_benchmark": 1, "ready_backbone": 2}
    run_config(config("mls.MLS"), setting(tmp_path), shared=shared)
    assert counted == {"load_benchmark": 1, "ready_backbone": 2}


@pytest.mark.parametrize(("reused", "policy", "made"), [("", "auto", 2), ("0.1, today", "auto", 1), ("x", "force", 2)])
def test_weights_that_were_trained_now_are_not_kept(config, tmp_path, monkeypatch, counted, reused, policy, made):
    # The next job reads them back, and its record says when they were trained.
    ready = prepare.ready_backbone

    def trained(*arguments):
        return ready(*arguments)[0], TrainingInfo("cross_entropy", reused=reused)

    monkeypatch.setattr(prepare, "ready_backbone", trained)
    shared, how = SharedObjects(), Runtime.from_config({**setting(tmp_path), "train": policy})
    for _ in range(2):
        prepare.prepare(config("msp.MSP"), how, shared=shared)
    assert counted["ready_backbone"] == made


def test_two_benchmarks_are_kept_at_most():
    shared, made = SharedObjects(), []
    for name in ("a", "b", "a", "c", "a", "b"):
        shared.get("benchmark", name, lambda name=name: made.append(name) or name)
    assert made == ["a", "b", "c", "b"]
