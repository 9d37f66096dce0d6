"""Collections of sets that take turns at being ID and OOD, and ID sets that are joined."""

from math import comb

import numpy as np
import pytest
from omegaconf import OmegaConf

from openbench.core.benchmark import Split, canonical
from openbench.core.request import Role
from openbench.data.benchmark_config import BenchmarkConfig, Collection
from openbench.data.build import build_benchmark, join, survey
from openbench.data.manifests import load_rule
from openbench.errors import ConfigError, DataError, LeakageError
from openbench.paths import config_dir

from .conftest import noisy, write_idx, write_image

CASES = {"rebench_case1": (1, 1), "rebench_case2": (3, 2), "rebench_case3": (1, 4)}


def sweep_of(name):
    """The groups that a multirun runs by itself."""
    found = OmegaConf.load(config_dir() / f"benchmark/{name}.yaml")
    return "".join(found.hydra.sweeper.params["benchmark.group"].split()).split(",")


@pytest.mark.parametrize(("name", "chosen"), CASES.items())
def test_a_sweep_names_every_group_once(name, chosen, composed):
    groups = sweep_of(name)
    assert len(groups) == len(set(groups)) == comb(5, chosen[0]) * comb(5 - chosen[0], chosen[1])
    assert set(groups) == Collection(**composed(f"+benchmark={name}")["collection"]).groups().keys()


@pytest.mark.parametrize("name", CASES)
def test_classes_of_every_group_meet_in_sandals_only(name, composed):
    node = composed(f"+benchmark={name}")
    for group in sweep_of(name):
        chosen = {**node, "group": group}
        own = BenchmarkConfig.parse(chosen).class_names
        assert len({canonical(c) for c in own}) == len(own)
        shown = {s.path: s.config.listing().class_names() for s in BenchmarkConfig.parse(chosen).sets}
        far = {canonical(c) for path, classes in shown.items() if path.startswith("far.") for c in classes}
        apart = {"tiny_imagenet", "fashion_mnist"} & {p.rpartition(".")[2] for p in shown if p.startswith("far.")}
        both = len(apart) == 1 and "tiny_imagenet" in group and "fashion_mnist" in group
        assert far & {canonical(c) for c in own} == ({"sandal"} if both else set())


def test_a_rule_without_the_part_names_those_it_has():
    with pytest.raises(
        DataError, match=r"part 'tests' of rule 'rebench/kmnist/tests' not found; did you mean 'test'\?"
    ):
        load_rule("rebench/kmnist/tests")
    with pytest.raises(DataError, match="part '' of rule 'rebench/kmnist' not found"):
        load_rule("rebench/kmnist")


def few_images(root):
    """Twenty images of each class of all five sets; of the two that are OOD, of three classes."""
    for name, below in (("tiny_imagenet", "tin/train"), ("places365", "places365/train"), ("textures", "texture")):
        rule = load_rule(f"rebench/{name}/train")
        write_image(root / f"one{rule.suffix}", noisy((32, 32, 3)))
        content = (root / f"one{rule.suffix}").read_bytes()
        for folder in rule.folders[: None if name == "textures" else 3]:
            place = root / rule.key.rpartition("/")[0].format(folder=folder)
            assert place.is_relative_to(root / below)
            place.mkdir(parents=True)
            for number in range(20):
                (place / f"{number}{rule.suffix}").write_bytes(content)
    labels = np.repeat(np.arange(10), 20)[np.random.default_rng(0).permutation(200)]
    for seed, folder in enumerate(("FashionMNIST/raw", "KMNIST/raw")):
        write_idx(root / folder, "train", noisy((200, 28, 28), seed), labels, packed=True)


def test_joined_sets_keep_each_images_label_and_pixels(root, composed):
    few_images(root)
    group = "fashion_mnist+kmnist+textures_vs_tiny_imagenet+places365"
    changes = ("benchmark.incomplete=allow", "benchmark.known_id_overlap=[]")
    node = composed("+benchmark=rebench_case2", f"benchmark.group={group}", *changes)
    with pytest.raises(LeakageError):  # sandals, but they are told apart by no set here
        build_benchmark(node)
    bench = build_benchmark({**node, "known_id_overlap": ["sandal"]})
    test = bench.id_test
    assert test.name == "fashion_mnist+kmnist+texture"
    assert [test.keys[i].split("/")[0] for i in (29, 30, 59, 60)] == ["fashion_mnist", "kmnist", "kmnist", "texture"]
    for index in (0, 29, 30, 59, 60, 200):
        key, label = test.keys[index], bench.classes[test.labels[index]]
        if key.startswith("texture/"):
            assert label == key.split("/")[1]
        else:
            assert test.labels[index] == int(key.split("/")[2]) + 10 * key.startswith("kmnist")
    row = int(test.keys[30].rpartition("_")[2].removesuffix(".jpg"))
    np.testing.assert_array_equal(test.items[30], noisy((200, 28, 28), 1)[row])
    parts = [f"id.train.{name}" for name in ("fashion_mnist", "kmnist", "textures")]
    assert [s.path for s in survey(BenchmarkConfig.parse(node))][:3] == parts
    assert any(text.startswith("kmnist: derived") for text in test.deviations)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("kmnist_vs_kmnist", "benchmark.group 'kmnist_vs_kmnist' not found"),
        ("kmnits_vs_textures", "not found; did you mean 'kmnist_vs_textures'"),
        ("kmnist", "'kmnist' not found"),
    ],
)
def test_a_group_that_does_not_exist_is_refused(group, message, composed):
    node = composed("+benchmark=rebench_case1")
    with pytest.raises(ConfigError, match=message):
        build_benchmark({**node, "group": group})
    with pytest.raises(ConfigError, match=r"give either `far` or `collection`, not both"):
        build_benchmark({**node, "far": {"mnist": {}}})
    with pytest.raises(ConfigError, match=r"benchmark\.collection has no key 'odd'; did you mean 'ood'"):
        build_benchmark({**node, "collection": {**node["collection"], "odd": 2}})


def test_a_dropped_set_is_recorded_where_it_is_ood_and_refused_where_it_is_id(composed):
    node = composed("+benchmark=rebench_case3", "~benchmark.collection.sets.kmnist")
    assert BenchmarkConfig.parse(node).removed == ["far.kmnist"]
    with pytest.raises(ConfigError, match="ID set kmnist was dropped"):
        BenchmarkConfig.parse({**node, "group": sweep_of("rebench_case3")[2]})


def part(digest, count=2):
    items = [np.zeros((2, 2, 3), np.uint8)] * count
    return Split("s", Role.ID_TEST, items, np.zeros(count, np.int64), ["k"] * count, ("x",), digest, count)


def test_joined_splits_have_one_digest_exactly_if_their_parts_have_in_the_same_order():
    classes = {"a": ("x (a)",), "b": ("x (b)",)}

    def joined(first, second, order=classes):
        return join({"a": part(first), "b": part(second)}, order).digest

    assert joined("1", "2") == joined("1", "2")
    others = [joined("1", "3"), joined("3", "2"), joined("2", "1"), joined("1", "2", dict(reversed(classes.items())))]
    assert joined("1", "2") not in others
    assert others[2] == others[3]  # b before a, or their images exchanged: the same images in the same order
