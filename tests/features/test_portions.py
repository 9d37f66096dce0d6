"""A pass in portions: the same bytes for any number of jobs, at most a portion lost by a kill, nothing done twice."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from openbench.backbones.base import Outputs
from openbench.compose.config import sharded
from openbench.core.request import Field, Request
from openbench.core.runtime import Runtime, Sharding
from openbench.errors import CacheError
from openbench.features.store import PORTIONS, FeatureStore

from ..logged import logged  # noqa: TID252 — the tests are no package
from .feature_toys import toy_backbone, toy_split

WANTED = Request(fields=frozenset({Field.LOGITS, Field.FEATURES, Field.MAPS}), layers=("stage3",), pool="mean")
COUNT, BATCH, PORTION = 101, 8, 16
FORK = multiprocessing.get_context("fork")


def job(root: Path, count: int = 1, first: int = 0, before: Callable[[int], object] = bool) -> int:
    """Ask for columns as job `first` of `count`, and return how many images passed the network.

    `before` is given the number of images that have passed before each batch.
    """
    backbone, split = toy_backbone(), toy_split(COUNT)
    outputs = backbone.outputs

    def watched(images: torch.Tensor, request: Request) -> Outputs:
        before(backbone.passes)
        return outputs(images, request)

    backbone.outputs = watched  # type: ignore[method-assign]
    store = FeatureStore(root, BATCH, progress=False, portion=PORTION, sharding=Sharding(count, first))
    if count > 1:
        store.share(backbone, split, WANTED)
    else:
        store.get(backbone, split, WANTED)
    return backbone.passes


class Other:
    """A job in a process of its own, which may be killed."""

    def __init__(self, root: Path, count: int = 1, first: int = 0, before: Callable[[int], object] = bool) -> None:
        self._passed = FORK.Value("i", -1)

        def act() -> None:
            self._passed.value = job(root, count, first, before)

        self._process = FORK.Process(target=act)
        self._process.start()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.join()

    def ended(self) -> int:
        """Wait for its end; return how many images passed its network, or -1."""
        self._process.join()
        return int(self._passed.value)


def kill_after(images: int, passed: int) -> None:
    """Have a job kill itself when so many images have passed."""
    if passed >= images:
        os.kill(os.getpid(), signal.SIGKILL)


def appears(*files: Path) -> None:
    """Wait for files that other processes make."""
    deadline = time.monotonic() + 600
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def touch_and_wait(own: Path, others: tuple[Path, ...], passed: int) -> None:
    """Have a job say that it holds a portion, and wait until others do."""
    own.touch()
    appears(*others)


def columns(root: Path) -> dict[str, bytes]:
    """The finished columns; nothing is left over beside them."""
    assert not list(root.rglob("*.tmp"))
    assert not list(root.rglob(PORTIONS))
    return {path.name: path.read_bytes() for path in root.glob("*/*/*.npy")}


def made(root: Path) -> list[Path]:
    """The portions that are made and not joined yet."""
    return sorted(root.glob(f"*/*/{PORTIONS}/*/*.npz"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The columns that one job makes."""
    root = tmp_path_factory.mktemp("whole")
    assert job(root) == COUNT
    assert len(columns(root)) == 3
    return columns(root)


def test_rows_are_those_of_a_pass_without_portions(tmp_path: Path, whole: dict[str, bytes]) -> None:
    store = FeatureStore(tmp_path, BATCH, progress=False)
    store.get(toy_backbone(), toy_split(COUNT), WANTED)
    assert columns(tmp_path) == whole


@pytest.mark.parametrize("count", [2, 3, 500])
def test_any_number_of_jobs_gives_the_same_bytes(tmp_path: Path, whole: dict[str, bytes], count: int) -> None:
    assert job(tmp_path, count, 1) == COUNT
    assert columns(tmp_path) == whole


@pytest.mark.parametrize(("count", "first"), [(1, 0), (3, 1)])
def test_a_killed_job_loses_at_most_a_portion(tmp_path: Path, whole: dict[str, bytes], count: int, first: int) -> None:
    assert Other(tmp_path, count, first, partial(kill_after, 56)).ended() == -1
    assert len(made(tmp_path)) == 3
    assert job(tmp_path) == COUNT - 3 * PORTION  # as `run` does, which knows of no shards
    assert columns(tmp_path) == whole


def test_of_three_jobs_one_computes_and_all_get_the_same(tmp_path: Path, whole: dict[str, bytes]) -> None:
    root, holds = tmp_path / "cache", tmp_path / "holds"
    first = Other(root, before=partial(touch_and_wait, holds, ()))
    appears(holds)
    others = [Other(root), Other(root)]
    assert sorted(other.ended() for other in (first, *others)) == [0, 0, COUNT]
    assert columns(root) == whole


def test_jobs_divide_the_images_and_the_last_one_joins_them(tmp_path: Path, whole: dict[str, bytes]) -> None:
    root, marks = tmp_path / "cache", (tmp_path / "0", tmp_path / "1")
    jobs = [Other(root, 2, at, partial(touch_and_wait, mark, marks)) for at, mark in enumerate(marks)]
    passed = [other.ended() for other in jobs]
    assert sum(passed) == COUNT
    assert min(passed) >= PORTION
    assert columns(root) == whole


@pytest.mark.parametrize("killed", [False, True])
def test_whoever_needs_the_columns_makes_the_rest_and_what_others_do_not_end(
    tmp_path: Path, whole: dict[str, bytes], killed: bool
) -> None:
    root, holds, waits = tmp_path / "cache", tmp_path / "holds", tmp_path / "waits"
    other = Other(root, 2, 0, partial(touch_and_wait, holds, (waits,)))
    appears(holds)
    backbone = toy_backbone()
    store = FeatureStore(root, BATCH, progress=False, portion=PORTION)
    with logged(lambda text: other.kill() if killed else waits.touch()) as said:
        store.get(backbone, toy_split(COUNT), WANTED)
    assert other.ended() == (-1 if killed else PORTION)
    assert backbone.passes == (COUNT if killed else COUNT - PORTION)
    assert said == ["features of toy: other jobs make 1 of 7 portions, waiting"]
    assert columns(root) == whole


def test_a_damaged_portion_is_an_error_and_then_made_again(tmp_path: Path, whole: dict[str, bytes]) -> None:
    Other(tmp_path, before=partial(kill_after, 56)).ended()
    file = made(tmp_path)[1]
    intact = file.read_bytes()
    for place in (0.1, 0.5, 0.9):
        at = int(place * len(intact))
        file.write_bytes(intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
        with pytest.raises(CacheError, match=r"'.*16-32\.npz' is damaged .* give the same command again"):
            job(tmp_path)
        assert not file.exists()
    assert job(tmp_path) == PORTION
    assert columns(tmp_path) == whole


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["+benchmark=digits"], []),
        (["runtime.shards=3"], ["runtime.shard=range(3)"]),
        (["runtime.shards=3", "runtime.shard=1"], []),
        (["runtime.shards=null"], []),
    ],
)
def test_a_sweep_has_a_job_for_each_shard(typed: list[str], meant: list[str]) -> None:
    assert sharded(typed) == [*typed, *meant]


def test_torchrun_s_processes_are_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "8", "RANK": "5"}.items():
        monkeypatch.setenv(name, value)
    assert Runtime().sharding == Sharding(8, 5)
