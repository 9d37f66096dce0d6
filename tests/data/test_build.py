import pytest

from openbench.data.benchmark_config import BenchmarkConfig, typed
from openbench.data.build import build_benchmark, survey
from openbench.data.checking.verify import refuse_listed_images
from openbench.errors import ConfigError, DataError, LeakageError

from .conftest import noisy, write_image

FOLDER = {"folder": {"_target_": "openbench.data.sources.base.ImageFolder"}}
SETS = {
    "pets/train": {"cat": range(4), "dog": range(4, 8)},
    "pets/val": {"cat": [8], "dog": [9]},
    "pets/test": {"cat": [10], "dog": [11]},
    "fish/val": {"cod": range(4)},
    "birds/test": {"owl": range(4)},
    "cars/test": {"van": range(4)},
}


@pytest.fixture
def node(root, manifest):
    """A whole benchmark of small PNG files, as a resolved config node."""
    sets = {}
    for seed, (name, numbers) in enumerate(SETS.items()):
        folder = name.partition("/")[0]
        for number in range(12):
            path = root / f"{folder}/{number}.png"
            if not path.exists():
                write_image(path, noisy((8, 8, 3), 100 * seed + number))
        written = manifest(folder + "/{n}.png", name.replace("/", "_"), **numbers)
        sets[name] = {"name": folder, "manifest": written, "sources": FOLDER}
    return {
        "name": "zoo",
        "classes": ["cat", "dog"],
        "declared": ["ood_val", "near.birds", "far.cars"],
        "id": {part: sets[f"pets/{part}"] for part in ("train", "val", "test")},
        "ood_val": sets["fish/val"],
        "near": {"birds": sets["birds/test"]},
        "far": {"cars": sets["cars/test"]},
        "disjoint": [["ood_val", "near"]],
        "preprocess": {"resize": 8, "crop": 8, "mean": [0.5, 0.5, 0.5], "std": [0.2, 0.2, 0.2]},
    }


def remove(root, folder, numbers=range(12)):
    for number in numbers:
        (root / f"{folder}/{number}.png").unlink()


def test_a_class_is_shared_only_as_the_node_says(node, manifest):
    assert build_benchmark(node).pristine
    node["near"]["birds"]["manifest"] = manifest("birds/{n}.png", "bad", cod=range(4))
    with pytest.raises(LeakageError, match=r"ood_val fish and near birds share the classes \['cod'\]"):
        build_benchmark(node)
    assert build_benchmark({**node, "known_overlap": ["cod"]}).pristine
    assert build_benchmark({**node, "disjoint": []}).pristine


@pytest.mark.parametrize("path", ["ood_val", "far.cars"])
def test_a_set_taken_out_is_recorded_and_changes_the_digest(node, path):
    whole = build_benchmark(node)
    group, _, name = path.rpartition(".")
    del (node[group] if group else node)[name]
    part = build_benchmark(node)
    assert part.dropped == (path,)
    assert not part.pristine
    assert part.digest != whole.digest


def test_a_set_that_is_not_declared_is_recorded(node):
    node["far"]["vans"] = node["far"]["cars"]
    bench = build_benchmark(node)
    assert bench.deviations == ("vans (far): not part of the benchmark as defined",)


def test_all_that_is_missing_is_said_at_once_and_each_place_once(node, root):
    remove(root, "cars")
    remove(root, "birds", [1])
    remove(root, "pets")
    with pytest.raises(DataError) as raised:
        build_benchmark(node)
    first, *rest = str(raised.value).splitlines()
    named = "id.train, id.val, id.test, near.birds, far.cars"
    assert first == f"benchmark 'zoo': 5 of 6 data sets are missing or incomplete: {named}"
    assert rest[:5] == [
        "  id.train: pets, 0 of 8 images",
        "  id.val: pets, 0 of 2 images",
        "  id.test: pets, 0 of 2 images",
        "  near.birds: birds, 3 of 4 images",
        "  far.cars: cars, 0 of 4 images",
    ]
    start = rest.index(f"searched below {root} and {root.parent / 'data'}:")
    assert rest[start + 1 : rest.index("what to do:")] == ["  images_classic", "  images_largescale", "  ."]
    assert any(line.endswith(": ~benchmark.near.birds ~benchmark.far.cars") for line in rest)


def test_training_images_that_nothing_reads_may_be_absent(node, root):
    remove(root, "pets", range(8))
    with pytest.raises(DataError, match=r"id\.train \(needed by method 'knn', which is fitted on it\)"):
        build_benchmark(node, "method 'knn', which is fitted on it")
    bench = build_benchmark(node, "")
    assert (bench.id_train.unread, len(bench.id_train), bench.id_train.expected) == (True, 0, 8)
    assert bench.pristine


def test_training_images_that_are_there_enter_the_digest_read_or_not(node):
    """So that what was recorded before keeps its name."""
    assert build_benchmark(node, "").digest == build_benchmark(node).digest


@pytest.fixture
def by_list(node):
    """The digest of the training set is that of its list."""
    node["id"]["train"] = {**node["id"]["train"], "digest_of": "list"}
    return node


def test_a_set_known_by_its_list_gives_one_digest_with_and_without_the_images(by_list, root):
    read, unread = build_benchmark(by_list), build_benchmark(by_list, "")
    assert read.id_train.digest != unread.id_train.digest
    remove(root, "pets", range(8))
    assert build_benchmark(by_list, "").digest == unread.digest == read.digest


def test_a_part_of_a_set_known_by_its_list_is_another_benchmark(by_list, root):
    whole = build_benchmark(by_list).digest
    limited = {**by_list, "id": {**by_list["id"], "train": {**by_list["id"]["train"], "limit": 5}}}
    assert build_benchmark(limited).digest != whole
    remove(root, "pets", [0])
    part = build_benchmark({**by_list, "incomplete": "allow"})
    assert part.digest != whole
    assert not part.pristine


def test_incomplete_allow_drops_what_is_absent_and_keeps_what_is_there(node, root):
    whole = build_benchmark(node)
    remove(root, "cars")
    remove(root, "birds", [1])
    remove(root, "fish")
    part = build_benchmark({**node, "incomplete": "allow"})
    assert sorted(part.dropped) == ["far.cars", "ood_val"]
    assert part.ood_val is None
    assert "birds (near): 3 of 4 images found" in part.deviations
    assert part.digest != whole.digest
    remove(root, "pets")
    with pytest.raises(DataError, match=r"3 of 6 data sets are missing or incomplete: id\.train, id\.val, id\.test"):
        build_benchmark({**node, "incomplete": "allow"})


def test_a_survey_names_all_gaps_and_damaged_containers_and_refuses_none(node, root):
    pack = {"p": {"_target_": "openbench.data.sources.archives.NpzPack", "file": "p"}}
    node["far"]["cars"] = {**node["far"]["cars"], "sources": pack}
    (root / "p").write_bytes(b"damaged")
    remove(root, "birds", [1])
    missing = {status.path: status for status in survey(BenchmarkConfig.parse(node)) if status.missing}
    assert {path: s.found for path, s in missing.items()} == {"far.cars": 0, "near.birds": 3}
    assert "cannot be read" in str(missing["far.cars"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"naer": {}}, "no key 'naer'; did you mean 'near'"),
        ({"preprocess": None}, "benchmark: missing preprocess"),
        ({"id": {"train": {}, "val": {}}}, "missing id.train, id.val, id.test"),
        ({"disjoint": [["ood_val", "naer"]]}, "disjoint — found .*'naer'.* a list of 2: id_train, .*near"),
        ({"disjoint": [["ood_val"]]}, "disjoint — found .* a list of 2"),
        ({"incomplete": "alow"}, r"found 'alow', allowed: error, allow; did you mean 'allow'\?"),
    ],
)
def test_a_wrong_benchmark_node_is_refused_by_key(node, change, message):
    with pytest.raises(ConfigError, match=message):
        build_benchmark({**node, **change})


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["+benchmark=cifar10"], "cifar10"),
        (["+benchmark=openset_mnist"], "openset_mnist benchmark.openset.seed=0"),
        (["+benchmark=adbench", "benchmark.table=magic.gamma"], "adbench benchmark.table=magic.gamma"),
        (
            ["+benchmark=rebench_case1", "benchmark.group=textures_vs_fashion_mnist"],
            "rebench_case1 benchmark.group=textures_vs_fashion_mnist",
        ),
    ],
)
def test_a_message_names_a_benchmark_as_it_is_typed(overrides, expected, composed, root):
    node = composed(*overrides)
    assert typed(node) == expected
    if "digits" not in expected:
        with pytest.raises(DataError) as raised:
            build_benchmark(node)
        assert f"— python -m openbench data prepare {expected}\n" in str(raised.value)
    assert composed(*f"+benchmark={expected}".split()) == node


def test_an_image_of_a_list_that_nothing_reads_is_refused_in_a_test_list(node, manifest):
    """Training images are not looked for where a method is not fitted on them; their list is known all the same."""
    lists = {"train": {"cat": range(4), "dog": range(4, 8)}, "test": {"cat": [4, 5], "dog": [10]}}
    for part, numbers in lists.items():
        node["id"][part] = {**node["id"][part], "manifest": manifest("pets/{n}.png", f"{part}_list", **numbers)}
    node["id"]["train"]["digest_of"] = "list"
    opened = build_benchmark(node, reader="")
    assert opened.id_train.unread
    with pytest.raises(LeakageError, match=r"id_train pets and id_test pets have 2 images in common, e.g\. 'pets/4"):
        refuse_listed_images(opened, BenchmarkConfig.parse(node))
    node["id"]["train"]["manifest"] = manifest("pets/{n}.png", "apart", cat=range(4))
    refuse_listed_images(build_benchmark(node, reader=""), BenchmarkConfig.parse(node))
