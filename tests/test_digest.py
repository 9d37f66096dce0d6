from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from openbench.core.request import Field, Perturb, Request
from openbench.digest import array_sha256, digest, file_sha256
from openbench.training.augment.augmentations import HorizontalFlip, RandomCrop


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
