"""A benchmark of images in a folder of one's own, and runs of small networks on it."""

import numpy as np
import pytest
from PIL import Image as Pillow
from safetensors.torch import save_file

from openbench.backbones.cifar import resnet
from openbench.core.preprocess import Preprocess

FOLDER = {"folder": {"_target_": "openbench.data.sources.base.ImageFolder"}}
CLASSES = [f"class {c}" for c in range(6)]
SIZES = {"train": 10, "val": 3, "test": 5}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Small images in ImageNet's layout: train/<class folder>/…, and validation images without folders."""
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path / "images"))
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    names = [f"train/n{c}/{i}.png" for c in range(6) for i in range(SIZES["train"])]
    names += [f"{part}/{c}_{i}.png" for part in ("val", "test") for c in range(6) for i in range(SIZES[part])]
    for name in (*names, *(f"cars/{i}.png" for i in range(20))):
        file = tmp_path / "images" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Pillow.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file)
    return tmp_path / "images"


@pytest.fixture
def own_benchmark(root, tmp_path):
    """A node with the training set known by its list."""

    def a_set(name, key, classes):
        manifest = tmp_path / f"{name}.csv"
        rows = [f"{key.format(c=c, i=i)},{label}\n" for c, label in classes for i in range(SIZES.get(name, 20))]
        manifest.write_text("".join(["path,label\n", *rows]))
        return {"name": name, "manifest": str(manifest), "sources": FOLDER}

    def part(name):
        return a_set(name, "train/n{c}/{i}.png" if name == "train" else name + "/{c}_{i}.png", labels)

    labels = list(enumerate(CLASSES))
    return {
        "name": "own",
        "classes": CLASSES,
        "declared": ["far.cars"],
        "id": {"train": {**part("train"), "digest_of": "list"}, "val": part("val"), "test": part("test")},
        "far": {"cars": a_set("cars", "cars/{i}.png", [(0, "van")])},
        "preprocess": {"resize": 16, "crop": 16, "mean": [0.5] * 3, "std": [0.5] * 3},
    }


@pytest.fixture
def config(own_benchmark, tmp_path):
    """A config of `run` of a method, with a network of so many classes whose weights are in a file."""

    def made(method, classes=6, **nodes):
        file = tmp_path / f"{classes}.safetensors"
        network = resnet("own", "resnet8", num_classes=classes, preprocess=Preprocess(16, 16))
        state = network.initialise(1).module().state_dict()
        save_file({name: value.contiguous() for name, value in state.items()}, file)
        backbone = {
            "_target_": "openbench.backbones.cifar.resnet",
            "name": "own",
            "model": "resnet8",
            "weights": str(file),
            "num_classes": classes,
        }
        return {
            "benchmark": own_benchmark,
            "backbone": backbone,
            "training": {"_name_": "cross_entropy"},
            "method": {"_name_": method.rpartition(".")[2].lower(), "_target_": f"openbench.methods.{method}"},
            "tune": {"strategy": "none"},
            "metrics": {"replicates": 0},
            "seed": 0,
            **nodes,
        }

    return made


@pytest.fixture
def runtime(tmp_path):
    return {"cache": tmp_path / "cache", "results": tmp_path / "results", "progress": False, "device": "cpu"}
