"""A vision–language model of open_clip small enough for tests, with random weights, through the real loading code."""

import atexit
import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

from openbench import _compat
from openbench.backbones.open_clip import ZeroShotBackbone, open_clip_model

NAME = "tiny-openbench"
DIM, SIDE, PATCH = 16, 32, 8
_CONFIG = {
    "embed_dim": DIM,
    "vision_cfg": {"image_size": SIDE, "layers": 3, "width": 32, "head_width": 16, "patch_size": PATCH},
    "text_cfg": {"context_length": 24, "vocab_size": 49408, "width": 24, "heads": 2, "layers": 2},
}


def folder() -> Path:
    """A new folder, which goes with the process."""
    made = Path(mkdtemp(prefix="tiny-clip-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def library() -> Any:
    """open_clip, which knows the tiny model."""
    found = _compat.library("open_clip")
    place = folder()
    (place / f"{NAME}.json").write_text(json.dumps(_CONFIG))
    found.add_model_config(place / f"{NAME}.json")
    return found


@cache
def whole(seed: int = 0) -> Any:
    """The library's own model; weights are large enough for embeddings of texts to differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = library().create_model(NAME, pretrained=None).eval()
        with torch.no_grad():
            model.token_embedding.weight.mul_(20)
    return model


@cache
def weights(seed: int = 0) -> str:
    """A file with the model's weights."""
    path = folder() / "clip.pt"
    torch.save(whole(seed).state_dict(), path)
    return str(path)


def backbone(classes: tuple[str, ...] = ("cat", "fire_truck", "frog"), **options: Any) -> ZeroShotBackbone:
    """The model as openbench loads it."""
    library()
    found = open_clip_model("clip", NAME, **{"weights": weights(), "classes": classes, **options})
    assert isinstance(found, ZeroShotBackbone)
    return found
