"""Killed jobs and jobs that run at the same time: at most a shard is lost, and nothing is computed twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from openbench.backbones.base import Outputs
from openbench.backbones.network import NetworkBackbone
from openbench.core.request import Field, Request
from openbench.data.loading import batches
from openbench.features.store import FeatureStore

from .feature_toys import toy_backbone, toy_split

HERE = Path(__file__).parent
WANTED = Request(fields=frozenset({Field.LOGITS, Field.FEATURES, Field.MAPS}), layers=("stage3",), pool="mean")
COUNT = 400
SHARD = 32

SLOW_JOB = f"""
import sys, time
sys.path.insert(0, {str(HERE.parents[1])!r})
from pathlib import Path
from tests.features import feature_toys
from openbench.core.request import Field, Request
from openbench.features.store import FeatureStore

backbone, split = feature_toys.toy_backbone(), feature_toys.toy_split({COUNT})
outputs = backbone.outputs
def slow(images, request):
    time.sleep(float(sys.argv[2]))
    return outputs(images, request)
backbone.outputs = slow
wanted = Request(fields=frozenset({{Field.LOGITS, Field.FEATURES, Field.MAPS}}), layers=("stage3",), pool="mean")
print("ready", flush=True)
sys.stdin.readline()
store = FeatureStore(Path(sys.argv[1]), batch_size=8, progress=False, shard={SHARD})
got = store.get(backbone, split, wanted)
print(backbone.passes, float(got.logits.sum()), float(got.map("stage3").sum()), flush=True)
"""


def start(root: Path, seconds_per_batch: float) -> "subprocess.Popen[str]":
    """A job that has imported everything and waits for a line before it asks the store."""
    job = subprocess.Popen(
        [sys.executable, "-c", SLOW_JOB, str(root), str(seconds_per_batch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    return job


def release(job: "subprocess.Popen[str]") -> None:
    assert job.stdin is not None
    job.stdin.write("\n")
    job.stdin.flush()


def kill(job: "subprocess.Popen[str]") -> None:
    job.send_signal(signal.SIGKILL)
    job.communicate()


def growing_rows(root: Path) -> int:
    parts = list(root.glob("*/*/logits.npy.part"))
    return 0 if not parts else parts[0].stat().st_size // (3 * 4)


def killed_midway(root: Path) -> None:
    job = start(root, 0.02)
    release(job)
    deadline = time.monotonic() + 60
    while growing_rows(root) < 3 * SHARD:
        assert time.monotonic() < deadline
        assert job.poll() is None
        time.sleep(0.005)
    kill(job)
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


def test_a_killed_job_loses_at_most_a_shard(tmp_path: Path) -> None:
    killed_midway(tmp_path)
    backbone = toy_backbone()
    resumed(tmp_path, backbone)
    # Two shards were surely flushed before the third was under way.
    assert backbone.passes <= COUNT - 2 * SHARD


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


def test_of_three_jobs_one_computes_and_all_get_the_same(tmp_path: Path) -> None:
    jobs = [start(tmp_path, 0.01) for _ in range(3)]
    for job in jobs:
        release(job)
    lines = [job.communicate(timeout=120)[0].split() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0]
    assert sorted(int(passes) for passes, *_ in lines) == [0, 0, COUNT]
    assert len({tuple(sums) for _, *sums in lines}) == 1


def test_a_job_that_waited_for_a_killed_one_goes_on_from_there(tmp_path: Path) -> None:
    first, second = start(tmp_path, 0.02), start(tmp_path, 0.0)
    release(first)
    deadline = time.monotonic() + 60
    while growing_rows(tmp_path) < 2 * SHARD and time.monotonic() < deadline:
        time.sleep(0.005)
    release(second)
    time.sleep(0.2)
    assert second.poll() is None, "the second job did not wait"
    kill(first)
    passes = int(second.communicate(timeout=60)[0].split()[0])
    assert 0 < passes <= COUNT - SHARD
