"""Outliers that a training learns from: opened beside the benchmark, and held apart from what is tested."""

from dataclasses import replace

import pytest

from openbench.core.request import Role
from openbench.data.benchmark_config import BenchmarkConfig
from openbench.data.build import outliers_name, with_outliers
from openbench.data.checking.verify import verify_node
from openbench.errors import DataError, LeakageError

from .test_verify import benchmark, parts, split  # noqa: F401  (a fixture)


@pytest.fixture
def textures(composed_whole):
    """The node of drawn textures: gratings, checks, blobs."""
    return composed_whole("+benchmark=digits")["outliers"]


def test_they_are_the_training_split_and_leave_the_benchmark_as_it_is(parts, textures):  # noqa: F811
    bench = benchmark({**parts, "ood_train": None})
    before = bench.digest
    seen = with_outliers(bench, {**textures, "_name_": "textures_drawn"})
    assert (bench.digest, bench.ood_train) == (before, None)
    assert (seen.ood_train.role, seen.ood_train.name, len(seen.ood_train)) == (Role.OOD_TRAIN, "textures_drawn", 600)
    other = with_outliers(bench, {**textures, "limit": 20})
    assert other.ood_train.digest != seen.ood_train.digest
    assert outliers_name(seen.ood_train) == "textures_drawn"
    assert outliers_name(other.ood_train) == "textures_drawn (20 of 600)"


@pytest.mark.parametrize("role", [Role.OOD_VAL, Role.NEAR, Role.FAR])
def test_a_class_that_is_tested_or_tuned_on_is_leakage(parts, textures, role):  # noqa: F811
    taken = split("mats", role, ("Checks", "cod"), 9)
    parts[role.value] = taken if role == Role.OOD_VAL else {"mats": taken}
    bench = benchmark({**parts, "ood_train": None})
    with pytest.raises(LeakageError, match=rf"ood_train textures_drawn and {role} mats .* \['checks'\] .*outliers"):
        with_outliers(bench, textures)
    # What a benchmark knows its published lists to share, it shares with published outliers too.
    with_outliers(replace(bench, known_overlap=("checks",)), textures)
    with_outliers(bench, {**textures, "keep": ["grating", "blobs"]})


def test_a_class_that_is_known_to_the_classifier_is_leakage_whatever_is_known(parts, textures):  # noqa: F811
    tiles = ("blobs", "dog")
    renamed = {k: replace(v, classes=tiles) for k, v in parts.items() if k.startswith("id_")} | {"csid": {}}
    bench = replace(benchmark({**parts, **renamed, "ood_train": None}), classes=tiles, known_overlap=("blobs",))
    with pytest.raises(LeakageError, match=r"ID pets and ood_train textures_drawn share the classes \['blobs'\]"):
        with_outliers(bench, textures)


def test_missing_outliers_are_named_with_what_can_be_done(parts, composed_whole, root):  # noqa: F811
    with pytest.raises(
        DataError, match=r"(?s)outliers: tin597, 0 of 29,850 images found .* dataset@outliers=NAME.*searched"
    ):
        with_outliers(benchmark(parts), composed_whole("+benchmark=cifar10")["outliers"])


def test_a_check_verifies_them_with_the_benchmark(composed_whole):
    nodes = composed_whole("+benchmark=openset_digits")
    checked = {
        s.where: s.found
        for s in verify_node(BenchmarkConfig.parse(nodes["benchmark"]), outliers=nodes["outliers"]).splits
    }
    assert checked.pop("ood_train/textures_drawn") == 600
    assert set(checked) == {s.where for s in verify_node(BenchmarkConfig.parse(nodes["benchmark"])).splits}


def test_benchmarks_name_the_published_outliers_and_small_ones_need_no_download(composed_whole):
    wanted = {"cifar10_fs": "tin597", "cifar100": "tin597", "imagenet200_fs": "imagenet800", "digits": "textures_drawn"}
    assert {name: composed_whole(f"+benchmark={name}")["outliers"]["name"] for name in wanted} == wanted
