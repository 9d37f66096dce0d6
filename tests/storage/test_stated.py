"""JSON files that state their digest: readable by anything, and no byte can change unnoticed."""

import hashlib
import json

import pytest

from openbench.storage.sealed import DamagedError
from openbench.storage.stated import read_stated, stated

CONTENT = {"epochs": 2, "accuracy": 0.1 + 0.2, "files": {"a": "ä"}, "none": None}


def test_what_was_written_is_read(tmp_path):
    (tmp_path / "a.json").write_bytes(stated(CONTENT))
    assert read_stated(tmp_path / "a.json") == CONTENT


def test_it_is_plain_json_whose_digest_anybody_can_compute():
    found = json.loads(stated(CONTENT))
    digest = found.pop("content_sha256")
    assert found == CONTENT
    assert digest == hashlib.sha256((json.dumps(CONTENT, indent=1, ensure_ascii=False) + "\n").encode()).hexdigest()


@pytest.mark.parametrize("bit", [0x01, 0x04, 0x20])
def test_every_flipped_byte_is_noticed(tmp_path, bit):
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
