"""Downloads: resumed, checked, unpacked, and never half there."""

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace

import pytest

from openbench import _compat, paths
from openbench.data import download
from openbench.data.download import RemoteFile, data_sources, fetch, prepare_file
from openbench.errors import DataError

from .file_server import FileServer

FILES = {"set/one.bin": b"1" * 5000, "set/deep/two.bin": b"2" * 3000, "readme": b"r"}


def tar_of(files, mode="w:gz"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as pack:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            pack.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def zip_of(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as pack:
        for name, content in files.items():
            pack.writestr(name, content)
    return stream.getvalue()


@pytest.fixture
def server():
    running = FileServer()
    yield running
    running.close()


@pytest.fixture
def offered(server):
    def offer(body, unpack="tar", name="/pack.tar.gz", **changes):
        server.files[name] = body
        facts = {"size": len(body), "md5": hashlib.md5(body).hexdigest()}
        file = RemoteFile(server.url(name), "my/set", unpack=unpack, member="set" if unpack else ".", **facts)
        return replace(file, **changes)

    return offer


def visible(root):
    return sorted(
        p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and download.DOWNLOADS not in p.parts
    )


@pytest.mark.parametrize(("make", "unpack"), [(tar_of, "tar"), (zip_of, "zip")])
def test_an_archive_becomes_its_folder_and_nothing_else_once(offered, server, tmp_path, make, unpack):
    file = offered(make(FILES | {"set/deep/two..dots.bin": b"3"}), unpack)
    prepare_file(file, tmp_path)
    assert "is there" in prepare_file(file, tmp_path)
    assert len(server.asked) == 1
    assert visible(tmp_path) == ["my/set/deep/two..dots.bin", "my/set/deep/two.bin", "my/set/one.bin"]
    assert (tmp_path / "my/set/one.bin").read_bytes() == FILES["set/one.bin"]
    assert [p.name for p in (tmp_path / download.DOWNLOADS).iterdir()] == ["pack.tar.gz.lock"]


def test_a_single_file_is_put_where_it_belongs(offered, tmp_path):
    prepare_file(offered(b"content", None, gives="raw/images.gz"), tmp_path)
    assert (tmp_path / "raw/images.gz").read_bytes() == b"content"


def test_a_folder_that_somebody_left_half_filled_is_neither_trusted_nor_touched(offered, server, tmp_path):
    digests = {"one.bin": hashlib.md5(FILES["set/one.bin"]).hexdigest()}
    file = offered(tar_of(FILES), holds=digests)
    for content, problem in ((None, "'one.bin' is missing"), (b"half", "'one.bin' is not the published file")):
        folder = tmp_path / str(problem) / "my" / "set"
        folder.mkdir(parents=True)
        (folder / "other").write_bytes(b"mine")
        if content:
            (folder / "one.bin").write_bytes(content)
        with pytest.raises(DataError, match=problem):
            prepare_file(file, tmp_path / str(problem))
        assert (folder / "other").read_bytes() == b"mine"
    assert server.asked == []


def test_a_process_killed_while_unpacking_leaves_no_half_folder_and_no_second_download(offered, server, tmp_path):
    file = offered(tar_of(FILES))
    killed = (
        "import os, sys, tarfile\n"
        "from pathlib import Path\n"
        "from openbench.data.download import RemoteFile, prepare_file\n"
        "one = tarfile.TarFile.extract\n"
        "def extractall(pack, path, **rest):\n"
        "    one(pack, 'set/one.bin', path, filter='data')\n"
        "    os._exit(9)\n"
        "tarfile.TarFile.extractall = extractall\n"
        "file = RemoteFile(sys.argv[1], 'my/set', int(sys.argv[2]), sys.argv[3], unpack='tar', member='set')\n"
        "prepare_file(file, Path(sys.argv[4]))\n"
    )
    facts = [file.url, str(file.size), file.md5, str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", killed, *facts], capture_output=True, text=True)
    assert done.returncode == 9, done.stderr
    assert visible(tmp_path) == []
    assert not (tmp_path / "my").exists() or not (tmp_path / "my" / "set").exists()
    prepare_file(file, tmp_path)
    assert visible(tmp_path) == ["my/set/deep/two.bin", "my/set/one.bin"]
    assert len(server.asked) == 1


def test_the_sources_file_can_be_read_and_every_entry_has_a_data_set():
    sources = data_sources()
    configs = {path.stem for path in (paths.config_dir() / "dataset").glob("*.yaml")}
    assert set(sources) <= configs
    for source in sources.values():
        assert source.licence
        assert source.files or source.by_hand
        assert source.page.startswith("http")
        for file in source.files:
            assert all(url.startswith(("http://", "https://")) for url in file.urls)
            assert not file.gives.startswith(("/", ".."))


def test_hashes_agree_with_those_in_torchvision():
    published_by = _compat.library("torchvision").datasets
    CIFAR10, CIFAR100, MNIST = published_by.CIFAR10, published_by.CIFAR100, published_by.MNIST
    FashionMNIST, KMNIST = published_by.FashionMNIST, published_by.KMNIST
    by_name = {file.name: file for source in data_sources().values() for file in source.files}
    assert by_name["cifar-10-python.tar.gz"].md5 == CIFAR10.tgz_md5
    assert by_name["cifar-100-python.tar.gz"].md5 == CIFAR100.tgz_md5
    for cls, file in ((CIFAR10, "cifar-10-python.tar.gz"), (CIFAR100, "cifar-100-python.tar.gz")):
        published = dict([*cls.train_list, *cls.test_list, (cls.meta["filename"], cls.meta["md5"])])
        assert by_name[file].holds == published
    for name, cls in {"mnist": MNIST, "fashion_mnist": FashionMNIST, "kmnist": KMNIST}.items():
        assert {file.name: file.md5 for file in data_sources()[name].files} == dict(cls.resources)
    assert by_name["test_32x32.mat"].md5 == published_by.SVHN.split_list["test"][2]
    assert by_name["dtd-r1.0.1.tar.gz"].md5 == published_by.DTD._MD5
    places = published_by.Places365._IMAGES_META
    for file, of in (("val_256.tar", "val"), ("train_256_places365standard.tar", "train-standard")):
        assert (file, by_name[file].md5) == places[of, True]


BODY = bytes(range(256)) * 4000
MD5 = hashlib.md5(BODY).hexdigest()


@pytest.fixture
def waits(monkeypatch):
    found = []
    monkeypatch.setattr("openbench.data.download.time.sleep", found.append)
    return found


@pytest.fixture
def get(tmp_path, waits, server):
    server.files["/a.bin"] = BODY
    target = tmp_path / "store" / "a.bin"
    target.parent.mkdir()

    def call(*urls, size=None, md5=None, sha256=None):
        fetch(RemoteFile(urls, "a.bin", size, md5, sha256), target)
        return target

    call.target = target
    call.part = target.with_name("a.bin.part")
    return call


def test_after_a_drop_only_the_rest_is_asked_for(server, get):
    server.faults.extend(["drop:300000", "drop:600000"])
    assert get(server.url("/a.bin"), size=len(BODY), md5=MD5).read_bytes() == BODY
    assert [wanted for _, wanted in server.asked] == [None, "bytes=262144-", "bytes=786432-"]


def test_the_next_process_goes_on_where_a_killed_one_stopped(server, get):
    server.faults.extend(["drop:524288", *["status:503"] * 5])
    with pytest.raises(DataError, match="503"):
        get(server.url("/a.bin"), size=len(BODY), md5=MD5)
    assert not get.target.exists()
    assert get.part.stat().st_size == 524288
    assert get(server.url("/a.bin"), size=len(BODY), md5=MD5).read_bytes() == BODY
    assert server.asked[-1][1] == "bytes=524288-"


def test_a_server_without_ranges_starts_over(server, get):
    server.faults.extend(["drop:1000", "whole"])
    assert get(server.url("/a.bin"), size=len(BODY), md5=MD5).read_bytes() == BODY


def test_a_part_that_does_not_belong_is_thrown_away_once(server, get):
    get.part.write_bytes(b"\0" * 1000)
    assert get(server.url("/a.bin"), size=len(BODY), md5=MD5).read_bytes() == BODY
    assert [wanted for _, wanted in server.asked] == ["bytes=1000-", None]


def test_wrong_bytes_never_get_the_name_and_the_next_mirror_is_tried(server, get):
    server.files["/spoilt.bin"] = b"x" + BODY[1:]
    assert get(server.url("/spoilt.bin"), server.url("/a.bin"), size=len(BODY), md5=MD5).read_bytes() == BODY
    assert [path for path, _ in server.asked] == ["/spoilt.bin", "/a.bin"]


def test_wrong_bytes_everywhere_say_both_hashes(server, get):
    server.files["/a.bin"] = b"x" + BODY[1:]
    with pytest.raises(DataError) as caught:
        get(server.url("/a.bin"), md5=MD5)
    assert MD5 in str(caught.value)
    assert hashlib.md5(b"x" + BODY[1:]).hexdigest() in str(caught.value)
    assert not get.target.exists()
    assert not get.part.exists()


def test_what_is_not_there_is_not_asked_for_again(server, get):
    with pytest.raises(DataError, match="404"):
        get(server.url("/none"))
    assert len(server.asked) == 1


def test_other_schemes_are_refused(get, tmp_path):
    (tmp_path / "secret").write_text("local")
    with pytest.raises(DataError, match="could not be downloaded"):
        get((tmp_path / "secret").as_uri())
