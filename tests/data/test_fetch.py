import hashlib

import pytest

from openbench.data.download import RemoteFile, fetch
from openbench.errors import DataError

from .file_server import FileServer

BODY = bytes(range(256)) * 4000
MD5 = hashlib.md5(BODY).hexdigest()


@pytest.fixture
def server():
    running = FileServer()
    running.files["/a.bin"] = BODY
    yield running
    running.close()


@pytest.fixture
def waits(monkeypatch):
    found = []
    monkeypatch.setattr("openbench.data.download.time.sleep", found.append)
    return found


@pytest.fixture
def get(tmp_path, waits):
    target = tmp_path / "store" / "a.bin"
    target.parent.mkdir()

    def call(*urls, size=None, md5=None, sha256=None):
        fetch(RemoteFile(urls, "a.bin", size, md5, sha256), target)
        return target

    call.target = target
    call.part = target.with_name("a.bin.part")
    return call


def test_a_file_arrives_whole_and_leaves_nothing_beside_it(server, get):
    assert get(server.url("/a.bin"), size=len(BODY), md5=MD5).read_bytes() == BODY
    assert [p.name for p in get.target.parent.iterdir()] == ["a.bin"]


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
