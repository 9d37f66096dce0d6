"""Training from small image files: decoded once, kept beside the features, and the same weights as from arrays."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image as Pillow
from safetensors.torch import load_file

from openbench.core.benchmark import Benchmark
from openbench.data.sources import items
from openbench.data.sources.items import FileItems
from openbench.training.weights.ensure import ensure_trained

from .training_toys import backbone, benchmark

CONFIG = {
    "training": {
        "_target_": "openbench.training.methods.cross_entropy.CrossEntropy",
        "recipe": {"_target_": "openbench.training.recipe.Recipe", "epochs": 2, "batch_size": 16, "lr": 0.05},
    },
    "seed": 0,
}


@dataclass
class Setting:
    """A runtime on the CPU whose cache is a folder of the test's."""

    cache: Path
    train: str = "auto"
    device: str = "cpu"
    workers: int = 0
    progress: bool = False
    compile: bool = False
    tensorboard: bool = False

    @property
    def checkpoints(self) -> Path:
        return self.cache / "checkpoints"


def from_files(folder: Path) -> Benchmark:
    """The toy benchmark with its ID images as PNG files."""
    made = benchmark()
    splits = {}
    for name, split in (("id_train", made.id_train), ("id_val", made.id_val)):
        files = [folder / name / f"{index}.png" for index in range(len(split))]
        (folder / name).mkdir(parents=True)
        for index, file in enumerate(files):
            Pillow.fromarray(split.items[index]).save(file)
        splits[name] = replace(split, items=FileItems(files))
    return benchmark(**splits)


def test_files_are_decoded_once_for_several_trainings_and_give_the_weights_of_arrays(tmp_path, monkeypatch):
    decoded = []
    genuine = items.decode
    monkeypatch.setattr(items, "decode", lambda path: decoded.append(path) or genuine(path))
    bench, cache = from_files(tmp_path / "files"), tmp_path / "cache"
    trained = [ensure_trained(backbone(), bench, {**CONFIG, "seed": seed}, Setting(cache)) for seed in (0, 1)]
    # The shape of a set is that of its first image, which is looked at before each training.
    assert len(decoded) <= 70 + 40 + 4 * 1
    assert len(list((cache / "images").glob("*.npy"))) == 2
    arrays = ensure_trained(backbone(), benchmark(), CONFIG, Setting(tmp_path / "other"))
    found, expected = (load_file(t.checkpoint.weights) for t in (trained[0], arrays))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not torch.equal(*(load_file(t.checkpoint.weights)["fc.weight"] for t in trained))
