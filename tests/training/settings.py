"""A training's config, and the runtime that it is carried out with."""

from dataclasses import dataclass
from pathlib import Path

NODE = {
    "_target_": "openbench.training.methods.cross_entropy.CrossEntropy",
    "_name_": "cross_entropy",
    "recipe": {"_target_": "openbench.training.recipe.Recipe", "epochs": 2, "batch_size": 16},
}
CONFIG = {"training": NODE, "seed": 5}


@dataclass(frozen=True)
class Setting:
    """The part of a runtime that training reads."""

    checkpoints: Path
    train: str = "auto"
    device: str = "cpu"
    workers: int = 0
    progress: bool = False
    compile: bool = False
    tensorboard: bool = False
