import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from openbench.storage.files import write_whole
from openbench.training.loop import _loop as loop
from openbench.training.loop._loop import train
from openbench.training.loop.weights import find_checkpoint

from ..forked import Forked  # noqa: TID252 — the tests are no package
from ..logged import logged  # noqa: TID252 — the tests are no package
from . import training_toys
from .training_toys import (
    METHODS,
    QUIET,
    RECIPE,
    KilledError,
    ToyEntropy,
    ToyPrototypes,
    job,
    train_until_killed,
    trained,
)


def start(method: str, root: Path, number: int = 0, **environment: str) -> Forked:
    return Forked(partial(training_toys.main, method, str(root)), note_of(root, number), **environment)


def note_of(root: Path, number: int = 0) -> Path:
    return root.parent / f"{root.name}.{number}.said"


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the other process did not get that far"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_training_killed_in_an_epoch_ends_in_the_same_bits(tmp_path: Path) -> None:
    name = "prototypes"
    made = job(METHODS[name]())
    through = train(made, tmp_path / "through", QUIET)
    folder = tmp_path / "root" / made.digest
    note = note_of(tmp_path / "root")
    process = start(name, tmp_path / "root", TOY_STOP="13")  # of 4 × 5 steps: in the third epoch
    try:
        wait_for(lambda: note.exists() and "stopped" in note.read_text())
        assert len((folder / "curve.csv").read_text().splitlines()) == 3
    finally:
        process.kill()
        process.ended()
    assert find_checkpoint(made, tmp_path / "root") is None
    assert trained(made, tmp_path / "root").info["files"] == through.files
    assert (folder / "curve.csv").read_text().count("\n") == 5


def test_resumed_training_has_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    method, epochs = ToyPrototypes(replace(RECIPE, ema=0.9)), 3
    through = train(job(method), tmp_path / "through", QUIET)
    train_until_killed(job(method), tmp_path / "cut", epochs)
    resumed = train(job(method), tmp_path / "cut", QUIET)
    assert resumed.resumed_after == epochs
    assert resumed.files == through.files
    assert resumed.best["epoch"] == through.best["epoch"]


def test_finished_folder_holds_the_files_promised_and_no_others(tmp_path: Path) -> None:
    train(job(), tmp_path, QUIET)
    names = {"best.safetensors", "last.safetensors", "job.json", "finished.json", "curve.csv", "curve.png"}
    assert {file.name for file in tmp_path.iterdir()} == names


def test_a_kill_while_finishing_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    through = train(job(), tmp_path / "through", QUIET)

    def killed(path: Path, content: bytes) -> None:
        if path.name == "finished.json":
            raise KilledError
        write_whole(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "write_whole", killed)
        with pytest.raises(KilledError):
            train(job(), tmp_path / "cut", QUIET)
    resumed = train(job(), tmp_path / "cut", QUIET)
    assert resumed.resumed_after == RECIPE.epochs
    assert resumed.files == through.files


def test_a_training_killed_between_its_last_state_and_its_curve_ends_with_the_whole_curve(tmp_path: Path) -> None:
    train_until_killed(job(), tmp_path, RECIPE.epochs)
    table = tmp_path / "curve.csv"
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    train(job(), tmp_path, QUIET)
    assert table.read_text() == whole


def cut_short(content: bytes) -> bytes:
    return content[:100]


def one_byte(content: bytes) -> bytes:
    """A changed byte inside a tensor: the file still loads."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(("damage", "harm"), [("state", cut_short), ("state", one_byte), ("weights", one_byte)])
def test_unusable_state_is_reported_and_training_begins_anew(
    tmp_path: Path, damage: str, harm: Callable[[bytes], bytes]
) -> None:
    through = train(job(), tmp_path / "through", QUIET)
    cut = tmp_path / "cut"
    train_until_killed(job(), cut, 2)
    victim = cut / "state.pt" if damage == "state" else next(cut.glob("best-*.safetensors"))
    victim.write_bytes(harm(victim.read_bytes()))
    with logged() as said:
        anew = train(job(), cut, QUIET)
    assert anew.resumed_after == 0
    assert anew.files == through.files
    assert [line.endswith("training again from the start") for line in said] == [True]


def test_state_of_another_training_is_not_taken(tmp_path: Path) -> None:
    train_until_killed(job(), tmp_path, 2)
    assert train(job(ToyEntropy(replace(RECIPE, lr=0.01))), tmp_path, QUIET).resumed_after == 0


def test_of_several_processes_one_trains_and_all_get_its_weights(tmp_path: Path) -> None:
    processes = [start("entropy", tmp_path / "root", number, TOY_PAUSE="0.02") for number in range(3)]
    outputs = [process.ended() for process in processes]
    assert [code for code, _ in outputs] == [0, 0, 0], outputs
    lines = [said.splitlines() for _, said in outputs]
    assert sum("trains" in said for said in lines) == 1
    assert len({said[-1] for said in lines}) == 1
