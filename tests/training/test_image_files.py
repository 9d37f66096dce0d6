"""Training from image files gives the same weights as from arrays."""

from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image as Pillow
from safetensors.torch import load_file

from openbench.core.benchmark import Benchmark
from openbench.data.sources.items import FileItems
from openbench.training.loop.weights import get_or_train

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


def test_image_files_give_the_weights_of_arrays(tmp_path):
    config = {**CONFIG, "seed": 0}
    trained = [
        get_or_train(backbone(), made, config, Setting(tmp_path / name / "checkpoints"))
        for name, made in (("files", from_files(tmp_path / "images")), ("arrays", benchmark()))
    ]
    found, expected = (load_file(one.checkpoint.weights) for one in trained)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
