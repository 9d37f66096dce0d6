"""Small files of others are read whole or refused with their name; what never ends is not waited for."""

import errno
import os
from pathlib import Path

import pytest

from openbench.storage.regular import read_regular


def test_a_file_of_exactly_the_most_is_read_and_one_byte_more_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    assert read_regular(path, 6) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes") as raised:
        read_regular(path, 4)
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(path))


def test_a_link_to_a_file_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 10) == b"x"


def test_a_pipe_that_nobody_writes_a_device_and_a_folder_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, code in ((tmp_path / "pipe", errno.EINVAL), (Path("/dev/zero"), errno.EINVAL), (tmp_path, errno.EISDIR)):
        with pytest.raises(OSError, match=r"pipe or a device|directory") as raised:
            read_regular(path, 10)
        assert (raised.value.errno, raised.value.filename) == (code, str(path))
