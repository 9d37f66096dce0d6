"""Files appear whole or not at all, pipes and files without end are not read, and a lock is held by one process."""

import errno
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from openbench.storage import files
from openbench.storage.files import creating, forbidden, only_one, output, read_regular, replacing, write_whole


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_content_replaces_what_was_there(tmp_path):
    write_whole(tmp_path / "deep" / "file", b"old")
    write_whole(tmp_path / "deep" / "file", b"new")
    assert (tmp_path / "deep" / "file").read_bytes() == b"new"
    assert names(tmp_path / "deep") == ["file"]


def test_a_failing_block_and_a_full_disk_leave_the_old_content_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as stream:
        stream.write(b"half" * (1 // 0))

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_creating_does_not_touch_a_file_that_exists(tmp_path):
    path = tmp_path / "file"
    with creating(path) as stream:
        stream.write(b"first")
    with pytest.raises(FileExistsError), creating(path) as stream:
        stream.write(b"second")
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["file"]


def test_what_a_killed_writer_left_is_deleted_a_day_later(tmp_path):
    old, new, other = (tmp_path / f".{name}.tmp" for name in ("[ab]*.0", "[ab]*.1", "a.0"))
    for left in (old, new, other):
        left.write_bytes(b"half")
    for left in (old, other):
        os.utime(left, (0, 0))
    write_whole(tmp_path / "[ab]*", b"whole")
    assert names(tmp_path) == sorted([new.name, other.name, "[ab]*"])


def test_text_that_a_user_asked_for_appears_whole_in_utf_8_with_its_line_ends(tmp_path):
    path = tmp_path / "table.md"
    with output(path) as text:
        text.write("δ = 0.05\n")
        assert not path.exists()
    assert path.read_bytes() == "δ = 0.05\n".encode()
    with pytest.raises(ZeroDivisionError), output(path) as text:
        text.write("half" * (1 // 0))
    assert path.read_bytes() == "δ = 0.05\n".encode()
    with pytest.raises(FileNotFoundError), output(tmp_path / "missing" / "table.md"):
        pass
    assert names(tmp_path) == ["table.md"]


def test_text_goes_to_where_a_link_points_and_into_a_pipe(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with output(tmp_path / "link") as text:
        text.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    assert read_regular(tmp_path / "link", 10) == b"new"
    reading, writing = os.pipe()
    with output(Path(f"/dev/fd/{writing}")) as text:
        text.write("é\n")
    os.close(writing)
    with open(reading, "rb") as stream:
        assert stream.read() == "é\n".encode()


def test_only_places_that_are_read_only_for_us_are_forbidden():
    codes = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EIO)
    assert [forbidden(OSError(code, "x")) for code in codes] == [True, True, True, False, False]
    assert not forbidden(None)


REWRITER = """
import sys
from pathlib import Path
from openbench.storage.files import write_whole
for _ in range(30):
    for letter in "ab":
        write_whole(Path(sys.argv[1]), letter.encode() * 300_000)
"""


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "file"
    contents = {letter * 300_000 for letter in (b"a", b"b")}
    write_whole(path, min(contents))
    with subprocess.Popen([sys.executable, "-c", REWRITER, str(path)]) as process:
        while process.poll() is None:
            assert path.read_bytes() in contents
    assert process.returncode == 0


def test_a_file_of_exactly_the_most_is_read_and_one_byte_more_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    assert read_regular(path, 6) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes") as raised:
        read_regular(path, 4)
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))


def test_a_pipe_that_nobody_writes_a_device_and_a_folder_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, code in ((tmp_path / "pipe", errno.EINVAL), (Path("/dev/zero"), errno.EINVAL), (tmp_path, errno.EISDIR)):
        with pytest.raises(OSError, match=r"pipe or a device|directory") as raised:
            read_regular(path, 10)
        assert (raised.value.errno, raised.value.filename) == (code, str(path))


HOLDER = """
import sys, time
from filelock import FileLock
with FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_process_waits_for_the_lock_of_another_and_logs_what_for(tmp_path, caplog):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "a")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(Timeout):
            FileLock(tmp_path / "a", timeout=0).acquire()

        class Killer(logging.Handler):
            def emit(self, record):
                process.kill()

        logger, handler = logging.getLogger("openbench.storage.files"), Killer()
        logger.addHandler(handler)
        try:
            with caplog.at_level(logging.INFO, logger.name), only_one(tmp_path / "a", "another job computes it"):
                assert caplog.messages == ["another job computes it, waiting"]
        finally:
            logger.removeHandler(handler)
