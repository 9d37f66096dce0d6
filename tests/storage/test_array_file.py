"""Named arrays in a folder or an npz: only arrays."""

import io
import zipfile

import numpy as np
import pytest

from openbench.errors import DataError
from openbench.storage.array_file import arrays_digest, open_arrays

X = np.arange(6.0).reshape(2, 3)


def as_npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def packed(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as pack:
        for name, content in members.items():
            pack.writestr(name, content)
    return path


def test_what_is_no_array_in_an_npz_is_ignored(tmp_path):
    path = packed(tmp_path / "f.npz", {"README.txt": b"a note", "a.npy": as_npy(X)})
    found = open_arrays(path)
    assert list(found) == ["a"]
    np.testing.assert_array_equal(found["a"], X)


def test_the_digest_of_a_folder_is_that_of_its_arrays_and_their_places(tmp_path):
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "a.npy").write_bytes(as_npy(X))
    first = arrays_digest(tmp_path)
    (tmp_path / "README.txt").write_text("a note")
    assert arrays_digest(tmp_path) == first
    (tmp_path / "near" / "a.npy").write_bytes(as_npy(X + 1))
    changed = arrays_digest(tmp_path)
    (tmp_path / "near" / "a.npy").rename(tmp_path / "near" / "b.npy")
    assert len({first, changed, arrays_digest(tmp_path)}) == 3


@pytest.mark.parametrize("content", [as_npy(X)[:-5], as_npy(np.array([None]))], ids=["cut", "pickle"])
def test_a_member_that_is_damaged_or_holds_objects_is_refused(tmp_path, content):
    path = packed(tmp_path / "f.npz", {"a.npy": content})
    with pytest.raises(DataError, match="cannot be read"):
        open_arrays(path)
