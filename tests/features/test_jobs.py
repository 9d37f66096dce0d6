"""Killed jobs and jobs that run at the same time: at most a shard is lost, and nothing is computed twice."""

import time
from functools import partial
from pathlib import Path

import pytest
import torch

from openbench.backbones.base import Outputs
from openbench.backbones.network import NetworkBackbone
from openbench.core.request import Field, Request
from openbench.data.loading import batches
from openbench.features.store import FeatureStore

from ..forked import Forked  # noqa: TID252 — the tests are no package
from .feature_toys import toy_backbone, toy_split

WANTED = Request(fields=frozenset({Field.LOGITS, Field.FEATURES, Field.MAPS}), layers=("stage3",), pool="mean")
COUNT = 400
SHARD = 32


def ask(root: Path, seconds_per_batch: float) -> None:
    """Ask the store for all outputs of a slow network, and print how many images passed it and what came out."""
    backbone, split = toy_backbone(), toy_split(COUNT)
    outputs = backbone.outputs

    def slow(images: torch.Tensor, request: Request) -> Outputs:
        time.sleep(seconds_per_batch)
        return outputs(images, request)

    backbone.outputs = slow  # type: ignore[method-assign]
    got = FeatureStore(root, batch_size=8, progress=False, shard=SHARD).get(backbone, split, WANTED)
    print(backbone.passes, float(got.logits.sum()), float(got.map("stage3").sum()))


def start(root: Path, seconds_per_batch: float, number: int = 0) -> Forked:
    return Forked(partial(ask, root, seconds_per_batch), root.parent / f"{root.name}.{number}.said")


def growing_rows(root: Path) -> int:
    parts = list(root.glob("*/*/logits.npy.part"))
    return 0 if not parts else parts[0].stat().st_size // (3 * 4)


def killed_midway(root: Path) -> None:
    job = start(root, 0.02)
    deadline = time.monotonic() + 600
    while growing_rows(root) < 3 * SHARD:
        assert time.monotonic() < deadline
        assert job.runs
        time.sleep(0.005)
    job.kill()
    job.ended()
    assert not list(root.glob("*/*/*.npy")), "the job finished before it was killed"


def expected_outputs() -> Outputs:
    backbone, split = toy_backbone(), toy_split(COUNT)
    return backbone.outputs(torch.cat(list(batches(split, backbone.preprocess, 50))), WANTED)


def resumed(root: Path, backbone: NetworkBackbone) -> None:
    split, store = toy_split(COUNT), FeatureStore(root, batch_size=8, progress=False, shard=SHARD)
    got, expected = store.get(backbone, split, WANTED), expected_outputs()
    torch.testing.assert_close(got.logits, expected.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.features, expected.features, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got.map("stage3"), expected.maps["stage3"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_killed_job_loses_at_most_a_shard(tmp_path: Path) -> None:
    killed_midway(tmp_path)
    backbone = toy_backbone()
    resumed(tmp_path, backbone)
    # Two shards were surely flushed before the third was under way.
    assert backbone.passes <= COUNT - 2 * SHARD


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", ["logits.npy.part", "maps.stage3.mean.npy.part", "progress.json"])
def test_what_a_killed_job_left_is_not_trusted_if_it_was_altered(tmp_path: Path, name: str) -> None:
    killed_midway(tmp_path)
    (path,) = tmp_path.glob(f"*/*/{name}")
    content = bytearray(path.read_bytes())
    content[200 if name.endswith(".part") else 5] ^= 1
    path.write_bytes(content)
    backbone = toy_backbone()
    resumed(tmp_path, backbone)
    assert backbone.passes == COUNT


@pytest.mark.slow
def test_of_three_jobs_one_computes_and_all_get_the_same(tmp_path: Path) -> None:
    jobs = [start(tmp_path / "store", 0.01, number) for number in range(3)]
    ends = [job.ended() for job in jobs]
    assert [code for code, _ in ends] == [0, 0, 0], ends
    lines = [said.splitlines()[-1].split() for _, said in ends]
    assert sorted(int(passes) for passes, *_ in lines) == [0, 0, COUNT]
    assert len({tuple(sums) for _, *sums in lines}) == 1


@pytest.mark.slow
def test_a_job_that_waited_for_a_killed_one_goes_on_from_there(tmp_path: Path) -> None:
    root = tmp_path / "store"
    first = start(root, 0.02)
    deadline = time.monotonic() + 600
    while growing_rows(root) < 2 * SHARD and time.monotonic() < deadline:
        time.sleep(0.005)
    second = start(root, 0.0, 1)
    time.sleep(0.2)
    assert second.runs, "the second job did not wait"
    first.kill()
    first.ended()
    code, said = second.ended()
    assert code == 0, said
    assert 0 < int(said.splitlines()[-1].split()[0]) <= COUNT - SHARD
