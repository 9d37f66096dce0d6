"""No changed byte of a sealed file passes for what was written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openbench.storage.sealed import DamagedError, read_sealed, write_sealed


@given(content=st.binary(max_size=200))
def test_what_was_written_is_read(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("sealed") / "file"
    write_sealed(path, content)
    assert read_sealed(path) == content


def test_every_single_bit_flip_is_noticed(tmp_path):
    path = tmp_path / "file"
    write_sealed(path, b"12.5 %")
    whole = path.read_bytes()
    for position in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(DamagedError, match="has changed"):
            read_sealed(path)


@pytest.mark.parametrize("cut", [0, 1, 50, 83, 84, 89])
def test_every_cut_is_noticed(tmp_path, cut):
    path = tmp_path / "file"
    write_sealed(path, b"123456")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DamagedError):
        read_sealed(path)


def test_a_missing_file_is_missing_and_a_folder_is_damaged(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "file")
    with pytest.raises(DamagedError, match="cannot be read"):
        read_sealed(tmp_path)
