"""Open-set benchmarks: which classes are known, and that no image of an unknown one is on the ID side."""

import numpy as np
import pytest

from openbench.data.benchmark_config import class_split
from openbench.data.build import build_benchmark
from openbench.data.manifests import load_classes, load_manifest
from openbench.errors import ConfigError, DataError

NODE = {"of": "cifar10/classes", "known": 6, "seed": 0}


def test_the_first_classes_of_the_seeded_order_are_known():
    names = load_classes("cifar10/classes")
    drawn = [names[i] for i in np.random.default_rng(0).permutation(10)]
    found = class_split(NODE)
    assert set(found["known"]) == set(drawn[:6])
    assert set(found["unknown"]) == set(drawn[6:])
    assert list(found["known"]) == [name for name in names if name in found["known"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"known": 10}, "known is 10 — allowed: 2 to 9"),
        ({"known": 1}, "known is 1 — allowed: 2 to 9"),
        ({"sed": 1}, "no key 'sed'; did you mean 'seed'"),
    ],
)
def test_a_drawing_that_makes_no_benchmark_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        class_split({**NODE, **change})


@pytest.mark.parametrize("seed", [0, 3])
def test_known_and_unknown_images_of_digits_are_all_the_test_images(composed, seed):
    bench = build_benchmark(composed("+benchmark=openset_digits", f"benchmark.openset.seed={seed}"))
    assert bench.pristine
    assert bench.name == f"openset_digits_{seed}"
    assert len(bench.classes) == 6
    unknown = bench.near["unknown"]
    assert not set(bench.classes) & set(unknown.classes)
    assert {*bench.id_test.keys, *unknown.keys} == set(load_manifest("digits/open_test").keys)
    assert len(bench.id_test) + len(unknown) == 725
    for split in (bench.id_train, bench.id_val, bench.id_test):
        assert [key.split("/")[1] for key in split.keys] == [bench.classes[label] for label in split.labels]


def test_the_digits_of_the_three_parts_are_all_images_once():
    keys = [key for part in ("train", "val", "test") for key in load_manifest(f"digits/open_{part}").keys]
    from sklearn.datasets import load_digits

    digits = load_digits().target
    assert sorted(keys) == sorted(f"digits/{digit}/{row:04d}" for row, digit in enumerate(digits))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["benchmark.near.unknown.keep=unknwon"], r"found 'unknwon'.*; did you mean 'unknown'"),
        (["+benchmark.classes=[a,b]"], "give either `classes` or `openset`, not both"),
        (["~benchmark.openset", "benchmark.name=x"], "give either `classes` or `openset`"),
    ],
)
def test_a_wrong_open_set_node_is_refused(composed, change, message):
    with pytest.raises(ConfigError, match=message):
        build_benchmark(composed("+benchmark=openset_digits", *change))


def test_a_class_to_keep_that_is_not_there_is_refused(composed):
    with pytest.raises(DataError, match=r"manifest 'digits/open_train' has no images of the classes \['eleven'\]"):
        build_benchmark(composed("+benchmark=openset_digits", "benchmark.id.train.keep=[eleven]"))
