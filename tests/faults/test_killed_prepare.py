"""`data prepare` killed at any of its file operations or while a download comes in: the same command goes on."""

import hashlib
import http.client
import io
import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from openbench.data import download
from openbench.data.download import DataSource, RemoteFile

from ..data.file_server import FileServer  # noqa: TID252 — the tests are no package
from .conftest import COUNTS, DEEP, Place, sampled
from .states import at_each_change_below, kill_at, write_down

CHUNK = 1 << 12
# Every STRIDE-th operation; each seed begins elsewhere.
STRIDE = int(os.environ.get("OPENBENCH_FAULTS_STRIDE", "1" if DEEP else "5"))
PLAIN = bytes(range(256)) * 100
IMAGES = {f"set/{name}.bin": name.encode() * 3000 for name in ("one", "two", "deep/three")}


def archive(files: dict[str, bytes]) -> bytes:
    """A tar file of these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as pack:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            pack.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def server():
    """What the data sets are downloaded from."""
    running = FileServer()
    yield running
    running.close()


@pytest.fixture
def sources(server: FileServer) -> dict[str, DataSource]:
    """A data set that is one file, and one that is the folder of an archive."""

    def remote(name: str, body: bytes, **rest: str) -> RemoteFile:
        server.files[f"/{name}"] = body
        facts = {"size": len(body), "md5": hashlib.md5(body).hexdigest()}
        return RemoteFile(server.url(f"/{name}"), **facts, **rest)

    files = {
        "plain": remote("plain.bin", PLAIN, gives="plain/images.bin"),
        "packed": remote("packed.tar", archive(IMAGES), gives="packed/set", unpack="tar", member="set"),
    }
    return {name: DataSource(name, name, "free", "http://x", (file,)) for name, file in files.items()}


def offering(sources: dict[str, DataSource], root: Path, act: Callable[[int], object]) -> None:
    """Have this process know these data sets, and call `act(n)` before its n-th change below the root or answer."""
    download.data_sources = lambda: sources
    download._CHUNK = CHUNK
    real, count = http.client.HTTPResponse.read, 0

    def at(_: int) -> None:
        nonlocal count
        count += 1
        act(count)

    def read(answer: http.client.HTTPResponse, amount: int | None = None) -> bytes:
        at(0)
        return real(answer, amount)

    http.client.HTTPResponse.read = read
    at_each_change_below([root], at)


def files_below(root: Path) -> dict[str, bytes]:
    """Every file but locks."""
    found = [p for p in root.rglob("*") if p.is_file() and p.suffix != ".lock"]
    return {str(p.relative_to(root)): p.read_bytes() for p in found}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "packed"])
def test_a_killed_data_prepare_goes_on(place: Place, sources: dict[str, DataSource], server: FileServer, name: str):
    root, note = place.folder / "downloads", place.folder / "count"
    command = ["data", "prepare", name, "--root", str(root)]
    counting = partial(offering, sources, root, partial(write_down, note))
    assert place.run(counting, command).code == 0
    expected, total, resumed, wrong = files_below(root), int(note.read_text()), 0, []
    for last in sampled(range(1, total + 1), STRIDE):
        COUNTS["operations stopped"] += 1
        shutil.rmtree(root)
        assert place.run(partial(offering, sources, root, partial(kill_at, last)), command).code == -signal.SIGKILL
        server.asked.clear()
        again = place.run(partial(offering, sources, root, partial(kill_at, 0)), command)
        resumed += any(wanted for _, wanted in server.asked)
        if again.code != 0 or files_below(root) != expected:
            wrong.append((last, again, sorted(set(files_below(root)) ^ set(expected))))
    shutil.rmtree(root)
    assert wrong == []
    assert total > 15
    assert resumed
