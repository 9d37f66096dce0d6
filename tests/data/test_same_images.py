"""The same file, or row, on two sides of a benchmark: refused before anything is computed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openbench.core.request import Role
from openbench.data.build import JoinedItems
from openbench.data.checking.verify import refuse_same_images
from openbench.data.own.images import EncodedItems
from openbench.data.sources.items import ArrayItems, FileItems
from openbench.digest import bytes_sha256
from openbench.errors import LeakageError

from .made import benchmark_of, split_of

PIXELS = np.arange(40 * 4, dtype=np.uint8).reshape(40, 2, 2)


def rows(*numbers):
    return ArrayItems(PIXELS, np.array(numbers))


def files(folder, *names):
    return FileItems([f"{folder}/{name}" for name in names])


def benchmark(*sides):
    return benchmark_of(**dict(zip(("train", "val", "test", "far", "ood_val"), sides, strict=False)))


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (
            (rows(0, 1), rows(2), rows(1), rows(5)),
            "id_train train and id_test test have 1 image in common, e.g. 'test/0.png'",
        ),
        ((rows(0, 1), rows(2), rows(3), rows(7, 0, 1)), "far far have 2 images in common, e.g. 'far/1.png'"),
        ((rows(0), rows(2), rows(3), rows(5), rows(5)), "ood_val ood_val and far far have 1 image"),
        ((rows(0), rows(0), rows(3), rows(5)), "id_train train and id_val val have 1 image"),
    ],
)
def test_a_row_on_two_sides_is_refused(sides, message):
    with pytest.raises(LeakageError, match=message):
        refuse_same_images(benchmark(*sides))


def test_a_file_on_two_sides_is_refused_by_whatever_path(tmp_path):
    (tmp_path / "pets").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pets")
    val, test = files(tmp_path / "pets", "2.png"), files(tmp_path / "link", "1.png")
    with pytest.raises(LeakageError, match="id_train train and id_test test have 1 image in common"):
        refuse_same_images(benchmark(files(tmp_path / "pets", "0.png", "1.png"), val, test, rows(0)))


def contents(*names):
    return np.stack([np.frombuffer(bytes.fromhex(bytes_sha256(name.encode())), np.uint8) for name in names])


def known_files(*names):
    return FileItems([f"elsewhere/{name}" for name in names], contents(*names))


def encoded(*names):
    return EncodedItems(None, np.arange(len(names)), Path("elsewhere"), contents(*names))


@pytest.mark.parametrize("items", [known_files, encoded])
def test_images_of_equal_bytes_are_the_same_where_their_digests_are_known(items):
    with pytest.raises(
        LeakageError, match=r"id_train train and id_test test have 1 image in common, e\.g\. 'test/0.png'"
    ):
        refuse_same_images(benchmark(items("x", "y"), rows(2), items("y"), rows(5)))
    refuse_same_images(benchmark(items("x", "y"), rows(2), items("z"), rows(5)))


def test_images_of_joined_sets_and_outliers_are_looked_at_too():
    joined = JoinedItems([rows(0), rows(1, 2)])
    with pytest.raises(LeakageError, match=r"id_train train and far far have 1 image in common, e\.g\. 'far/1.png'"):
        refuse_same_images(benchmark(joined, rows(3), rows(4), rows(5, 2)))
    shown = replace(benchmark(rows(0), rows(2), rows(3), rows(5)), ood_train=split_of(rows(5), Role.OOD_TRAIN, "o"))
    with pytest.raises(LeakageError, match="ood_train o and far far have 1 image"):
        refuse_same_images(shown)
