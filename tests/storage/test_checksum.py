"""Digests: no changed byte passes for what was written, equal values have equal ones, and array files hold arrays."""

import hashlib
import io
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from openbench.core.request import Field, Perturb, Request
from openbench.digest import array_sha256, digest, file_digest, file_sha256
from openbench.errors import DataError
from openbench.storage import checksum
from openbench.storage.array_file import arrays_digest, open_arrays
from openbench.storage.checksum import (
    DamagedError,
    content_digest,
    read_sealed,
    read_stated,
    stated,
    write_sealed,
)
from openbench.training.augment.augmentations import HorizontalFlip, RandomCrop

CONTENT = {"epochs": 2, "accuracy": 0.1 + 0.2, "files": {"a": "ä"}, "none": None}
BLOCK = 1 << 22


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


def test_what_was_stated_is_read_and_is_plain_json_whose_digest_anybody_can_compute(tmp_path):
    (tmp_path / "a.json").write_bytes(stated(CONTENT))
    assert read_stated(tmp_path / "a.json") == CONTENT
    found = json.loads(stated(CONTENT))
    digest = found.pop("content_sha256")
    assert found == CONTENT
    assert digest == hashlib.sha256((json.dumps(CONTENT, indent=1, ensure_ascii=False) + "\n").encode()).hexdigest()


@pytest.mark.parametrize("bit", [0x01, 0x04, 0x20])
def test_every_flipped_byte_of_a_stated_file_is_noticed(tmp_path, bit):
    whole, path = stated(CONTENT), tmp_path / "a.json"
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :])
        with pytest.raises(DamagedError):
            read_stated(path)


def test_a_file_from_before_digests_were_stated_is_read(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"files": {}}))
    assert read_stated(tmp_path / "a.json") == {"files": {}}


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_what_is_not_an_object_is_damaged(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DamagedError):
        read_stated(tmp_path / "a.json")


def expected(whole: bytes) -> str:
    """The definition, written out."""
    blocks = [hashlib.sha256(whole[i : i + BLOCK]).digest() for i in range(0, len(whole), BLOCK)]
    return hashlib.sha256(b"".join(blocks)).hexdigest()


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 77])
def test_the_digest_of_a_file_agrees_with_the_definition(tmp_path, size):
    whole = os.urandom(size)
    (tmp_path / "file").write_bytes(whole)
    assert file_digest(tmp_path / "file") == expected(whole)


@pytest.fixture
def reads(monkeypatch):
    """The paths that were read for their digest."""
    found = []
    monkeypatch.setattr(checksum, "file_digest", lambda path: found.append(path) or file_digest(path))
    return found


def test_a_file_is_read_once_for_each_state(tmp_path, reads):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert content_digest(path) == content_digest(path) == expected(b"abc")
    assert reads == [path]
    before = path.stat()
    path.write_bytes(b"abd")  # of the same size, and with the same time stamp
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert content_digest(path) == expected(b"abd")
    assert reads == [path] * 2


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


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, "1"), (None, 0), (True, "true"), ([1, 2], [2, 1]), ({}, []), ({"a": None}, {}), (float("nan"), None)],
)
def test_different_values_have_different_digests(left, right):
    assert digest(left) != digest(right)


def test_neither_the_order_of_keys_nor_the_spelling_of_whole_numbers_matters():
    assert digest({"a": 1, "b": [2.0, 3]}) == digest({"b": [2, 3], "a": 1.0})


def test_sets_of_enum_members_do_not_depend_on_hash_order():
    a = Request(fields=frozenset([Field.LOGITS, Field.FEATURES, Field.MAPS]))
    b = Request(fields=frozenset([Field.MAPS, Field.FEATURES, Field.LOGITS]))
    assert digest(a) == digest(b)


def test_digest_is_the_same_in_every_process():
    assert digest({"x": {"b", "a", "c"}, "y": 0.1}) == "447b0ce9278339bf"


def test_dataclasses_of_another_type_differ():
    @dataclass(frozen=True)
    class Other:
        temperature: float = 1000.0
        epsilon: float = 0.0014
        kind: str = "sign"

    assert digest(Perturb()) != digest(Other())


def test_a_version_of_a_dataclass_counts_once_it_is_above_one(monkeypatch):
    before = digest({"augment": [RandomCrop(), HorizontalFlip()]})
    monkeypatch.setattr(RandomCrop, "version", 1)
    assert digest({"augment": [RandomCrop(), HorizontalFlip()]}) == before
    monkeypatch.setattr(RandomCrop, "version", 2)
    raised = digest({"augment": [RandomCrop(), HorizontalFlip()]})
    monkeypatch.setattr(RandomCrop, "version", 3)
    assert len({before, raised, digest({"augment": [RandomCrop(), HorizontalFlip()]})}) == 3


def test_a_field_that_is_called_version_is_a_field():
    @dataclass(frozen=True)
    class Noted:
        version: int = 4

    assert digest(Noted()) == digest({"__type__": Noted.__qualname__, "version": 4})


def test_arrays_count_by_dtype_shape_and_content():
    x = np.arange(6, dtype=np.int64)
    assert array_sha256(x) == array_sha256(x.copy())
    assert len({array_sha256(v) for v in (x, x.reshape(2, 3), x.astype(np.int32), x[::-1])}) == 4
    assert array_sha256(x.reshape(2, 3).T) == array_sha256(np.ascontiguousarray(x.reshape(2, 3).T))


def test_a_value_without_canonical_form_is_refused():
    with pytest.raises(TypeError, match="no canonical form"):
        digest({"f": print})


def test_file_hash_is_sha256(tmp_path: Path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    assert file_sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
