import os
import shutil

import numpy as np
import pytest

from openbench.core.request import Role
from openbench.data.manifests import load_manifest
from openbench.data.own.images import read_rows
from openbench.errors import DataError

from .conftest import noisy, write_image
from .opened import open_split


@pytest.fixture
def photos(tmp_path):
    """Three pictures of two classes, names with spaces and a deeper folder, beside files that are no pictures."""
    folder = tmp_path / "my photos"
    pixels = {}
    for seed, key in enumerate(("cat/a b.png", "cat/deep/c.png", "dog/1.PNG")):
        pixels[key] = noisy((9, 7, 3), seed)
        write_image(folder / key, pixels[key])
    (folder / "cat" / "notes.txt").write_text("no picture")
    (folder / ".hidden").mkdir()
    write_image(folder / ".hidden" / "x.png", noisy((4, 4, 3)))
    return folder, pixels


def opened(path, classes=("cat", "dog"), role=Role.ID_TRAIN, manifest=None):
    node = {
        "name": "mine",
        "manifest": str(manifest or path),
        "sources": {"own": {"_target_": "openbench.data.own.images.OwnImages", "path": str(path)}},
    }
    return open_split(node, role, classes)


def test_a_folder_gives_its_pictures_with_the_first_subfolder_as_class(photos):
    folder, pixels = photos
    split = opened(folder)
    assert list(split.keys) == sorted(pixels)
    assert split.labels.tolist() == [0, 0, 1]
    for index, key in enumerate(split.keys):
        assert np.array_equal(split.items[index], pixels[key])


def test_a_csv_names_pictures_relative_to_itself_and_keeps_its_order(photos):
    folder, pixels = photos
    write_image(folder / "with, comma.png", noisy((4, 4, 3), 9))
    absolute = folder / "cat" / "deep" / "c.png"
    (folder / "list.csv").write_text(
        f'path,label\ndog/1.PNG,dog\n"with, comma.png",cat\n{absolute.as_posix()},cat\n', encoding="utf-8-sig"
    )
    split = opened(folder / "list.csv")
    assert list(split.keys) == ["dog/1.PNG", "with, comma.png", absolute.as_posix()]
    assert split.labels.tolist() == [1, 0, 0]
    assert np.array_equal(split.items[2], pixels["cat/deep/c.png"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\na.png,cat\n", "line 1: the columns are"),
        ("path,label\na.png,cat\nb.png\n", r"line 3: \['b.png'\] for the columns"),
        ("path,label\na.png,cat\n,cat\n", r"line 3: \['', 'cat'\] for the columns"),
        ("path,label\na.png,\n", r"line 2: \['a.png', ''\] for the columns"),
        ("path,label\na.png,cat\nb.png,cat\na.png,dog\n", "line 4: 'a.png' is on line 2 too"),
        ("path,label\n", "has no images"),
    ],
)
def test_a_csv_that_is_wrong_names_the_line(tmp_path, text, message):
    path = tmp_path / "list.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_manifest(str(path))


@pytest.mark.parametrize("names", [("images", "labels"), ("X", "y")])
def test_an_npz_gives_its_rows(tmp_path, names):
    pixels = noisy((5, 6, 7, 3))
    np.savez(tmp_path / "a.npz", **{names[0]: pixels, names[1]: np.array([1, 0, 1, 1, 0])})
    split = opened(tmp_path / "a.npz", classes=("0", "1"))
    assert split.labels.tolist() == [1, 0, 1, 1, 0]
    assert all(np.array_equal(split.items[i], pixels[i]) for i in range(5))


def test_channels_may_come_first_and_a_single_one_is_grey(tmp_path):
    pixels = noisy((3, 8, 9, 3))
    np.savez(tmp_path / "a.npz", images=pixels.transpose(0, 3, 1, 2), labels=[0, 1, 0])
    assert np.array_equal(opened(tmp_path / "a.npz", classes=("0", "1")).items[2], pixels[2])
    np.savez(tmp_path / "b.npz", images=pixels[..., :1], labels=[0, 1, 0])
    assert opened(tmp_path / "b.npz", classes=("0", "1")).items[0].shape == (8, 9)


def test_any_image_replaced_in_place_gives_another_digest(tmp_path):
    """Of many images only a sample is fingerprinted by its pixels; each of them must count."""
    folder = tmp_path / "many"
    for index in range(101):
        write_image(folder / "cat" / f"{index:03d}.png", noisy((4, 4, 3), index))
    before = opened(folder, ("cat",)).digest
    # Positions 0, 3.2, 6.4, … are sampled: 1 is not.
    other = folder / "cat" / "001.png"
    write_image(other, noisy((4, 4, 3), 500))
    os.utime(other, ns=(0, other.stat().st_mtime_ns + 1_000_000))
    assert opened(folder, ("cat",)).digest != before


def test_a_copy_elsewhere_and_a_touched_file_keep_the_digest(photos, tmp_path):
    folder, _ = photos
    before = opened(folder).digest
    os.utime(folder / "dog/1.PNG", ns=(0, 1))
    assert opened(folder).digest == before
    shutil.copytree(folder, tmp_path / "copy")
    assert opened(tmp_path / "copy").digest == before


def test_an_image_replaced_after_its_digest_was_taken_is_an_error_not_a_number(photos):
    folder, _ = photos
    split = opened(folder)
    position = list(split.keys).index("dog/1.PNG")
    before = (folder / "dog/1.PNG").stat()
    write_image(folder / "dog/1.PNG", noisy((4, 4, 3), 77))
    os.utime(folder / "dog/1.PNG", ns=(before.st_atime_ns, before.st_mtime_ns))  # as if it had not changed
    with pytest.raises(DataError, match=r"dog/1\.PNG' has changed since this run first read it"):
        split.items[position]
    assert np.array_equal(opened(folder).items[position], noisy((4, 4, 3), 77))


def test_links_to_folders_are_followed_once(photos):
    folder, pixels = photos
    (folder / "cat" / "self").symlink_to(folder / "cat")
    (folder / "dog" / "up").symlink_to(folder)
    (folder / "owl").symlink_to(folder / "dog")
    assert sorted(key for key, _ in read_rows(folder)) == sorted(pixels)


def test_a_name_that_is_not_text_is_named(photos):
    folder, _ = photos
    write_image(folder / "cat" / "ok.png", noisy((4, 4)))
    os.rename(folder / "cat" / "ok.png", os.fsencode(folder) + b"/cat/\xff.png")
    with pytest.raises(DataError, match=r"the name .* is not UTF-8"):
        read_rows(folder)
