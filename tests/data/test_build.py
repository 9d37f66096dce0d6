import copy

import pytest

from openbench.core.request import Role
from openbench.data.build import build_benchmark, build_preprocess, survey, typed
from openbench.errors import ConfigError, DataError, LeakageError

from .conftest import noisy, write_image

FOLDER = {"folder": {"_target_": "openbench.data.sources.ImageFolder"}}
SETS = {
    "pets/train": "cat: 0-3\ndog: 4-7",
    "pets/val": "cat: 8\ndog: 9",
    "pets/test": "cat: 10\ndog: 11",
    "fish/val": "cod: 0-3",
    "birds/test": "owl: 0-3",
    "cars/test": "van: 0-3",
}


@pytest.fixture
def node(root, manifest):
    """A whole benchmark of small PNG files, as a resolved config node."""
    sets = {}
    for seed, (name, body) in enumerate(SETS.items()):
        folder = name.partition("/")[0]
        for number in range(12):
            path = root / f"{folder}/{number}.png"
            if not path.exists():
                write_image(path, noisy((8, 8, 3), 100 * seed + number))
        written = manifest(f"key: {folder}/{{index}}.png\n{body}\n", name.replace("/", "_"))
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


def test_every_role_gets_its_split(node):
    bench = build_benchmark(node)
    counts = {(s.role, s.name): len(s) for s in bench.splits()}
    assert counts == {
        (Role.ID_TRAIN, "pets"): 8,
        (Role.ID_VAL, "pets"): 2,
        (Role.ID_TEST, "pets"): 2,
        (Role.OOD_VAL, "fish"): 4,
        (Role.NEAR, "birds"): 4,
        (Role.FAR, "cars"): 4,
    }
    assert bench.pristine
    assert bench.preprocess.mean == (0.5, 0.5, 0.5)


def test_building_does_not_change_the_node(node):
    before = copy.deepcopy(node)
    build_benchmark(node)
    assert node == before


def test_a_planted_id_class_in_an_ood_set_is_named(node, manifest):
    node["far"]["cars"] = {**node["far"]["cars"], "manifest": manifest("key: cars/{index}.png\nDog: 0-3\n", "bad")}
    with pytest.raises(LeakageError, match=r"ID pets and far cars share the classes \['dog'\]"):
        build_benchmark(node)


def test_a_planted_validation_class_in_a_near_set_is_named(node, manifest):
    node["near"]["birds"] = {**node["near"]["birds"], "manifest": manifest("key: birds/{index}.png\ncod: 0-3\n", "bad")}
    with pytest.raises(LeakageError, match=r"ood_val fish and near birds share the classes \['cod'\]"):
        build_benchmark(node)
    assert build_benchmark({**node, "known_overlap": ["cod"]}).pristine
    assert build_benchmark({**node, "disjoint": []}).pristine


@pytest.mark.parametrize("path", ["ood_val", "far.cars"])
def test_a_set_taken_out_is_recorded_and_changes_the_digest(node, path):
    whole = build_benchmark(node)
    group, _, name = path.partition(".")
    if name:
        del node[group][name]
    else:
        del node[group]
    part = build_benchmark(node)
    assert part.dropped == (path,)
    assert not part.pristine
    assert part.digest != whole.digest


def test_a_set_that_is_not_declared_is_recorded(node):
    node["far"]["vans"] = node["far"]["cars"]
    bench = build_benchmark(node)
    assert bench.deviations == ("vans (far): not part of the benchmark as defined",)


def test_a_missing_set_stops_the_build(node, root):
    remove(root, "cars")
    with pytest.raises(DataError, match=r"data set 'cars' \(far.cars\) is not found — 0 of 4 images") as raised:
        build_benchmark(node)
    assert "`python -m openbench check +benchmark=zoo`" in str(raised.value)


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


def test_allowing_gaps_where_there_are_none_changes_nothing(node):
    allowed = build_benchmark({**node, "incomplete": "allow"})
    assert allowed.pristine
    assert allowed.digest == build_benchmark(node).digest


def test_an_id_set_may_never_be_absent(node, root):
    remove(root, "pets")
    with pytest.raises(DataError, match=r"'pets' \(id.train\) is not found"):
        build_benchmark({**node, "incomplete": "allow"})


def test_a_survey_names_all_gaps_at_once_and_refuses_none(node, root):
    remove(root, "cars")
    remove(root, "birds", [1])
    found = {status.path: status for status in survey(node)}
    assert {path: (s.found, s.expected) for path, s in found.items() if s.message} == {
        "far.cars": (0, 4),
        "near.birds": (3, 4),
    }
    assert found["id.test"].message == ""


def test_a_survey_reports_a_damaged_container_instead_of_stopping(node, root):
    node["far"]["cars"] = {
        **node["far"]["cars"],
        "sources": {"p": {"_target_": "openbench.data.packs.NpzPack", "file": "p"}},
    }
    (root / "p").write_bytes(b"damaged")
    status = next(s for s in survey(node) if s.path == "far.cars")
    assert status.found == 0
    assert "cannot be read" in status.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"naer": {}}, "no key 'naer'; did you mean 'near'"),
        ({"preprocess": None}, "benchmark: missing preprocess"),
        ({"id": {"train": {}, "val": {}}}, "missing id.train, id.val, id.test"),
        ({"disjoint": [["ood_val", "naer"]]}, "no role 'naer'; did you mean 'near'"),
        ({"disjoint": [["ood_val"]]}, "pairs of roles"),
        ({"incomplete": "alow"}, "found 'alow' — allowed: error, allow"),
    ],
)
def test_a_wrong_benchmark_node_is_refused_by_key(node, change, message):
    with pytest.raises(ConfigError, match=message):
        build_benchmark({**node, **change})


def test_an_unknown_part_of_id_is_refused(node):
    node["id"]["tset"] = node["id"]["test"]
    with pytest.raises(ConfigError, match="no key 'tset'; did you mean 'test'"):
        build_benchmark(node)


def test_an_unknown_preprocess_key_is_refused():
    with pytest.raises(ConfigError, match="no key 'resice'; did you mean 'resize'"):
        build_preprocess({"resice": 8, "crop": 8})


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["+benchmark=cifar10"], "cifar10"),
        (["+benchmark=openset_mnist"], "openset_mnist benchmark.openset.seed=0"),
        (["+benchmark=openset_digits", "benchmark.openset.seed=3"], "openset_digits benchmark.openset.seed=3"),
        (["+benchmark=adbench", "benchmark.table=magic.gamma"], "adbench benchmark.table=magic.gamma"),
        (
            ["+benchmark=rebench_case1", "benchmark.group=textures_vs_fashion_mnist"],
            "rebench_case1 benchmark.group=textures_vs_fashion_mnist",
        ),
        (
            ["+benchmark=rebench_case2"],
            "rebench_case2 benchmark.group=tiny_imagenet+kmnist+places365_vs_fashion_mnist+textures",
        ),
    ],
)
def test_a_message_names_a_benchmark_as_it_is_typed(overrides, expected, composed, root):
    node = composed(*overrides)
    assert typed(node) == expected
    if "digits" not in expected:
        assert f"check +benchmark={expected}`" in survey(node)[0].message
        with pytest.raises(DataError) as raised:
            build_benchmark(node)
        assert f"`python -m openbench check +benchmark={expected}`" in str(raised.value)
    assert composed(*f"+benchmark={expected}".split()) == node
