"""What the processes of a torchrun in the tests carry out; every process runs `main`."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from openbench.training.augment.augmentations import HorizontalFlip, JensenShannon, Mixup, RegMixup
from openbench.training.augment.reading import RandomResizedCrop
from openbench.training.base import TrainingJob
from openbench.training.loop import _loop as loop, weights
from openbench.training.loop._loop import train
from openbench.training.loop.distributed import team
from openbench.training.loop.weights import obtain
from openbench.training.recipe import Recipe

from . import training_toys
from .training_toys import Setting, ToyEntropy, backbone, benchmark


@dataclass(frozen=True)
class Apart(ToyEntropy):
    """Cross-entropy that may be shared out; mixed labels too."""

    separable: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    def loss(self, model, batch):
        return batch.cross_entropy(model(batch.images))


RECIPE = replace(training_toys.RECIPE, epochs=2)
READ = RandomResizedCrop((0.5, 1.0))
# 70 images in batches of 16 leave 6: shares of 8 and 8, then of 3 and 3; batches of 15 leave 10 and share 7 and 8.
RECIPES: dict[str, Recipe] = {
    "plain": RECIPE,
    "uneven": replace(RECIPE, batch_size=15, clip=0.5, ema=0.9),
    "mixup": replace(RECIPE, augment=(*RECIPE.augment, Mixup(1.0))),
    "regmixup": replace(RECIPE, augment=(*RECIPE.augment, RegMixup(1.0))),
    # Read as needed: each process decodes its own share, unless images are mixed.
    "streamed": replace(RECIPE, augment=(READ, HorizontalFlip(), JensenShannon(HorizontalFlip(1.0), 1.0))),
    "streamed mixup": replace(RECIPE, augment=(READ, HorizontalFlip(), Mixup(1.0))),
}


def shared_job(name: str) -> TrainingJob:
    """A job without dropout, which every process would draw for itself."""
    return TrainingJob.of(backbone(dropout=0.0), benchmark(), Apart(RECIPES[name]), 0)


def main(root: str, epochs: str, *names: str) -> None:
    """Get the checkpoints of jobs with all processes; the leading one is killed once `epochs` are on disk, if any."""
    torch.set_num_threads(1)
    together = team("cpu")
    write, curves = loop.write_whole, [0]

    def counted(path: Path, content: bytes) -> None:
        write(path, content)
        curves[0] += path.name == "curve.csv"
        if curves[0] == int(epochs):
            os._exit(9)

    def told(*arguments) -> None:
        resumed_after = train(*arguments).resumed_after
        print(f"rank {together.rank} of {together.size} resumed after {resumed_after}\n", end="", flush=True)

    weights.train = told
    if int(epochs):
        loop.write_whole = counted

    for name in names:
        obtain(shared_job(name), Setting(Path(root)), team=together)


if __name__ == "__main__":
    # Under its own name: that of a method's module is part of the job's digest.
    from tests.training import team_toys

    loop.as_png = lambda *_: b""  # to draw the curve takes longer than to train
    team_toys.main(*sys.argv[1:])
