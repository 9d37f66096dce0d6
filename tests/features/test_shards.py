"""A pass divided among jobs: the same bytes for any number of shards, and nothing lost by a kill."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from openbench.backbones.base import Outputs
from openbench.backbones.network import NetworkBackbone
from openbench.compose.sweep import sharded
from openbench.core.request import Field, Request
from openbench.engine.runtime import Runtime
from openbench.errors import ConfigError
from openbench.features.arrays import ColumnFile, check_room
from openbench.features.shards import FOLDER, PLAN, Sharding, Shards
from openbench.features.store import FeatureStore
from openbench.storage.checksum import content_digest, write_sealed

from ..forked import Forked  # noqa: TID252 — the tests are no package
from .feature_toys import toy_backbone, toy_split

WANTED = Request(fields=frozenset({Field.LOGITS, Field.FEATURES, Field.MAPS}), layers=("stage3",), pool="mean")
COUNT, BATCH = 101, 8


def store(root: Path, sharding: Sharding) -> FeatureStore:
    return FeatureStore(root, batch_size=BATCH, progress=False, shard=16, sharding=sharding)


def columns(root: Path) -> dict[str, bytes]:
    """The finished columns, and nothing that is left over beside them."""
    found = sorted(root.glob("*/*/*.npy"))
    assert not list(root.rglob("*.part"))
    assert not list(root.rglob(FOLDER))
    return {path.name: path.read_bytes() for path in found}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("whole")
    store(root, Sharding()).get(toy_backbone(), toy_split(COUNT), WANTED)
    assert len(columns(root)) == 3
    return columns(root)


def shared(root: Path, count: int, first: int, before: Callable[[int], object] = lambda passed: None) -> int:
    """Make shards, and print how many images passed the network; `before` is given that number before each batch."""
    backbone = toy_backbone()
    outputs = backbone.outputs

    def watched(images: torch.Tensor, request: Request) -> Outputs:
        before(backbone.passes)
        return outputs(images, request)

    backbone.outputs = watched  # type: ignore[method-assign]
    left = store(root, Sharding(count, first)).share(backbone, toy_split(COUNT), WANTED)
    print(backbone.passes, flush=True)
    return left


def appears(file: Path) -> None:
    """Wait for a file that another process makes."""
    deadline = time.monotonic() + 600
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def begins_with(others: list[Path], own: Path, passed: int) -> None:
    """Have a job say that it holds a shard, and wait until the others hold theirs."""
    own.touch()
    for file in others if not passed else ():
        appears(file)


def killed_after(images: int, passed: int) -> None:
    """Kill the job before its next batch once so many images have passed the network."""
    if passed >= images:
        os.kill(os.getpid(), signal.SIGKILL)


def jobs_together(root: Path, jobs: int) -> list[int]:
    """Divide a pass in three among jobs that all hold a shard at a time; return how many images each of them passed."""
    marks, notes = ([root.with_name(f"{at}.{what}") for at in range(jobs)] for what in ("holds", "said"))
    acts = [partial(shared, root, 3, at, partial(begins_with, marks, mark)) for at, mark in enumerate(marks)]
    for job in [Forked(act, note) for act, note in zip(acts, notes, strict=True)]:
        job.ended()
    return [int(note.read_text()) for note in notes]


def planned(asking: FeatureStore, backbone: NetworkBackbone) -> Shards:
    """The plan of a pass, as a job makes it before its first image."""
    split, names = toy_split(COUNT), asking._extraction(backbone, WANTED).kept
    folder = asking._folder(backbone, split)
    folder.mkdir(parents=True)
    shards = Shards.planned(folder, split, names, asking.sharding.count, BATCH)
    assert shards is not None
    return shards


@pytest.mark.parametrize("count", [2, 3, 7, 13, 500])
def test_any_number_of_shards_gives_the_same_bytes(tmp_path: Path, whole: dict[str, bytes], count: int) -> None:
    assert shared(tmp_path, count, 1) == 0
    assert columns(tmp_path) == whole


def test_borders_lie_between_batches_and_nothing_is_left_out(tmp_path: Path) -> None:
    shards = Shards.planned(tmp_path, toy_split(COUNT), ("features",), 3, BATCH)
    assert shards is not None
    assert shards.borders == ((0, 40), (40, 80), (80, 101))


@pytest.mark.slow
def test_jobs_divide_the_images_and_the_last_one_joins_them(tmp_path: Path, whole: dict[str, bytes]) -> None:
    passed = jobs_together(tmp_path / "cache", 3)
    assert sorted(passed) == [21, 40, 40]
    assert columns(tmp_path / "cache") == whole


def test_a_killed_job_is_taken_over_by_whoever_needs_the_columns(tmp_path: Path, whole: dict[str, bytes]) -> None:
    root = tmp_path / "cache"
    Forked(partial(shared, root, 3, 0, partial(killed_after, 56)), tmp_path / "said").ended()
    assert len(list(root.glob("*/*/shards/*/*/*.npy"))) == 3  # one of three shards is there
    backbone = toy_backbone()
    store(root, Sharding()).get(backbone, toy_split(COUNT), WANTED)  # as `run` does, which knows of no shards
    assert 0 < backbone.passes <= COUNT - 40
    assert columns(root) == whole


@pytest.mark.parametrize("noted", [b'{"colour": 1}', b'{"logits": {"rows": 1, "colour": 2}}', b"[1, 2]"])
def test_what_another_version_noted_in_a_shared_cache_is_not_used(
    tmp_path: Path, whole: dict[str, bytes], noted: bytes
) -> None:
    asking = store(tmp_path / "cache", Sharding(3))
    plan = planned(asking, toy_backbone())
    write_sealed(plan._place / PLAN, noted)
    write_sealed(plan.folder / "progress.json", noted)
    assert Shards.under_way(plan.folder, plan.split, plan.names) is None
    store(tmp_path / "cache", Sharding()).get(toy_backbone(), toy_split(COUNT), WANTED)
    found = {path.name: path.read_bytes() for path in plan.folder.glob("*.npy")}
    assert found == whole


def test_whoever_needs_the_columns_waits_for_a_shard_that_another_job_makes(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    root = tmp_path / "cache"
    holds, waits = tmp_path / "holds", tmp_path / "waits"
    job = Forked(partial(shared, root, 2, 0, partial(begins_with, [waits], holds)), tmp_path / "said")
    appears(holds)
    backbone, said = toy_backbone(), list[str]()

    def say(line: str) -> None:
        said.append(line)
        if line.endswith("waiting"):
            waits.touch()

    needing = FeatureStore(root, batch_size=BATCH, progress=False, shard=16, say=say)
    needing.get(backbone, toy_split(COUNT), WANTED)
    job.ended()
    assert backbone.passes == COUNT - 56  # the other shard, meanwhile
    assert "features of toy: other jobs make 1 of 2 shards, waiting" in said
    assert columns(root) == whole


def test_a_damaged_shard_is_made_again(tmp_path: Path, whole: dict[str, bytes]) -> None:
    backbone, split = toy_backbone(), toy_split(COUNT)
    asking = store(tmp_path, Sharding(3))
    shards = planned(asking, backbone)
    source = asking._extraction(backbone, WANTED)
    for at in range(3):
        shards._made(at, backbone, source, asking._how, blocking=True)
    file = shards._folder(1) / "features.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    passes = backbone.passes
    assert asking.share(backbone, split, WANTED) == 0
    assert backbone.passes - passes == 40
    assert columns(tmp_path) == whole


def test_passes_for_other_columns_of_the_same_images_leave_no_copies(tmp_path: Path, whole: dict[str, bytes]) -> None:
    backbone, split, asking = toy_backbone(), toy_split(COUNT), store(tmp_path, Sharding(3))
    for wanted in (Request(fields=frozenset({Field.FEATURES})), WANTED):  # as `extract` asks for a method's maps
        assert asking.share(backbone, split, wanted) == 0
    assert columns(tmp_path) == whole


def test_a_shard_that_another_job_ends_meanwhile_is_not_counted_as_under_way(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """Job 0 finds shard 1 taken and makes shard 2; whoever had taken shard 1 found shard 2 taken."""
    backbone, split, asking = toy_backbone(), toy_split(COUNT), store(tmp_path, Sharding(3))
    shards, other = planned(asking, backbone), toy_backbone()
    source, outputs = asking._extraction(other, WANTED), backbone.outputs
    shards._folder(1).mkdir(parents=True)
    taken = FileLock(shards._folder(1) / ".lock")
    taken.acquire()

    def meanwhile(images: torch.Tensor, request: Request) -> Outputs:
        if backbone.passes == 40 and taken.is_locked:  # the first batch of shard 2
            taken.release()
            assert shards._made(1, other, source, asking._how, blocking=False)
        return outputs(images, request)

    backbone.outputs = meanwhile  # type: ignore[method-assign]
    assert asking.share(backbone, split, WANTED) == 0
    assert (backbone.passes, other.passes) == (61, 40)
    assert columns(tmp_path) == whole


def test_who_comes_late_to_joined_shards_makes_none_of_them_again(tmp_path: Path, whole: dict[str, bytes]) -> None:
    backbone, split, asking = toy_backbone(), toy_split(COUNT), store(tmp_path, Sharding(3))
    late = planned(asking, backbone)
    assert asking.share(backbone, split, WANTED) == 0
    passes, source = backbone.passes, asking._extraction(backbone, WANTED)
    assert late.make(backbone, source, asking._how, 1, wait=True) == 0
    assert Shards.planned(late.folder, split, late.names, 3, BATCH) is None
    assert backbone.passes == passes
    assert columns(tmp_path) == whole


class Killed(BaseException):
    """Stands for SIGKILL: nothing handles it."""


def killed_at(root: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Have a job make three shards, join them, and be killed where it deletes them."""

    def kill(*arguments: object, **options: object) -> None:
        raise Killed

    monkeypatch.setattr(where, kill)
    with pytest.raises(Killed):
        store(root, Sharding(3)).share(toy_backbone(), toy_split(COUNT), WANTED)
    monkeypatch.undo()
    assert list(root.rglob(FOLDER))


@pytest.mark.parametrize("where", ["Shards.delete", "shutil.rmtree"])
def test_shards_that_a_killed_job_did_not_delete_are_deleted_by_the_next_one(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    killed_at(tmp_path, monkeypatch, f"openbench.features.shards.{where}")
    backbone = toy_backbone()
    store(tmp_path, Sharding()).get(backbone, toy_split(COUNT), WANTED)
    assert backbone.passes == 0
    assert columns(tmp_path) == whole


def test_shards_without_a_plan_are_deleted_by_a_job_that_reads_other_columns(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(tmp_path, monkeypatch, "openbench.features.shards.shutil.rmtree")
    store(tmp_path, Sharding()).get(toy_backbone(), toy_split(COUNT), Request(fields=frozenset({Field.LOGITS})))
    assert columns(tmp_path) == whole


def test_shards_without_a_plan_are_left_to_a_living_job_of_another_version(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    shared(tmp_path, 1, 0)
    [folder] = {path.parent for path in tmp_path.glob("*/*/*.npy")}
    (folder / FOLDER / "0-40").mkdir(parents=True)
    with FileLock(folder / FOLDER / "0-40" / ".lock"):
        Shards.delete_left(folder, toy_split(COUNT), ("logits",))
        assert (folder / FOLDER / "0-40").exists()
    Shards.delete_left(folder, toy_split(COUNT), ("logits",))
    assert columns(tmp_path) == whole


def test_shards_are_left_to_a_job_that_joins_them_and_to_those_that_make_others(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(tmp_path, monkeypatch, "openbench.features.shards.Shards.delete")
    (place,) = tmp_path.glob(f"*/*/{FOLDER}/*")
    with FileLock(place.parent.parent / ".lock"):
        store(tmp_path, Sharding()).get(toy_backbone(), toy_split(COUNT), WANTED)
    assert len(list(place.glob("*-*"))) == 3
    asking = store(tmp_path, Sharding(3))
    other = Shards.planned(place.parent.parent, toy_split(COUNT), ("another",), 3, BATCH)
    assert other is not None
    asking.get(toy_backbone(), toy_split(COUNT), WANTED)
    assert not place.exists()
    assert other.under_way(other.folder, other.split, other.names) == other


def test_a_shard_that_is_joined_while_it_is_looked_at_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path, Sharding()).get(toy_backbone(), toy_split(COUNT), WANTED)
    file = ColumnFile(next(tmp_path.glob("*/*/features.npy")).parent, "features")

    def meanwhile(path: Path) -> str:
        path.unlink()
        return content_digest(path)

    monkeypatch.setattr("openbench.features.arrays.content_digest", meanwhile)
    assert file.fault(COUNT) == "'features.npy' is missing"


def test_a_killed_job_s_unfinished_join_does_not_count_as_taken_room(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, split, asking = toy_backbone(), toy_split(COUNT), store(tmp_path, Sharding(3))
    left = planned(asking, backbone).folder / "features.npy.part"
    left.write_bytes(b"0" * 1000)
    seen = []

    def room(file: ColumnFile, shape: tuple[int, ...], dtype: str) -> int:
        seen.append((file.name, left.exists()))
        return check_room(file, shape, dtype)

    monkeypatch.setattr("openbench.features.shards.check_room", room)
    assert asking.share(backbone, split, WANTED) == 0
    assert ("features", False) in seen
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


def test_a_shard_that_is_none_of_them_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"runtime\.shard — found 3 — allowed: 0 to 2, as runtime\.shards is 3"):
        _ = Runtime(shards=3, shard=3).sharding
    assert Runtime(shards=3, shard=2).sharding == Sharding(3, 2)
    assert Runtime().sharding == Sharding(1, 0)


def test_torchrun_s_processes_are_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "8", "RANK": "5"}.items():
        monkeypatch.setenv(name, value)
    assert Runtime().sharding == Sharding(8, 5)


@pytest.mark.parametrize("rank", ["0", "5"])
def test_fewer_shards_than_processes_of_torchrun_are_refused_in_each_of_them(
    monkeypatch: pytest.MonkeyPatch, rank: str
) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "8", "RANK": rank}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"runtime\.shards — found 2, and torchrun started 8 processes.*8 or more"):
        _ = Runtime(shards=2).sharding
    assert Runtime(shards=9).sharding == Sharding(9, int(rank))
    assert Runtime(shards=2, shard=1).sharding == Sharding(2, 1)
