import hashlib

import pytest

from openbench.data.download.fetch import Expected, Patience, fetch
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
def waits():
    return []


@pytest.fixture
def get(tmp_path, waits):
    target = tmp_path / "store" / "a.bin"

    def call(expected):
        fetch(expected, target, lambda text: None, Patience(attempts=3, timeout=5.0, sleep=waits.append))
        return target

    call.target = target
    call.part = target.with_name("a.bin.part")
    return call


def test_a_file_arrives_whole_and_leaves_nothing_beside_it(server, get):
    assert get(Expected((server.url("/a.bin"),), len(BODY), MD5)).read_bytes() == BODY
    assert [p.name for p in get.target.parent.iterdir()] == ["a.bin"]


def test_a_long_download_tells_how_far_it_is(server, tmp_path, monkeypatch):
    monkeypatch.setattr("openbench.data.download.fetch._TELL_EVERY", -1.0)  # after every piece
    said = []
    fetch(Expected((server.url("/a.bin"),), len(BODY), MD5), tmp_path / "a.bin", said.append, Patience())
    assert [text.partition(": ")[2] for text in said if "%" in text] == [
        f"{done / 1e6:.0f} of 1 MB ({done / len(BODY):.0%})" for done in (1 << 18, 2 << 18, 3 << 18, len(BODY))
    ]


def test_after_a_drop_only_the_rest_is_asked_for(server, get):
    server.faults.extend(["drop:300000", "drop:100000"])
    assert get(Expected((server.url("/a.bin"),), len(BODY), MD5)).read_bytes() == BODY
    assert [wanted for _, wanted in server.asked] == [None, "bytes=300000-", "bytes=400000-"]


def test_the_next_process_goes_on_where_a_killed_one_stopped(server, get):
    server.faults.extend(["drop:500000", "status:503", "status:503", "status:503"])
    with pytest.raises(DataError, match="503"):
        get(Expected((server.url("/a.bin"),), len(BODY), MD5))
    assert not get.target.exists()
    assert get.part.stat().st_size == 500000
    assert get(Expected((server.url("/a.bin"),), len(BODY), MD5)).read_bytes() == BODY
    assert server.asked[-1][1] == "bytes=500000-"


def test_a_file_that_changed_meanwhile_is_fetched_from_its_beginning(server, get):
    get.part.parent.mkdir()
    server.faults.append("drop:1000")
    server.faults.extend(["status:500"] * 3)
    with pytest.raises(DataError):
        get(Expected((server.url("/a.bin"),)))
    server.files["/a.bin"] = BODY[::-1]
    assert get(Expected((server.url("/a.bin"),))).read_bytes() == BODY[::-1]


def test_a_server_without_ranges_starts_over(server, get):
    server.faults.extend(["drop:1000", "whole"])
    assert get(Expected((server.url("/a.bin"),), len(BODY), MD5)).read_bytes() == BODY


def test_without_tag_size_or_hash_nothing_is_resumed(server, get):
    server.tags = False
    server.faults.append("drop:1000")
    assert get(Expected((server.url("/a.bin"),))).read_bytes() == BODY
    assert server.asked[-1][1] is None


def test_a_part_that_does_not_belong_is_thrown_away_once(server, get):
    get.part.parent.mkdir()
    get.part.write_bytes(b"\0" * 1000)
    assert get(Expected((server.url("/a.bin"),), len(BODY), MD5)).read_bytes() == BODY
    assert [wanted for _, wanted in server.asked] == ["bytes=1000-", None]


def test_a_part_longer_than_the_file_is_thrown_away(server, get):
    get.part.parent.mkdir()
    get.part.write_bytes(BODY + b"more")
    assert get(Expected((server.url("/a.bin"),), len(BODY), MD5)).read_bytes() == BODY


def test_wrong_bytes_never_get_the_name_and_the_next_mirror_is_tried(server, get):
    server.files["/spoilt.bin"] = b"x" + BODY[1:]
    expected = Expected((server.url("/spoilt.bin"), server.url("/a.bin")), len(BODY), MD5)
    assert get(expected).read_bytes() == BODY
    assert [path for path, _ in server.asked] == ["/spoilt.bin", "/a.bin"]


def test_wrong_bytes_everywhere_say_both_hashes(server, get):
    server.files["/a.bin"] = b"x" + BODY[1:]
    with pytest.raises(DataError) as caught:
        get(Expected((server.url("/a.bin"),), None, MD5))
    assert MD5 in str(caught.value)
    assert hashlib.md5(b"x" + BODY[1:]).hexdigest() in str(caught.value)
    assert not get.target.exists()
    assert not get.part.exists()


def test_a_sha256_is_checked_too(server, get):
    right = Expected((server.url("/a.bin"),), sha256=hashlib.sha256(BODY).hexdigest())
    with pytest.raises(DataError, match="sha256"):
        get(Expected(right.urls, sha256="0" * 64))
    assert get(right).read_bytes() == BODY


def test_a_server_that_offers_another_size_is_not_believed(server, get):
    server.files["/a.bin"] = b"<html>not found</html>"
    with pytest.raises(DataError, match="offers 22 bytes"):
        get(Expected((server.url("/a.bin"),), len(BODY)))
    assert not get.target.exists()


def test_what_is_not_there_is_not_asked_for_again(server, get, waits):
    with pytest.raises(DataError, match="404"):
        get(Expected((server.url("/none"),)))
    assert len(server.asked) == 1
    assert waits == []


def test_the_pauses_double_and_begin_anew_after_progress(server, get, waits):
    server.faults.extend(["status:500", "status:500", "drop:10", "status:500"])
    assert get(Expected((server.url("/a.bin"),), len(BODY), MD5)).read_bytes() == BODY
    assert waits == [1.0, 2.0, 1.0]


def test_a_server_that_is_not_there_is_reported(get, server):
    url = server.url("/a.bin")
    server.close()
    with pytest.raises(DataError, match="could not be downloaded"):
        get(Expected((url,)))
    server.server, server.thread = FileServer().server, server.thread


def test_other_schemes_are_refused(get, tmp_path):
    (tmp_path / "secret").write_text("local")
    with pytest.raises(DataError, match="only http and https"):
        get(Expected(((tmp_path / "secret").as_uri(),)))
