"""One training in two processes: torchrun and gloo on this machine's CPU."""

import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file

from openbench.core.runtime import under_torchrun
from openbench.errors import ConfigError
from openbench.training.augment.augmentations import HorizontalFlip, JensenShannon, Mixup, RegMixup
from openbench.training.augment.reading import RandomResizedCrop
from openbench.training.base import TrainingJob
from openbench.training.loop import weights
from openbench.training.loop._loop import train
from openbench.training.loop.distributed import Team, require_one_process, team
from openbench.training.loop.weights import obtain
from openbench.training.recipe import Recipe

from ..forked import Forked  # noqa: TID252 — the tests are no package
from . import training_toys
from .training_toys import QUIET, ToyEntropy, after_epochs, backbone, benchmark, job, setting


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
    "uneven": replace(RECIPE, batch_size=15, clip=0.5, ema=0.9),
    "regmixup": replace(RECIPE, augment=(*RECIPE.augment, RegMixup(1.0))),
    # Read as needed: each process decodes its own share, unless images are mixed.
    "streamed": replace(RECIPE, augment=(READ, HorizontalFlip(), JensenShannon(HorizontalFlip(1.0), 1.0))),
    "streamed mixup": replace(RECIPE, augment=(READ, HorizontalFlip(), Mixup(1.0))),
}


def shared_job(name: str) -> TrainingJob:
    """A job without dropout, which every process would draw for itself."""
    return TrainingJob.of(backbone(dropout=0.0), benchmark(), Apart(RECIPES[name]), 0)


def assert_same_weights(one: Path, other: Path) -> None:
    theirs = load_file(other)
    for name, value in load_file(one).items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5)


def two_forked(folder: Path, *names: str, killed_after: int = 0) -> list[tuple[int, str]]:
    """Get checkpoints in two copies of this process, told what torchrun tells its own; how they ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}

    def told(*arguments) -> None:
        print(f"resumed after {train(*arguments).resumed_after}\n", end="", flush=True)

    def act() -> None:
        team.cache_clear()
        torch.set_num_threads(1)
        weights.train, together = told, team("cpu")
        with after_epochs(killed_after, lambda: os._exit(9)):
            for name in names:
                obtain(shared_job(name), setting(folder), team=together)

    processes = [Forked(act, folder / f"{rank}.said", RANK=str(rank), LOCAL_RANK=str(rank), **place) for rank in (0, 1)]
    first = processes[0].ended()
    if first[0]:  # torchrun ends the others with it
        processes[1].kill()
    return [first, processes[1].ended()]


def test_two_processes_give_the_weights_of_one(tmp_path: Path) -> None:
    done = two_forked(tmp_path, *RECIPES)
    assert [code for code, _ in done] == [0, 0], done
    assert [said.count("resumed after 0") for _, said in done] == [len(RECIPES)] * 2
    for name in RECIPES:
        made = shared_job(name)
        folder, alone = tmp_path / made.digest, train(made, tmp_path / name, QUIET)
        assert_same_weights(folder / "last.safetensors", tmp_path / name / "last.safetensors")
        losses = [float(line.split(",")[3]) for line in (folder / "curve.csv").read_text().splitlines()[1:]]
        assert losses == pytest.approx([row.loss for row in alone.curve], rel=1e-5)


def test_two_processes_go_on_after_a_kill_and_only_one_writes(tmp_path: Path) -> None:
    made = shared_job("uneven")
    train(made, tmp_path / "alone", QUIET)
    killed, _ = two_forked(tmp_path, "uneven", killed_after=1)
    assert killed[0] == 9, killed
    done = two_forked(tmp_path, "uneven")
    assert [code for code, _ in done] == [0, 0], done
    assert [said.count("resumed after 1") for _, said in done] == [1, 1]
    folder = tmp_path / made.digest
    assert_same_weights(folder / "last.safetensors", tmp_path / "alone" / "last.safetensors")
    names = {"best.safetensors", "last.safetensors", "job.json", "finished.json", "curve.csv", "curve.png"}
    assert {file.name for file in folder.iterdir()} == names


def test_losses_over_the_whole_batch_are_not_shared_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ToyEntropy.* 2 processes"):
        obtain(job(ToyEntropy()), setting(tmp_path), team=Team(0, 2))


@pytest.mark.parametrize(
    ("device", "gpus", "own"),
    [("auto", False, "cpu"), ("auto", True, "cuda:1"), ("cuda", True, "cuda:1"), ("cpu", True, "cpu")],
)
def test_a_process_of_torchrun_computes_on_its_gpu_or_on_the_cpu(
    monkeypatch, device: str, gpus: bool, own: str
) -> None:
    begun = []
    given = {"cuda.is_available": lambda: gpus, "cuda.set_device": begun.append}
    given |= {"distributed.init_process_group": begun.append, "distributed.get_rank": lambda: 1}
    for name, stand_in in (given | {"distributed.get_world_size": lambda: 2}).items():
        monkeypatch.setattr(f"torch.{name}", stand_in)
    monkeypatch.setattr("atexit.register", lambda _: None)
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    joined = team.__wrapped__(device)
    assert (joined.rank, joined.size, joined.device(device)) == (1, 2, torch.device(own))
    assert begun == (["gloo"] if own == "cpu" else [torch.device(own), "nccl"])


def test_one_process_is_alone_and_under_torchrun_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not under_torchrun()
    assert team("auto").size == 1
    require_one_process("run")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="`run` runs in one process, and torchrun started 2"):
        require_one_process("run")
    with pytest.raises(ConfigError, match="write auto, cuda or cpu"):
        team("cuda:1")
