import os
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.io import savemat

from openbench.core.request import Role
from openbench.data.dataset import BenchmarkSet, SetConfig, locate, split_of
from openbench.data.sources.archives import CifarPickles, IdxFiles, NpzPack, SvhnMat, load_pickle
from openbench.data.sources.base import ImageFolder, Source, rows_found
from openbench.errors import DataError

from .conftest import noisy, write_cifar, write_idx, write_image


def images(found):
    return [found.items[i] for i in range(len(found.items))]


def test_a_cifar_key_is_the_nth_picture_of_its_class_in_file_order(root):
    names = ["cat", "dog"]
    pixels = write_cifar(root / "c", {"data_batch_1": [1, 0, 1], "data_batch_2": [0, 1, 1], "test_batch": [0]}, names)
    source = CifarPickles(folder="c", train=["data_batch_1", "data_batch_2"])
    keys = ["c/train/dog/0003.png", "c/train/cat/0002.png", "c/train/dog/0001.png", "c/train/dog/0005.png"]
    found = source.find(root / "c", keys)
    first, second = pixels["data_batch_1"], pixels["data_batch_2"]
    # By hand: dogs are at 0, 2 of the first file and 1, 2 of the second; cats at 1 and 0.
    for image, expected in zip(images(found), [second[1], second[0], first[0]], strict=True):
        np.testing.assert_array_equal(image, expected)
    assert found.present.tolist() == [True, True, True, False]


@pytest.mark.parametrize("packed", [True, False])
def test_an_idx_key_is_a_row_of_its_part_and_its_label_must_agree(root, packed):
    train, test = noisy((3, 5, 4), 1), noisy((2, 5, 4), 2)
    write_idx(root / "m", "train", train, [7, 1, 7], packed)
    write_idx(root / "m", "t10k", test, [0, 7], packed)
    keys = ["m/test/7_1.jpg", "m/train/7_2.jpg", "m/train/1_0.jpg", "m/test/0_0.jpg", "m/test/7_5.jpg"]
    found = IdxFiles(at=["m"]).find(root / "m", keys)
    assert found.present.tolist() == [True, True, False, True, False]
    for image, expected in zip(images(found), [test[1], train[2], test[0]], strict=True):
        np.testing.assert_array_equal(image, expected)
    write_idx(root / "odd", "t10k", test, [0, 7, 7], packed)
    with pytest.raises(DataError, match=r"has 2 images, .* 3 labels"):
        IdxFiles(at=["m"]).find(root / "odd", keys)


def test_an_npz_pack_is_read_by_its_paths(root):
    pixels = noisy((3, 6, 6, 3))
    np.savez(root / "p.npz", images=pixels, paths=np.array(["t/b.jpg", "t/a.jpg", "t/c.jpg"]))
    found = NpzPack("p.npz").find(root / "p.npz", ["t/a.jpg", "t/z.jpg", "t/b.jpg"])
    assert found.present.tolist() == [True, False, True]
    np.testing.assert_array_equal(images(found), pixels[[1, 0]])


def test_svhn_numbers_count_from_one_and_ten_means_zero(root):
    pixels = noisy((32, 32, 3, 3))
    savemat(root / "test_32x32.mat", {"X": pixels, "y": np.array([[5], [10], [2]], np.uint8)})
    keys = ["svhn/test/000002_0.jpg", "svhn/test/000001_5.jpg", "svhn/test/000003_1.jpg"]
    found = SvhnMat(at=["."]).find(root / "test_32x32.mat", keys)
    assert found.present.tolist() == [True, True, False]
    np.testing.assert_array_equal(images(found), [pixels[..., 1], pixels[..., 0]])


@pytest.mark.parametrize(
    ("options", "path"), [({}, "a/b/1.png"), ({"strip": "a/"}, "b/1.png"), ({"flat": True}, "1.png")]
)
def test_a_folder_holds_files_at_their_key_or_less_a_prefix_or_flat(root, options, path):
    pixels = noisy((4, 5, 3))
    write_image(root / path, pixels)
    found = ImageFolder(at=["."], **options).find(root, ["a/b/1.png", "a/b/2.png"])
    assert found.present.tolist() == [True, False]
    np.testing.assert_array_equal(found.items[0], pixels)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_pickle_that_would_run_code_is_refused_before_it_does(tmp_path):
    path, trace = tmp_path / "p", tmp_path / "trace"
    path.write_bytes(pickle.dumps({"data": Evil(trace)}, protocol=2))
    with pytest.raises(DataError, match=r"cannot be read \(it names (posix|nt)\.system"):
        load_pickle(path)
    assert not trace.exists()


def test_a_source_of_ones_own_needs_only_find():
    @dataclass(frozen=True)
    class Grey(Source):
        def find(self, place, keys):
            return rows_found(np.full((1, 4, 4), 7, np.uint8), dict.fromkeys(keys, 0), keys)

    config = SetConfig(name="mine", manifest="digits/test", sources={"mine": Grey()})
    located = locate(BenchmarkSet("far", Role.FAR, config))
    assert located.found == located.expected > 0
    assert split_of(located, ()).items[0].max() == 7
