"""Large files are read once for each state that they are met in."""

import hashlib
import os

import pytest

from openbench.digest import BlockHasher, file_digest
from openbench.storage import content
from openbench.storage.content import content_digest, remember

BLOCK = 1 << 22


def expected(whole: bytes) -> str:
    """The definition, written out."""
    blocks = [hashlib.sha256(whole[i : i + BLOCK]).digest() for i in range(0, len(whole), BLOCK)]
    return hashlib.sha256(b"".join(blocks)).hexdigest()


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 77])
def test_file_and_hasher_agree_with_the_definition(tmp_path, size):
    whole = os.urandom(size)
    (tmp_path / "file").write_bytes(whole)
    hasher = BlockHasher()
    for start in range(0, size, 1_000_003):
        hasher.update(whole[start : start + 1_000_003])
    assert file_digest(tmp_path / "file") == hasher.hexdigest() == expected(whole)
    assert file_digest(tmp_path / "file", size // 2) == expected(whole[: size // 2])


def test_a_file_shorter_than_said_has_no_digest(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    with pytest.raises(ValueError, match="fewer than 4 bytes"):
        file_digest(tmp_path / "file", 4)


@pytest.fixture
def reads(monkeypatch):
    """The paths that were read for their digest."""
    found = []
    monkeypatch.setattr(content, "file_digest", lambda path: found.append(path) or file_digest(path))
    return found


def test_a_file_is_read_once(tmp_path, reads):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert content_digest(path) == content_digest(path) == expected(b"abc")
    assert reads == [path]


def test_a_change_is_noticed_though_size_and_time_stamp_are_the_same(tmp_path, reads):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    content_digest(path)
    before = path.stat()
    path.write_bytes(b"abd")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert content_digest(path) == expected(b"abd")
    assert len(reads) == 2


def test_a_file_written_here_is_not_read_again(tmp_path, reads):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    remember(path, expected(b"abc"))
    assert content_digest(path) == expected(b"abc")
    assert reads == []
