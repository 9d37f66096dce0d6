"""Sets given as "every image of these folders"."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from openbench import paths
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data import dataset as opening
from openbench.data.dataset import SetConfig
from openbench.data.loading import batches
from openbench.data.manifests import FolderRule, load_rule
from openbench.data.sources.base import ImageFolder
from openbench.errors import DataError

from .conftest import noisy, write_image
from .opened import open_split

RULE = FolderRule("zoo/train", "zoo/train/{folder}/{name}", ("n1", "n2"), ("cat", "dog"), ".png", 5)


def files(root, counts=(("n1", 3), ("n2", 2))):
    for folder, count in counts:
        for i in range(count):
            write_image(root / f"zoo/train/{folder}/{i}.png", noisy((8, 8, 3), i))


@pytest.fixture
def opened(root, monkeypatch):
    def split(rule=RULE, **changes):
        monkeypatch.setattr(opening, "load_listing", lambda name: rule)
        source = {"_target_": "openbench.data.sources.base.ImageFolder"}
        node = {"name": "zoo", "manifest": "zoo/train", "sources": {"folder": source}, **changes}
        incomplete = node.pop("incomplete", "error")
        return open_split(node, Role.ID_TRAIN, ("cat", "dog"), incomplete)

    return split


def test_every_image_of_the_folders_belongs_to_the_set(root, opened):
    files(root)
    write_image(root / "zoo/train/other/0.png", noisy((8, 8, 3)))
    (root / "zoo/train/n1/notes.txt").write_text("not an image")
    split = opened()
    assert list(split.keys) == [f"zoo/train/{f}/{i}.png" for f, n in (("n1", 3), ("n2", 2)) for i in range(n)]
    assert split.labels.tolist() == [0, 0, 0, 1, 1]
    np.testing.assert_array_equal(split.items[4], noisy((8, 8, 3), 1))
    assert split.expected == 5
    assert split.deviations == ()
    assert opened(replace(RULE, derived="a stand-in")).deviations == ("derived: a stand-in",)


def test_too_few_images_are_refused_or_recorded_and_too_many_are_refused(root, opened):
    files(root, (("n1", 3),))
    with pytest.raises(DataError, match="incomplete — 3 of 5 images found"):
        opened()
    assert opened(incomplete="allow").deviations == ("3 of 5 images found",)
    uncounted = replace(RULE, count=None)
    with pytest.raises(DataError, match="incomplete — 3 of 4 images found"):  # an empty folder lacks one at least
        opened(uncounted)
    files(root)
    assert len(opened(uncounted)) == 5
    files(root, (("n2", 3),))
    with pytest.raises(DataError, match=r"6 images ending in '.png' in its folders, 5 are published"):
        opened()


def test_classes_kept_of_folders_that_are_only_counted_together_are_whole_if_all_are(root, opened):
    files(root, (("n1", 2), ("n2", 2)))
    for kept in ("cat", "dog"):  # the image that is missing may be of either
        with pytest.raises(DataError, match="incomplete — 2 of 3 images found"):
            opened(RULE.only(["cat", "dog"]).only([kept]))
    files(root)
    assert [opened(RULE.only([kept])).deviations for kept in ("cat", "dog")] == [(), ()]


def test_what_stands_for_some_classes_does_not_depend_on_how_the_others_are_counted(monkeypatch):
    identities = set()
    for count in (None, 5):
        monkeypatch.setattr(opening, "load_listing", lambda name, count=count: replace(RULE, count=count))
        identities.add(SetConfig("zoo", "zoo/train", {"folder": ImageFolder()}, keep=["cat"]).identity())
    assert len(identities) == 1


def test_a_part_of_unequal_folders_is_counted_by_folder():
    counts = (7, 4, 9)
    rule = FolderRule("zoo", RULE.key, ("a", "b", "c"), ("x", "y", "z"), "", 20, span=(50, 90), counts=counts)
    # 3 to 6 of seven, 2 to 3 of four, 4 to 8 of nine.
    assert rule.size == 3 + 1 + 4
    found, expected = rule.expand(lambda folder: [str(i) for i in range(counts["abc".index(folder[-1])])])
    assert (len(found), expected) == (8, 8)
    assert rule.only(["x", "z"]).size == 7


def test_the_images_taken_of_a_folder_do_not_depend_on_the_others():
    rule = FolderRule("zoo/train", RULE.key, ("n1",), ("cat",), ".png", 2, per_class=2)
    names = [f"{i}.png" for i in range(30)]
    ranked = sorted(names, key=lambda name: hashlib.sha256(f"zoo/train/n1/{name}".encode()).hexdigest())
    manifest, expected = rule.expand(lambda folder: names)
    assert expected == 2
    assert set(manifest.keys) == {f"zoo/train/n1/{name}" for name in ranked[:2]}
    fewer, _ = rule.expand(lambda folder: [name for name in names if name not in ranked[2:9]])
    assert fewer.keys == manifest.keys


def test_an_images_class_folder_may_be_deeper_than_its_key(root, manifest):
    for folder, name in (("n1", "a"), ("n2", "b")):
        write_image(root / f"val/{folder}/{name}.png", noisy((8, 8, 3), len(folder)))
    listed = manifest("set/{n}.png", cat="a", dog="bc")
    source = {"_target_": "openbench.data.sources.base.ClassFolders", "at": ["val"]}
    node = {"name": "s", "manifest": listed, "sources": {"sorted": source}}
    split = open_split(node, Role.ID_TEST, ("cat", "dog"), "allow")
    assert list(split.keys) == ["set/a.png", "set/b.png"]
    assert split.deviations == ("2 of 3 images found",)


def test_images_that_come_at_the_networks_size_are_not_cropped(root, opened):
    files(root)
    preprocess = Preprocess(resize=16, crop=8, mean=(0.0,) * 3, std=(1.0,) * 3)
    cropped = next(batches(opened(), preprocess, 1))
    split = opened(as_stored=True)
    whole = next(batches(split, preprocess, 1))
    expected = noisy((8, 8, 3), 0).transpose(2, 0, 1) / np.float32(255)
    np.testing.assert_allclose(whole[0].numpy(), expected, atol=1e-7)
    assert abs(cropped[0].numpy() - expected).max() > 0.1
    assert split.digest != opened().digest
    larger = next(batches(split, Preprocess(resize=20, crop=16), 1))
    assert larger.shape == (1, 3, 16, 16)


def test_parts_of_unequal_folders_share_no_image_and_notice_what_is_missing():
    there = {"n1": [f"{i}.png" for i in range(7)], "n2": [f"{i}.png" for i in range(4)]}
    whole = replace(RULE, count=11)
    parts = {span: replace(whole, span=span) for span in ((0, 70), (70, 100))}

    def names_in(folder):
        return there[folder.rpartition("/")[2]]

    found = {span: part.expand(names_in) for span, part in parts.items()}
    # ⌊7·.7⌋ = 4 and ⌊4·.7⌋ = 2 images of the folders; how many a part has is not known before they are looked at.
    assert [part.size for part in parts.values()] == [None, None]
    assert [(len(manifest), expected) for manifest, expected in found.values()] == [(6, 6), (5, 5)]
    assert sorted(key for manifest, _ in found.values() for key in manifest.keys) == sorted(
        f"zoo/train/{folder}/{name}" for folder, names in there.items() for name in names
    )
    there["n2"].pop()
    manifest, expected = parts[0, 70].expand(names_in)
    assert expected - len(manifest) == 1
    assert parts[0, 70].only(["cat"]).count is None


def test_a_rule_may_have_the_same_folders_within_several_others(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "manifest_dir", lambda: tmp_path)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo/folders.txt").write_text("n1\nn2\n")
    (tmp_path / "zoo/names.txt").write_text("cat\ndog\n")
    text = 'key = "zoo/{folder}/{name}"\nfolders = "zoo/folders"\nclasses = "zoo/names"\nwithin = ["dark", "light/1"]\n'
    (tmp_path / "zoo/lit.toml").write_text(text)
    rule = load_rule("zoo/lit")
    assert rule.folders == ("dark/n1", "dark/n2", "light/1/n1", "light/1/n2")
    assert rule.classes == ("cat", "dog", "cat", "dog")
