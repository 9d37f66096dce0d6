"""Files appear whole or not at all, and what killed writers leave is cleaned up."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openbench.storage import whole
from openbench.storage.whole import creating, delete_leftovers, forbidden, output, replacing, write_whole


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_content_replaces_what_was_there(tmp_path):
    write_whole(tmp_path / "deep" / "file", b"old")
    write_whole(tmp_path / "deep" / "file", b"new")
    assert (tmp_path / "deep" / "file").read_bytes() == b"new"
    assert names(tmp_path / "deep") == ["file"]


def test_a_failing_block_leaves_the_old_content_and_nothing_beside_it(tmp_path):
    path = tmp_path / "file"
    write_whole(path, b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as stream:
        stream.write(b"half" * (1 // 0))
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_content_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, b"old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(whole.os, "fsync", full)
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


WRITER = """
import sys, time
from pathlib import Path
from openbench.storage.whole import replacing
with replacing(Path(sys.argv[1])) as stream:
    stream.write(b"half")
    stream.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """A process in the middle of writing `tmp_path / "file"`."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "file")], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


def test_what_a_killed_writer_left_is_deleted_by_the_next_one(tmp_path, writer):
    assert len(names(tmp_path)) == 1
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(names(tmp_path)) == 1
    write_whole(tmp_path / "file", b"whole")
    assert names(tmp_path) == ["file"]


def test_what_a_living_writer_holds_is_not_deleted(tmp_path, writer):
    (left,) = tmp_path.iterdir()
    write_whole(tmp_path / "file", b"whole")
    assert names(tmp_path) == sorted([left.name, "file"])


def taken_before(stream):
    """Another process takes the file for a leftover before its writer locks it."""
    whole._delete_unheld(Path(stream.name))
    return whole.lock(stream)


def taken_meanwhile(stream):
    """Another process holds the file while its writer tries to lock it, and deletes it then."""
    with open(stream.name, "rb+") as other:
        assert whole.lock(other)
        granted = whole.lock(stream)
        os.unlink(stream.name)
    return granted


@pytest.mark.skipif(whole.open_files_stay(), reason="there what was just written is no leftover")
@pytest.mark.parametrize("taken", [taken_before, taken_meanwhile])
@pytest.mark.parametrize("write", [creating, replacing])
def test_a_new_file_that_another_process_takes_for_a_leftover_is_made_again(tmp_path, monkeypatch, write, taken):
    lock, tries = whole.lock, []

    def once(stream):
        tries.append(stream.name)
        return taken(stream) if len(tries) == 1 else lock(stream)

    monkeypatch.setattr(whole, "lock", once)
    with write(tmp_path / "file") as stream:
        stream.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(whole.open_files_stay(), reason="an open file cannot be deleted there")
def test_a_leftover_is_deleted_while_it_is_locked(tmp_path, monkeypatch):
    leftover, unlink, granted = tmp_path / ".file.0.tmp", Path.unlink, []

    def watched(path):
        with open(path, "rb+") as late:
            granted.append(whole.lock(late))
        unlink(path)

    leftover.touch()
    monkeypatch.setattr(Path, "unlink", watched)
    whole.delete_temporary(tmp_path / "file")
    assert granted == [False]
    assert names(tmp_path) == []


def test_leftovers_of_other_files_are_not_deleted(tmp_path):
    other = tmp_path / ".other.123.tmp"
    other.write_bytes(b"")
    write_whole(tmp_path / "file", b"")
    write_whole(tmp_path / "[ab]*", b"")
    assert other.exists()
    assert (tmp_path / "[ab]*").exists()


@pytest.mark.parametrize("name", ["plain", "[ab]*", "what?", "really!", "a-b^c]"])
def test_a_leftover_of_any_name_is_deleted_and_no_other(tmp_path, name):
    left, other = tmp_path / f".{name}.123.tmp", tmp_path / ".aa.123.tmp"
    left.write_bytes(b"half")
    other.write_bytes(b"half")
    write_whole(tmp_path / name, b"whole")
    assert names(tmp_path) == sorted([other.name, name])


def test_a_folder_that_is_named_like_a_leftover_stays(tmp_path):
    (tmp_path / ".file.123.tmp").mkdir()
    (tmp_path / ".probe").mkdir()
    write_whole(tmp_path / "file", b"whole")
    delete_leftovers(tmp_path, ".probe")
    assert names(tmp_path) == [".file.123.tmp", ".probe", "file"]


def test_leftovers_of_a_prefix_are_deleted_unless_held(tmp_path):
    for name in (".probe1", "..probe2.123.tmp", "probe3", ".probe-held"):
        (tmp_path / name).write_bytes(b"")
    with open(tmp_path / ".probe-held", "rb") as held:
        assert whole.lock(held)
        delete_leftovers(tmp_path, ".probe")
    assert names(tmp_path) == [".probe-held", "probe3"]
    delete_leftovers(tmp_path / "missing", ".probe")


def test_an_error_without_a_name_gets_that_of_the_file_and_others_keep_theirs(tmp_path):
    with pytest.raises(OSError, match="No space") as raised, replacing(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.filename == str(tmp_path / "file")
    with pytest.raises(OSError, match="I/O") as raised, replacing(tmp_path / "file"):
        raise OSError(errno.EIO, "I/O error", "elsewhere")
    assert raised.value.filename == "elsewhere"


def test_text_that_a_user_asked_for_appears_whole_in_utf_8_with_its_line_ends(tmp_path):
    path = tmp_path / "table.md"
    with output(path) as text:
        text.write("δ = 0.05\n")
        assert not path.exists()
    assert path.read_bytes() == "δ = 0.05\n".encode()
    with pytest.raises(ZeroDivisionError), output(path) as text:
        text.write("half" * (1 // 0))
    assert path.read_bytes() == "δ = 0.05\n".encode()


def test_text_goes_to_where_a_link_points_and_into_a_pipe(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with output(tmp_path / "link") as text:
        text.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"
    reading, writing = os.pipe()
    with output(Path(f"/dev/fd/{writing}")) as text:
        text.write("é\n")
    os.close(writing)
    with open(reading, "rb") as stream:
        assert stream.read() == "é\n".encode()


def test_text_into_a_missing_folder_is_refused_and_the_folder_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError), output(tmp_path / "missing" / "table.md"):
        pass
    assert names(tmp_path) == []


def test_only_places_that_are_read_only_for_us_are_forbidden():
    codes = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EIO)
    assert [forbidden(OSError(code, "x")) for code in codes] == [True, True, True, False, False]
    assert not forbidden(None)


REWRITER = """
import sys
from pathlib import Path
from openbench.storage.whole import write_whole
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
