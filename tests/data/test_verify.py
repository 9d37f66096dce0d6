"""Checks of a benchmark, and the same file or row on two sides, which is refused before anything is computed."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from torch.utils.data import ConcatDataset

from openbench.core.benchmark import Benchmark
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.checking import verify
from openbench.data.checking.verify import refuse_same_images, verify_benchmark, verify_node
from openbench.data.sources.base import ArrayItems, FileItems
from openbench.digest import bytes_sha256
from openbench.errors import LeakageError

from .conftest import noisy, write_image
from .made import benchmark_of, split_of
from .test_build import node  # noqa: F401  (a fixture)


class Listed(list):
    """Images in a list."""


def split(name, role, classes, seed, **changes):
    items = changes.pop("items", None) or Listed(noisy((6, 6, 3), 1000 * seed + i) for i in range(4))
    return replace(split_of(items, role, name, ("cat", "dog")), classes=classes, digest=f"{seed}", **changes)


@pytest.fixture
def parts():
    pets = ("cat", "dog")
    return {
        "id_train": split("pets", Role.ID_TRAIN, pets, 1),
        "id_val": split("pets", Role.ID_VAL, pets, 2),
        "id_test": split("pets", Role.ID_TEST, pets, 3),
        "csid": {"foggy": split("foggy", Role.CSID, pets, 4)},
        "ood_train": split("web", Role.OOD_TRAIN, ("rug",), 5),
        "ood_val": split("fish", Role.OOD_VAL, ("cod",), 6),
        "near": {"birds": split("birds", Role.NEAR, ("owl",), 7)},
        "far": {"cars": split("cars", Role.FAR, ("van",), 8)},
    }


def benchmark(parts):
    return Benchmark(name="zoo", classes=("cat", "dog"), preprocess=Preprocess(6, 6), **parts)


def place(parts, role):
    """The split of a role among the parts."""
    found = parts[role.value]
    return next(iter(found.values())) if isinstance(found, dict) else found


def test_a_clean_benchmark_has_no_problems(parts):
    report = verify_benchmark(benchmark(parts))
    assert report.ok
    assert report.verdict == "ok: 8 sets, 32 images, no problem"
    assert [(s.found, s.expected, s.repeated) for s in report.splits] == [(4, 4, 0)] * 8


ID = ("id_train", "id_val", "id_test", "csid")
PURPOSE = {
    **dict.fromkeys(("id_train", "ood_train"), "learnt from"),
    **dict.fromkeys(("id_val", "ood_val"), "tuned on"),
    **dict.fromkeys(("id_test", "csid", "near", "far"), "tested on"),
}


def apart(first: Role, second: Role) -> bool:
    """An image has one side, ID or OOD, and one purpose."""
    return (first.value in ID) != (second.value in ID) or PURPOSE[first.value] != PURPOSE[second.value]


# Attacked images are no sets of a benchmark.
PAIRS = list(combinations([role for role in Role if role.value in {*PURPOSE}], 2))
APART = [pair for pair in PAIRS if apart(*pair)]


@pytest.mark.parametrize(("first", "second"), APART, ids=str)
def test_a_planted_identical_image_on_two_sides_is_found_and_named(parts, first, second):
    a, b = place(parts, first), place(parts, second)
    b.items[3] = a.items[1].copy()
    report = verify_benchmark(benchmark(parts))
    (problem,) = report.problems
    assert f"{a.keys[1]} = {b.keys[3]}" in problem or f"{b.keys[3]} = {a.keys[1]}" in problem


def test_the_same_grey_picture_in_one_and_three_channels_is_identical(parts):
    grey = noisy((6, 6), 5)
    parts["id_test"].items[0] = grey
    parts["far"]["cars"].items[0] = np.dstack([grey] * 3)
    assert len(verify_benchmark(benchmark(parts)).shared) == 1


def test_repeated_images_within_a_split_are_counted_and_no_problem(parts):
    items = parts["far"]["cars"].items
    items[1] = items[2] = items[0]
    report = verify_benchmark(benchmark(parts))
    assert report.ok
    assert {s.where: s.repeated for s in report.splits if s.repeated} == {"far/cars": 2}


def test_a_known_pair_is_listed_and_no_problem(parts, monkeypatch):
    a, b = parts["id_test"], parts["near"]["birds"]
    b.items[3] = a.items[1].copy()
    monkeypatch.setattr(verify, "known_pairs", lambda: {frozenset((a.keys[1], b.keys[3]))})
    report = verify_benchmark(benchmark(parts))
    assert report.ok
    assert f"known: id_test/pets and near/birds share 1 identical images: {a.keys[1]} = {b.keys[3]}" in str(report)
    parts["far"]["cars"].items[0] = a.items[1].copy()
    assert len(verify_benchmark(benchmark(parts)).shared) == 1


def test_unreadable_images_are_all_named(parts, tmp_path):
    for i in range(4):
        write_image(tmp_path / f"{i}.png", noisy((6, 6, 3), 50 + i))
    for i in (1, 3):
        (tmp_path / f"{i}.png").write_bytes(b"x")
    files = FileItems([tmp_path / f"{i}.png" for i in range(4)])
    parts["far"]["cars"] = split("cars", Role.FAR, ("van",), 8, items=files, deviations=("4 of 9 images found",))
    report = verify_benchmark(benchmark({**parts, "dropped": ("near.fish",)}))
    for part in ("far/cars", "deviates: 4 of 9 images found", "near.fish: dropped"):
        assert part in str(report)
    assert len(report.problems) == 2
    assert report.verdict == "problems: 2 unreadable images (8 sets, 32 images)"
    assert all(f"{i}.png' cannot be read" in text for i, text in zip((1, 3), report.problems, strict=True))


def test_all_gaps_of_a_node_are_reported_together(node, root):  # noqa: F811
    for path in ("birds/0.png", "cars/0.png", "pets/10.png"):
        (root / path).unlink()
    report = verify_node(BenchmarkConfig.parse(node))
    assert not report.ok
    assert report.missing[0] == "id.test: pets, 1 of 2 images"
    assert report.verdict == "problems: 3 data sets missing or incomplete (6 sets, 21 images)"
    assert str(report).count("images_classic") == 1
    assert len(report.missing) == 3
    found = {s.where: (s.found, s.expected) for s in report.splits if s.found != s.expected}
    assert found == {"id_test/pets": (1, 2), "near/birds": (3, 4), "far/cars": (3, 4)}


def test_gaps_that_the_config_allows_are_deviations_and_the_rest_is_compared(node, root):  # noqa: F811
    (root / "birds/0.png").unlink()
    (root / "cars/1.png").write_bytes((root / "pets/10.png").read_bytes())
    report = verify_node(BenchmarkConfig.parse({**node, "incomplete": "allow"}))
    assert report.missing == ()
    (problem,) = report.shared
    assert problem.startswith("id_test/pets and far/cars share 1 identical images: ")


PIXELS = np.arange(40 * 4, dtype=np.uint8).reshape(40, 2, 2)


def rows(*numbers):
    return ArrayItems(PIXELS, np.array(numbers))


def files(folder, *names):
    return FileItems([f"{folder}/{name}" for name in names])


def beside(*items):
    return benchmark_of(**dict(zip(("train", "val", "test", "far", "ood_val"), items, strict=False)))


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
        refuse_same_images(beside(*sides))


def test_a_file_on_two_sides_is_refused_by_whatever_path(tmp_path):
    (tmp_path / "pets").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pets")
    val, test = files(tmp_path / "pets", "2.png"), files(tmp_path / "link", "1.png")
    with pytest.raises(LeakageError, match="id_train train and id_test test have 1 image in common"):
        refuse_same_images(beside(files(tmp_path / "pets", "0.png", "1.png"), val, test, rows(0)))


def contents(*names):
    return np.stack([np.frombuffer(bytes.fromhex(bytes_sha256(name.encode())), np.uint8) for name in names])


def known_files(*names):
    return FileItems([f"elsewhere/{name}" for name in names], contents(*names))


def test_images_of_equal_bytes_are_the_same_where_their_digests_are_known():
    with pytest.raises(
        LeakageError, match=r"id_train train and id_test test have 1 image in common, e\.g\. 'test/0.png'"
    ):
        refuse_same_images(beside(known_files("x", "y"), rows(2), known_files("y"), rows(5)))
    refuse_same_images(beside(known_files("x", "y"), rows(2), known_files("z"), rows(5)))


def test_images_of_joined_sets_and_outliers_are_looked_at_too():
    joined = ConcatDataset([rows(0), rows(1, 2)])
    with pytest.raises(LeakageError, match=r"id_train train and far far have 1 image in common, e\.g\. 'far/1.png'"):
        refuse_same_images(beside(joined, rows(3), rows(4), rows(5, 2)))
    shown = replace(beside(rows(0), rows(2), rows(3), rows(5)), ood_train=split_of(rows(5), Role.OOD_TRAIN, "o"))
    with pytest.raises(LeakageError, match="ood_train o and far far have 1 image"):
        refuse_same_images(shown)
