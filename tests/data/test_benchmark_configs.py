"""The shipped benchmarks, composed by Hydra as the command line composes them, and those with unknown classes."""

import numpy as np
import pytest
import torch

from openbench.config.build import build
from openbench.config.folders import shipped
from openbench.core.benchmark import canonical
from openbench.data.benchmark_config import BenchmarkConfig, arranged, class_split
from openbench.data.build import build_benchmark
from openbench.data.dataset import SetConfig
from openbench.data.loading import batches
from openbench.data.manifests import load_classes, load_manifest
from openbench.errors import ConfigError, DataError
from openbench.paths import config_dir
from openbench.training.recipe import Recipe

BENCHMARKS = sorted(path.stem for path in config_dir().glob("benchmark/*.yaml"))


def test_a_benchmark_yaml_opens_with_its_command_and_leaves_nothing_open():
    texts = {name: (config_dir() / f"benchmark/{name}.yaml").read_text() for name in BENCHMARKS}
    head = "# @package _global_\n"
    wanted = {name: (f"# python -m openbench run +benchmark={name} ", "# Expected", "# Time:") for name in BENCHMARKS}
    lacking = {name: [word for word in wanted[name] if word not in text] for name, text in texts.items()}
    assert {name: words for name, words in lacking.items() if words} == {}
    assert [name for name, text in texts.items() if not text.startswith(head) or "???" in text] == []


@pytest.mark.parametrize("name", BENCHMARKS, scope="module")
def test_a_benchmark_declares_exactly_the_sets_that_it_has(name, composed):
    node = composed(f"+benchmark={name}")
    found = arranged(node)
    sets = {f"{g}.{s}" for g in ("csid", "near", "far") for s in found.get(g) or {}}
    sets |= {g for g in ("ood_val", "ood_train") if found.get(g)}
    assert set(found["declared"]) == sets
    # A family of benchmarks is named by what was chosen of it, too: the table, the group, or the drawing.
    chosen = found.get("table", node.get("group", (found.get("openset") or {}).get("seed")))
    assert found["name"] == (name if chosen is None else f"{name}_{chosen}")


@pytest.mark.parametrize("name", BENCHMARKS, scope="module")
def test_the_classes_of_a_benchmark_meet_only_where_it_says_so(name, composed):
    """Without any data: the lists alone must keep what `build_benchmark` would check."""
    node = composed(f"+benchmark={name}")
    names = {s.path: {canonical(c) for c in s.config.listing().class_names()} for s in BenchmarkConfig.parse(node).sets}
    own = {canonical(c) for c in BenchmarkConfig.parse(node).class_names}
    tested = [path for path in names if path.startswith(("near.", "far."))]
    assert all(names[path] <= own for path in names if path.startswith(("id.", "csid.")))
    assert {c for path in tested for c in names[path] & own} == set(node.get("known_id_overlap") or ())
    assert not names.get("ood_val", set()) & own
    met = {
        c
        for first, second in node["disjoint"]
        for a in names
        for b in names
        if a.startswith(first) and b.startswith(second)
        for c in names[a] & names[b]
    }
    assert met == set(node["known_overlap"])


@pytest.mark.parametrize("name", BENCHMARKS, scope="module")
def test_the_outliers_that_a_benchmark_names_have_no_class_that_it_tests(name, composed_whole):
    """Without any data: the lists alone must keep what `with_outliers` checks."""
    nodes = composed_whole(f"+benchmark={name}")
    named = [nodes["outliers"]] if "outliers" in nodes else []
    named += [shipped("dataset", "imagenet_outliers")] if name.startswith("cifar10") and name != "cifar10_small" else []
    known = {canonical(c) for c in nodes["benchmark"].get("known_overlap") or ()}
    for node in named:
        classes = {canonical(c) for c in SetConfig.from_node(node, "outliers").listing().class_names()}
        assert not classes & {canonical(c) for c in BenchmarkConfig.parse(nodes["benchmark"]).class_names}
        sets = [
            s for s in BenchmarkConfig.parse(nodes["benchmark"]).sets if s.path.startswith(("near.", "far.", "ood_val"))
        ]
        of = {s.path: {canonical(c) for c in s.config.listing().class_names()} for s in sets}
        assert {path: shared for path, names in of.items() if (shared := classes & names - known)} == {}


@pytest.mark.parametrize("name", BENCHMARKS, scope="module")
def test_the_recipe_of_a_benchmark_can_be_built_also_with_the_warm_up_of_contrastive_trainings(name, composed_whole):
    recipe = composed_whole(f"+benchmark={name}")["training"]["recipe"]
    warm = {} if name.startswith(("rebench", "cifar10_32px", "cifar10_small")) else {"warmup_epochs": 10}  # few epochs
    assert isinstance(build({**recipe, **warm}), Recipe)


def test_full_spectrum_adds_csid_sets_to_the_benchmark_and_changes_nothing_else(composed):
    for name in ("cifar10", "cifar10_32px", "imagenet1k", "imagenet200"):
        plain, full = composed(f"+benchmark={name}"), composed(f"+benchmark={name}_fs")
        csid = full.pop("csid")
        assert full.pop("declared") == [*(f"csid.{s}" for s in csid), *plain.pop("declared")]
        assert full.pop("name") == f"{plain.pop('name')}_fs"
        assert full == plain


def test_the_networks_of_the_large_benchmarks_are_those_of_the_published_tables(composed_whole):
    assert composed_whole("+benchmark=imagenet1k_fs")["backbone"]["name"] == "torchvision_resnet50"
    trained = composed_whole("+benchmark=imagenet200_fs")["backbone"]
    assert (trained["name"], trained["weights"], trained["preprocess"]) == ("torchvision_resnet18", None, None)


def test_digits_has_every_role_and_needs_no_data(composed, monkeypatch, tmp_path):
    monkeypatch.delenv("OPENBENCH_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    bench = build_benchmark(composed("+benchmark=digits"))
    assert bench.pristine
    assert bench.digest == "edc5dad80367a4b7"  # in every process, and in all records
    assert {(s.role.value, s.name): len(s) for s in bench.splits()} == {
        ("id_train", "digits"): 541,
        ("id_val", "digits"): 109,
        ("id_test", "digits"): 433,
        ("csid", "noisy"): 433,
        ("csid", "blurred"): 433,
        ("csid", "faded"): 433,
        ("csid", "shifted"): 433,
        ("ood_train", "textures_drawn"): 600,
        ("ood_val", "digits"): 360,
        ("near", "eight"): 174,
        ("near", "nine"): 180,
        ("far", "patches"): 400,
        ("far", "noise"): 400,
    }


def test_a_set_dropped_from_the_defaults_alone_is_refused_with_the_right_command(composed):
    with pytest.raises(ConfigError, match=r"remove the set: `~benchmark\.near\.nine`"):
        build_benchmark(composed("+benchmark=digits", "~dataset@benchmark.near.nine"))


def test_the_network_input_of_digits_is_standardised_on_the_training_images(composed):
    bench = build_benchmark(composed("+benchmark=digits"))
    x = torch.cat(list(batches(bench.id_train, bench.preprocess, 100)))
    assert x.shape == (541, 3, 16, 16)
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.std()) - 1) < 0.01


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
