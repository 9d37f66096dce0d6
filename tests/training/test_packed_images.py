"""Training from small image files: decoded once, kept beside the features, and the same weights as from arrays."""

from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image as Pillow
from safetensors.torch import load_file

from openbench.core.benchmark import Benchmark
from openbench.data.sources import items
from openbench.data.sources.items import FileItems
from openbench.training.loop.weights import ensure_trained

from .settings import CONFIG, Setting
from .training_toys import backbone, benchmark


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
    setting, first, second = Setting(cache / "checkpoints"), {**CONFIG, "seed": 0}, {**CONFIG, "seed": 1}
    trained = [ensure_trained(backbone(), bench, config, setting) for config in (first, second)]
    # The shape of a set is that of its first image, which is looked at before each training.
    assert len(decoded) <= 70 + 40 + 4 * 1
    assert len(list((cache / "images").glob("*.npy"))) == 2
    arrays = ensure_trained(backbone(), benchmark(), first, Setting(tmp_path / "other" / "checkpoints"))
    found, expected = (load_file(t.checkpoint.weights) for t in (trained[0], arrays))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not torch.equal(*(load_file(t.checkpoint.weights)["fc.weight"] for t in trained))
