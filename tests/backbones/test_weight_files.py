"""Weight files: what is accepted, and what each refusal says."""

import os
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

from openbench.backbones.checkpoints import apply_weights, find_weights, read_weights
from openbench.backbones.cifar import renamed
from openbench.digest import file_sha256
from openbench.errors import CheckpointError


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


@pytest.mark.parametrize("wrapper", ["plain", "state_dict", "model", "module."])
def test_state_dicts_are_found_in_their_usual_wrappers(net: nn.Module, tmp_path: Path, wrapper: str) -> None:
    state = net.state_dict()
    content: object = state
    if wrapper == "module.":
        content = {"state_dict": {f"module.{k}": v for k, v in state.items()}, "epoch": 3}
    elif wrapper != "plain":
        content = {wrapper: state, "epoch": 3}
    torch.save(content, tmp_path / "w.ckpt")
    read = read_weights(tmp_path / "w.ckpt")
    assert read.keys() == state.keys()
    assert all(torch.equal(read[k], state[k]) for k in state)


def test_another_hash_is_refused_with_both_hashes(net: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save(net.state_dict(), path)
    read_weights(path, file_sha256(path).upper())
    with pytest.raises(CheckpointError, match=rf"{file_sha256(path)}, expected {'0' * 64}"):
        read_weights(path, "0" * 64)


class Exploit:
    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.flag),)


def test_pickled_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    flag = tmp_path / "ran"
    torch.save({"state_dict": Exploit(flag)}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match="cannot be read as tensors alone"):
        read_weights(tmp_path / "w.pt")
    assert not flag.exists()


@pytest.mark.parametrize(
    "content",
    [
        {"a": 1},
        {},
        3,
        {"state_dict": {"a": torch.ones(1), "b": "text"}},
        {0: torch.zeros(1)},
        {"a": torch.ones(1) * 1j},
    ],
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match="not hold a plain state dict"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"3.weight": torch.zeros(7, 4)}, r"1 of another shape: 3\.weight \(7, 4\) in the file, \(2, 4\)"),
        ({"3.bias": torch.tensor([float("nan"), 0.0])}, r"1 not finite: 3\.bias"),
        ({"3.bias": torch.tensor([1e300, 0.0], dtype=torch.float64)}, r"1 not finite: 3\.bias"),
        ({"3.bias": torch.tensor([1, 2])}, r"1 not of floating point: 3\.bias"),
        ({"extra": torch.zeros(1), "0.bias": None}, r"1 missing: 0\.bias; 1 unknown: extra"),
    ],
)
def test_weights_that_do_not_fit_are_named_and_change_nothing(net: nn.Module, changes, words: str) -> None:
    before = {k: v.clone() for k, v in net.state_dict().items()}
    bad = {k: v for k, v in ({k: v + 1 for k, v in before.items()} | changes).items() if v is not None}
    with pytest.raises(CheckpointError, match=words):
        apply_weights(net, bad, "'w.pt'")
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_half_precision_files_and_absent_counters_fit(net: nn.Module) -> None:
    state = {k: v.half() for k, v in net.state_dict().items() if "num_batches" not in k}
    apply_weights(net, state, "'w'")
    assert net[3].weight.dtype == torch.float32
    assert torch.equal(net[3].weight, state["3.weight"].float())


def test_released_spellings_are_mapped() -> None:
    assert renamed("linear.bias") == "fc.bias"
    assert renamed("layer2.0.downsample.1.running_var") == "layer2.0.shortcut.1.running_var"
    assert renamed("layer2.0.conv1.weight") == "layer2.0.conv1.weight"


def test_weights_are_searched_in_the_data_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENBENCH_DATA", f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}")
    (tmp_path / "b/weights").mkdir(parents=True)
    (tmp_path / "b/weights/net.safetensors").touch()
    assert find_weights("weights/net.safetensors") == tmp_path / "b/weights/net.safetensors"
    with pytest.raises(CheckpointError, match=r"did you mean 'net\.safetensors'.*a/weights/nett.*OPENBENCH_DATA"):
        find_weights("weights/nett.safetensors")


def safetensors_file(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + body


@pytest.mark.parametrize(
    "content",
    [
        b"",
        safetensors_file(b"{}", length=2**63),
        safetensors_file(b"[" * 10_000),
        safetensors_file(b'{"weight":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}', bytes(4)),
        safetensors_file(b'{"weight":{"dtype":"X9","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
        safetensors_file(b"{}"),
    ],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weight_files_of_odd_content_are_refused_by_name(content: bytes, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"w{suffix}'"):
        read_weights(path)
