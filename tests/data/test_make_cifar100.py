"""CIFAR-100's training file from its images: byte for byte what a pickle of the same content begins and ends with."""

import hashlib
import importlib.util
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "make_cifar100.py"
NAMES = ["fox_s_000001.png", "oak_s_000002.png", "fox_s_000003.png"]


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("make_cifar100", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    size = len(NAMES) * module.PIXELS
    monkeypatch.setattr(module, "LENGTH", b"T" + size.to_bytes(4, "little"))
    return module


@pytest.fixture
def official(tmp_path):
    """A file with the layout of the published one, which Python 2 wrote: the pixels are the last string."""
    pixels = np.random.default_rng(0).integers(0, 256, (len(NAMES), 3, 32, 32), dtype=np.uint8)
    for name, planes in zip(NAMES, pixels, strict=True):
        Image.fromarray(planes.transpose(1, 2, 0)).save(tmp_path / name)
    names = b"".join(b"U" + bytes([len(name)]) + name.encode() for name in NAMES)
    head = b"\x80\x02}(U\x09filenames](" + names + b"eU\x04data("
    return head + b"T" + pixels.size.to_bytes(4, "little") + pixels.tobytes() + b"tbu."


@pytest.fixture
def call(script, tmp_path, monkeypatch):
    """Give the script a header; what it returns."""

    def run(header):
        (tmp_path / "header").write_bytes(header)
        words = [tmp_path, tmp_path / "header", tmp_path / "train"]
        monkeypatch.setattr(sys, "argv", ["make_cifar100.py", *map(str, words)])
        return script.main()

    return run


def test_the_file_is_the_official_one_byte_for_byte(script, official, tmp_path, monkeypatch, call):
    monkeypatch.setattr(script, "MD5", hashlib.md5(official).hexdigest())
    assert call(official[:-5000]) == 0
    assert (tmp_path / "train").read_bytes() == official


def test_other_images_and_a_header_without_pixels_write_nothing(official, tmp_path, call):
    with pytest.raises(SystemExit, match="is published"):
        call(official)
    (tmp_path / NAMES[1]).unlink()
    with pytest.raises(SystemExit, match="lacks 1 of 3 images, such as oak_s_000002"):
        call(official)
    with pytest.raises(SystemExit, match="cut off before the pixels"):
        call(official[:40])
    assert not (tmp_path / "train").exists()


class Runs:
    def __reduce__(self):
        return exec, ("raise SystemError",)


def test_a_header_runs_nothing(official, call):
    """Opcodes are read, never executed."""
    with pytest.raises(SystemExit, match="is published"):
        call(pickle.dumps(Runs(), protocol=2)[:-1] + official)
