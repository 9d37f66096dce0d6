"""One training in two processes: torchrun and gloo on this machine's CPU."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from openbench.core.runtime import under_torchrun
from openbench.errors import ConfigError
from openbench.training.loop import distributed
from openbench.training.loop._loop import train
from openbench.training.loop._session import Session
from openbench.training.loop.distributed import Team, require_one_process, sync_batch_norm, team
from openbench.training.loop.weights import obtain

from ..forked import Forked  # noqa: TID252 — the tests are no package
from . import team_toys
from .team_toys import RECIPES, Apart, shared_job
from .training_toys import QUIET, Setting, ToyEntropy, job

HERE = Path(__file__).parent


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


def test_shares_cover_everything_once_and_differ_by_one_at_most() -> None:
    for size in (1, 2, 3, 7):
        for count in (0, 1, 5, 16, 127):
            own = [list(range(count))[Team(rank, size).share(count)] for rank in range(size)]
            assert [i for share in own for i in share] == list(range(count))
            assert max(map(len, own)) - min(map(len, own)) <= 1


def test_mean_of_weighted_shares_is_the_mean_of_the_batch(tmp_path: Path) -> None:
    seen = []

    class Noting(Apart):
        def loss(self, model, batch):
            seen.append(batch)
            return super().loss(model, batch)

    train(job(Noting()), tmp_path, QUIET)
    batch, values = seen[0], torch.rand(16)
    of = dict(zip(batch.rows.tolist(), values.tolist(), strict=True))
    half = replace(batch, weight=0.5)
    shares = [half.part(Team(rank, 3).share(16), 3, batch.info) for rank in range(3)]
    means = [s.weight * sum(of[row] for row in s.rows.tolist()) / len(s.rows) for s in shares]
    assert sum(means) / 3 == pytest.approx(0.5 * float(values.mean()))
    assert [len(s.images) for s in shares] == [len(s.labels) for s in shares] == [5, 5, 6]


@pytest.mark.parametrize("shape", [(6, 4), (5, 4, 3, 3)])
def test_shared_batch_norm_is_batch_norm(shape: tuple[int, ...]) -> None:
    """With one process's batch as the whole, outputs, gradients and statistics are torch's own."""
    kind = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    mine, theirs = kind(4), kind(4)
    with torch.no_grad():
        for one in (mine, theirs):
            one.weight.copy_(torch.tensor([1.0, -2.0, 0.5, 3.0]))
    x = (3 + 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).requires_grad_()
    y = x.detach().clone().requires_grad_()
    probe = torch.randn(shape, generator=torch.Generator().manual_seed(1))

    class Two(Team):
        """A process beside which another has the very same batch."""

        def sum(self, values):
            return 2 * values

    with sync_batch_norm(mine, Two(0, 2)):
        ours = mine(x)
        (ours * probe).sum().backward()
        evaluated = mine.eval()(x)
    expected = theirs(torch.cat([y, y]))
    (expected * torch.cat([probe, probe])).sum().backward()
    torch.testing.assert_close(ours, expected[: len(x)])
    torch.testing.assert_close(x.grad, y.grad / 2, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(2 * mine.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mine.running_mean, theirs.running_mean)
    torch.testing.assert_close(mine.running_var, theirs.running_var)
    torch.testing.assert_close(evaluated, theirs.eval()(x))
    assert "forward" not in vars(mine)


def test_losses_over_the_whole_batch_are_not_shared_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ToyEntropy.* 2 processes"):
        obtain(job(ToyEntropy()), Setting(tmp_path), team=Team(0, 2))


@pytest.mark.parametrize(("rank", "written"), [(0, {"best-0.safetensors", "state.pt"}), (1, set())])
def test_one_process_of_several_writes(tmp_path: Path, rank: int, written: set[str]) -> None:
    session = Session.begin(job(Apart()), tmp_path, torch.device("cpu"), team=Team(rank, 2))
    session.save_if_best(0.5)
    session.save()
    assert {file.name for file in tmp_path.iterdir()} == written


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
