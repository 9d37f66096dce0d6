"""One training in two processes: torchrun and gloo on this machine's CPU."""

import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from openbench.core.runtime import under_torchrun
from openbench.errors import ConfigError
from openbench.training.loop import distributed
from openbench.training.loop._loop import train
from openbench.training.loop.distributed import Team, require_one_process, team
from openbench.training.loop.weights import obtain

from ..forked import Forked  # noqa: TID252 — the tests are no package
from . import team_toys
from .team_toys import RECIPES, shared_job
from .training_toys import QUIET, Setting, ToyEntropy, job


def assert_same_weights(one: Path, other: Path) -> None:
    theirs = load_file(other)
    for name, value in load_file(one).items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5)


def two_forked(folder: Path, *arguments: str) -> list[tuple[int, str]]:
    """Run team_toys in two copies of this process, told what torchrun tells its own; how they ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}

    def act() -> None:
        team.cache_clear()
        team_toys.main(*arguments)

    processes = [Forked(act, folder / f"{rank}.said", RANK=str(rank), LOCAL_RANK=str(rank), **place) for rank in (0, 1)]
    first = processes[0].ended()
    if first[0]:  # torchrun ends the others with it
        processes[1].kill()
    return [first, processes[1].ended()]


def assert_trained_as_alone(name: str, root: Path) -> None:
    made = shared_job(name)
    alone = train(made, root / name, QUIET)
    folder = root / "two" / made.digest
    assert_same_weights(folder / "last.safetensors", root / name / "last.safetensors")
    losses = [float(line.split(",")[3]) for line in (folder / "curve.csv").read_text().splitlines()[1:]]
    assert losses == pytest.approx([row.loss for row in alone.curve], rel=1e-5)


def test_two_processes_give_the_weights_of_one(tmp_path: Path) -> None:
    names = [name for name in RECIPES if name != "plain"]
    done = two_forked(tmp_path, str(tmp_path / "two"), "0", *names)
    assert [code for code, _ in done] == [0, 0], done
    assert [said.count("resumed after 0") for _, said in done] == [len(names)] * 2
    for name in names:
        assert_trained_as_alone(name, tmp_path)


def test_two_processes_go_on_after_a_kill_and_only_one_writes(tmp_path: Path) -> None:
    made = shared_job("uneven")
    train(made, tmp_path / "alone", QUIET)
    killed, _ = two_forked(tmp_path, str(tmp_path), "1", "uneven")
    assert killed[0] == 9, killed
    done = two_forked(tmp_path, str(tmp_path), "0", "uneven")
    assert [code for code, _ in done] == [0, 0], done
    assert [said.count("resumed after 1") for _, said in done] == [1, 1]
    folder = tmp_path / made.digest
    assert_same_weights(folder / "last.safetensors", tmp_path / "alone" / "last.safetensors")
    names = {"best.safetensors", "last.safetensors", "job.json", "finished.json", "curve.csv", "curve.png"}
    assert {file.name for file in folder.iterdir()} == names


def test_losses_over_the_whole_batch_are_not_shared_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ToyEntropy.* 2 processes"):
        obtain(job(ToyEntropy()), Setting(tmp_path), team=Team(0, 2))


@pytest.mark.parametrize(
    ("device", "gpus", "own"),
    [("auto", False, "cpu"), ("auto", True, "cuda:1"), ("cuda", True, "cuda:1"), ("cpu", True, "cpu")],
)
def test_a_process_of_torchrun_computes_on_its_gpu_or_on_the_cpu(
    monkeypatch, device: str, gpus: bool, own: str
) -> None:
    begun = []
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", begun.append)
    monkeypatch.setattr(distributed.atexit, "register", lambda _: None)
    for name, given in (("init_process_group", begun.append), ("get_rank", lambda: 1), ("get_world_size", lambda: 2)):
        monkeypatch.setattr(torch.distributed, name, given)
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
