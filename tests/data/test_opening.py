import numpy as np
import pytest

from openbench.core.request import Role
from openbench.data import dataset
from openbench.errors import ConfigError, DataError

from .conftest import noisy, write_image
from .opened import open_split

FOLDER = {"folder": {"_target_": "openbench.data.sources.base.ImageFolder"}}


@pytest.fixture
def pets(root, manifest):
    """A set of six 8×8 images in a folder, and its config node."""
    for i in range(6):
        write_image(root / f"pets/{'cat' if i < 3 else 'dog'}/{i}.png", noisy((8, 8, 3), i))
    name = manifest("pets/{label}/{n}.png", "pets", cat=range(3), dog=range(3, 6))
    return {"name": "pets", "manifest": name, "sources": FOLDER, "size": [8, 8]}


def test_an_id_split_has_the_index_of_each_class(pets):
    split = open_split(pets, Role.ID_TEST, ("dog", "cat"))
    assert split.labels.tolist() == [1, 1, 1, 0, 0, 0]
    assert split.classes == ("dog", "cat")
    assert (split.name, split.expected, split.deviations) == ("pets", 6, ())


def test_an_ood_split_has_label_minus_one_and_keeps_its_class_names(pets):
    split = open_split(pets, Role.FAR, ("owl",), where="benchmark.far.beasts")
    assert split.name == "beasts"
    assert set(split.labels.tolist()) == {-1}
    assert split.classes == ("cat", "dog")


def test_the_classes_to_keep_are_named_or_those_of_a_class_list(pets, monkeypatch):
    monkeypatch.setattr(dataset, "load_classes", {"zoo/cats": ("cat",)}.__getitem__)
    named = open_split({**pets, "keep": ["cat"]}, Role.FAR)
    listed = open_split({**pets, "keep": "zoo/cats"}, Role.FAR)
    assert listed.classes == ("cat",)
    assert (listed.digest, listed.keys) == (named.digest, named.keys)


def test_the_digest_is_the_same_in_every_role_and_place(pets, root, monkeypatch):
    first = open_split(pets, Role.FAR).digest
    assert open_split(pets, Role.ID_TEST, ("cat", "dog")).digest == first
    moved = root.parent / "elsewhere/images_classic"
    moved.parent.mkdir()
    root.rename(moved)
    monkeypatch.setenv("OPENBENCH_DATA", str(moved.parent))
    assert open_split(pets, Role.FAR).digest == first


def test_another_image_under_the_same_name_changes_the_digest_and_is_not_read(pets, root):
    before = open_split(pets, Role.FAR)
    write_image(root / "pets/cat/1.png", noisy((8, 8, 3), 99))
    assert open_split(pets, Role.FAR).digest != before.digest
    with pytest.raises(DataError, match="has changed since this run first read it"):
        before.items[1]


def test_a_limit_keeps_a_seeded_subset_in_order_and_is_recorded(pets):
    some = open_split({**pets, "limit": 3}, Role.FAR)
    assert len(some) == 3
    assert some.expected == 6
    assert some.deviations == ("limited to 3 of 6 images (seed 0)",)
    whole = list(open_split(pets, Role.FAR).keys)
    assert [whole.index(k) for k in some.keys] == sorted(whole.index(k) for k in some.keys)
    others = {tuple(open_split({**pets, "limit": 3, "seed": seed}, Role.FAR).keys) for seed in range(8)}
    assert len(others) > 1
    assert open_split({**pets, "limit": 3}, Role.FAR).digest == some.digest


@pytest.mark.parametrize(
    ("expected", "deviations"),
    [
        ({"size": [64, 64]}, ("images are 8×8; 64×64 expected",)),
        ({"size": None, "min_side": 9}, ("shorter side of 8 pixels; at least 9 expected",)),
        ({"size": None, "min_side": 8}, ()),
    ],
)
def test_images_of_another_size_are_a_deviation_not_an_error(pets, expected, deviations):
    assert open_split({**pets, **expected}, Role.FAR).deviations == deviations


def test_the_first_complete_source_is_used_else_the_fullest_and_never_a_mixture(pets, root):
    folder = "openbench.data.sources.base.ImageFolder"
    pets["sources"] = {
        "part": {"_target_": folder, "at": ["part"], "deviation": "copied"},
        "plain": {"_target_": folder, "at": ["."]},
    }
    write_image(root / "part/pets/cat/0.png", noisy((8, 8, 3), 50))
    assert open_split(pets, Role.FAR).deviations == ()
    (root / "pets/dog/5.png").unlink()
    fullest = open_split(pets, Role.FAR, incomplete="allow")
    assert fullest.deviations == ("5 of 6 images found",)
    np.testing.assert_array_equal(fullest.items[0], noisy((8, 8, 3), 0))
    for i in range(6):
        write_image(root / f"part/pets/{'cat' if i < 3 else 'dog'}/{i}.png", noisy((8, 8, 3), 50 + i))
    assert open_split(pets, Role.FAR).deviations == ("copied",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mainfest": "x"}, "no key 'mainfest'; did you mean 'manifest'"),
        ({"manifest": None}, "`manifest` is missing"),
        ({"sources": {}}, "`sources` is missing"),
        ({"limit": 0}, "limit — found 0"),
        ({"limit": True}, "limit — found true"),
        ({"sources": {"a": {"_target_": "openbench.data.sources.base.ImageFolder", "att": ["."]}}}, "no key 'att'"),
    ],
)
def test_a_wrong_node_is_refused_by_key(pets, change, message):
    with pytest.raises(ConfigError, match=message):
        open_split({**pets, **change}, Role.FAR)
