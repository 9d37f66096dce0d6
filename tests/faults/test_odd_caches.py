"""Caches that cannot be written, or have odd names: the run ends as always, or in one message."""

import ctypes
import os
import shutil
import struct
from functools import partial
from pathlib import Path

import pytest

from .conftest import RUN, Place, Written
from .waiting import Waiting


def without_rights() -> None:
    """Give up root's right to write what is read-only; as another user, Python itself might not be readable."""
    if os.getuid() == 0:
        header = struct.pack("Ii", 0x20080522, 0)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.capset(header, bytes(24))


def elsewhere(cache: Path) -> None:
    """Have this process use another cache."""
    os.environ["OPENBENCH_CACHE"] = str(cache)


def readable(folder: Path) -> None:
    """Let everybody read a folder, the way to it included, and nobody write; only records may be written."""
    for parent in list(folder.parents)[:3]:
        parent.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    folder.chmod(0o555)


@pytest.fixture
def read_only(place: Place, undisturbed: dict[str, Written]):
    """A cache with all that an undisturbed run left, which can only be read; no record."""
    place.reset({name: file for name, file in undisturbed.items() if not name.startswith("results/")})
    readable(place.folder / "cache")
    (place.folder / "results").mkdir()
    (place.folder / "results").chmod(0o777)
    yield place
    for path in (place.folder / "cache", *(place.folder / "cache").rglob("*")):
        path.chmod(0o755)


def test_a_read_only_cache_with_everything_in_it_is_enough(
    read_only: Place, waiting: Waiting, undisturbed: dict[str, Written]
):
    ending = waiting.run(without_rights)
    assert ending.code == 0, ending.text
    warnings = [line for line in ending.text.splitlines() if line.startswith("WARNING")]
    assert [line.partition("to '")[0] for line in warnings] == ["WARNING: scores cannot be written "]
    found = read_only.metrics
    read_only.reset(undisturbed)
    assert found == read_only.metrics


def test_a_read_only_cache_that_lacks_something_is_named(read_only: Place, waiting: Waiting):
    for features in (read_only.folder / "cache" / "features").rglob("features.npy"):
        features.parent.chmod(0o755)
        features.unlink()
        features.parent.chmod(0o555)
    ending = waiting.run(without_rights)
    assert ending.refused, ending.text
    assert str(read_only.folder / "cache") in ending.text


ODD = ["with space", "back\\slash", "${dollar}", "a=b,c", "new\nline", "quote'\"", "ümlaut", "%s{}", "[x]", "-m"]


@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["run", "sweep"])
@pytest.mark.parametrize("name", [*ODD, "\udcff"], ids=ascii)
def test_a_cache_of_any_name_works_or_is_refused(
    place: Place, undisturbed: dict[str, Written], name: str, sweep: tuple[str, ...]
):
    if sweep and name in ODD[4:] and os.environ.get("OPENBENCH_FAULTS_NAMES") != "all":
        pytest.skip("every name with OPENBENCH_FAULTS_NAMES=all")
    place.reset(undisturbed)
    expected = place.metrics
    shutil.rmtree(place.folder / "results")
    cache = place.folder / "odd" / name
    refused = name == "\udcff" or (sweep and "${" in name)
    if name != "\udcff":
        shutil.copytree(place.folder / "cache", cache)
    ending = place.run(partial(elsewhere, cache), [*RUN, *sweep])
    shutil.rmtree(place.folder / "odd", ignore_errors=True)
    if refused:
        assert ending.refused, ending.text
    else:
        assert ending.code == 0, ending.text
        assert place.metrics == expected


@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["run", "sweep"])
@pytest.mark.parametrize("kind", ["file", "too long", "below a file", "dangling link"])
def test_a_cache_that_can_be_no_folder_is_one_message(place: Place, undisturbed, kind: str, sweep, tmp_path: Path):
    place.reset({})
    file = tmp_path / "file"
    file.write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "none" / "none")
    cache = {"file": file, "too long": tmp_path / ("x" * 300), "below a file": file / "cache"}.get(
        kind, tmp_path / "link"
    )
    ending = place.run(partial(elsewhere, cache), [*RUN, *sweep])
    assert ending.refused, (ending.code, ending.text)
    assert kind == "too long" or "error: OPENBENCH_CACHE: '" in ending.text, ending.text
