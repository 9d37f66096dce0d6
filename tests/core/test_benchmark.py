import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from openbench.core.benchmark import Benchmark, Split, canonical
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.errors import DataError, LeakageError


def split(name, role, classes, labels=None, tag="", **changes):
    n = 4
    labels = np.asarray(labels if labels is not None else ([0, 1, 0, 1] if role.is_id else [-1] * n))
    items = [np.zeros((8, 8, 3), np.uint8)] * n
    fields = {"digest": f"{name}{role}{tag}", "expected": n, **changes}
    return Split(name, role, items, labels, [f"{name}/{i}" for i in range(n)], classes, **fields)


def benchmark(**changes):
    id_classes = ("cat", "dog")
    parts = {
        "name": "toy",
        "classes": id_classes,
        "id_train": split("pets", Role.ID_TRAIN, id_classes),
        "id_val": split("pets", Role.ID_VAL, id_classes),
        "id_test": split("pets", Role.ID_TEST, id_classes),
        "near": {"birds": split("birds", Role.NEAR, ("owl",))},
        "far": {"cars": split("cars", Role.FAR, ("van",))},
        "ood_val": split("fish", Role.OOD_VAL, ("cod",)),
        "preprocess": Preprocess(8, 8),
    }
    return Benchmark(**{**parts, **changes})


@pytest.mark.parametrize("role", [Role.NEAR, Role.FAR, Role.OOD_VAL, Role.OOD_TRAIN])
def test_an_ood_split_that_shares_a_class_with_id_is_refused_by_name(role):
    shared = split("bad", role, ("owl", "Dog"))
    place = {Role.NEAR: {"near": {"bad": shared}}, Role.FAR: {"far": {"bad": shared}}}.get(role, {str(role): shared})
    with pytest.raises(LeakageError, match=r"bad share the classes \['dog'\]"):
        benchmark(**place)


def test_a_disjoint_benchmark_is_pristine_and_csid_shares_the_id_classes_by_design():
    assert benchmark().pristine
    assert benchmark(csid={"foggy": split("foggy", Role.CSID, ("cat", "dog"))}).pristine


def test_promised_disjointness_of_validation_and_test_is_held():
    fish = split("fish", Role.OOD_VAL, ("owl", "cod"))
    assert benchmark(ood_val=fish)
    with pytest.raises(LeakageError, match=r"ood_val fish and near birds share the classes \['owl'\]"):
        benchmark(ood_val=fish, disjoint=((Role.OOD_VAL, Role.NEAR),))


def test_a_known_overlap_of_validation_and_test_is_allowed_by_name_but_never_one_with_id():
    promise = {"disjoint": ((Role.OOD_VAL, Role.NEAR),), "ood_val": split("fish", Role.OOD_VAL, ("Owl", "cod"))}
    assert benchmark(**promise, known_overlap=("owl",))
    with pytest.raises(LeakageError, match=r"share the classes \['owl'\]"):
        benchmark(**promise, known_overlap=("cod",))
    with pytest.raises(LeakageError, match=r"share the classes \['dog'\]"):
        benchmark(near={"bad": split("bad", Role.NEAR, ("dog",))}, known_overlap=("dog",))


def test_id_classes_known_in_a_published_ood_list_are_let_through_by_name_in_tests_only():
    published = split("scenes", Role.FAR, ("Dog", "road"))
    assert benchmark(far={"scenes": published}, known_id_overlap=("dog",)).pristine
    with pytest.raises(LeakageError, match=r"share the classes \['dog'\]"):
        benchmark(far={"scenes": published}, known_id_overlap=("cat",))
    for role in (Role.OOD_VAL, Role.OOD_TRAIN):
        with pytest.raises(LeakageError, match=r"share the classes \['dog'\]"):
            benchmark(**{str(role): split("bad", role, ("dog",))}, known_id_overlap=("dog",))


def test_class_names_are_compared_without_case_and_punctuation():
    assert canonical("Aquarium Fish") == canonical("aquarium-fish") == canonical("aquarium_fish") == "aquarium_fish"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": ()}, "no ID class"),
        ({"near": {}, "far": {}}, "no OOD test set left"),
        ({"id_test": split("pets", Role.ID_TEST, ("cat", "dog"), [0, 1, 2, 1])}, "from 0 to 2 — allowed: 0 to 1"),
        ({"far": {"cars": split("cars", Role.FAR, ("van",), [-1, -1, 0, -1])}}, "allowed: -1 to -1"),
    ],
)
def test_missing_sides_and_labels_outside_the_classes_are_refused(changes, words):
    with pytest.raises(DataError, match=words):
        benchmark(**changes)


@pytest.mark.parametrize(
    ("items", "labels", "words"),
    [([], [], r"'x' \(far\) is empty"), ([np.zeros((2, 2, 3), np.uint8)], [-1, -1], "one of each per image")],
)
def test_an_empty_split_and_columns_of_different_length_are_refused(items, labels, words):
    with pytest.raises(DataError, match=words):
        Split("x", Role.FAR, items, np.array(labels, np.int64), ["a"][: len(items)], (), "d", 1)


def test_without_ood_val_there_is_nothing_to_tune_on():
    with pytest.raises(DataError, match="tune=none"):
        benchmark(ood_val=None).validation()


def test_validation_reaches_no_test_split():
    bench = benchmark()
    held = {id(v) for v in vars(bench.validation()).values()}
    assert held == {id(bench.id_val), id(bench.ood_val)}


@pytest.mark.parametrize(
    ("changes", "pristine"),
    [
        ({"dropped": ("tin",)}, False),
        ({"far": {"cars": split("cars", Role.FAR, ("van",), deviations=("3 of 4 images found",))}}, False),
        ({"far": {"cars": split("cars", Role.FAR, ("van",), tag="v2")}}, True),
    ],
)
def test_missing_and_other_images_change_the_digest(changes, pristine):
    other = benchmark(**changes)
    assert other.pristine == pristine
    assert other.digest != benchmark().digest


def test_items_are_columns_where_they_are_vectors_and_images_otherwise():
    assert benchmark().columns is None
    rows = replace(benchmark().id_test, items=[np.zeros(7, np.float32)] * 4)
    assert benchmark(id_test=rows).columns == 7


def test_the_digest_is_of_classes_splits_and_deviations():
    parts = {"far/cars": ["carsfar", 4], "id_test/pets": ["petsid_test", 4], "id_train/pets": ["petsid_train", 4]}
    parts |= {"id_val/pets": ["petsid_val", 4], "near/birds": ["birdsnear", 4], "ood_val/fish": ["fishood_val", 4]}
    content = {"classes": ["cat", "dog"], "splits": parts, "deviations": []}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert benchmark().digest == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_images_are_preprocessed_with_the_means_and_deviations_of_imagenet_unless_told_otherwise():
    # https://pytorch.org/vision/stable/models.html
    preprocess = Preprocess(8, 8)
    assert preprocess.mean == (0.485, 0.456, 0.406)
    assert preprocess.std == (0.229, 0.224, 0.225)
