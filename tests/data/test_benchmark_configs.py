"""The shipped benchmarks, composed by Hydra as the command line composes them."""

import pytest
import torch

from openbench.core.benchmark import canonical
from openbench.data.benchmark_config import BenchmarkConfig, arranged
from openbench.data.build import build_benchmark
from openbench.data.dataset import SetConfig
from openbench.data.loading import batches
from openbench.errors import ConfigError
from openbench.paths import config_dir

BENCHMARKS = sorted(path.stem for path in config_dir().glob("benchmark/*.yaml"))


def test_a_benchmark_yaml_opens_with_its_command_and_leaves_nothing_open():
    texts = {name: (config_dir() / f"benchmark/{name}.yaml").read_text() for name in BENCHMARKS}
    head = "# @package _global_\n"
    wanted = {name: (f"# python -m openbench run +benchmark={name} ", "# Expected", "# Time:") for name in BENCHMARKS}
    lacking = {name: [word for word in wanted[name] if word not in text] for name, text in texts.items()}
    assert {name: words for name, words in lacking.items() if words} == {}
    assert [name for name, text in texts.items() if not text.startswith(head) or "???" in text] == []


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_declares_exactly_the_sets_that_it_has(name, composed):
    node = composed(f"+benchmark={name}")
    found = arranged(node)
    sets = {f"{g}.{s}" for g in ("csid", "near", "far") for s in found.get(g) or {}}
    sets |= {g for g in ("ood_val", "ood_train") if found.get(g)}
    assert set(found["declared"]) == sets
    # A family of benchmarks is named by what was chosen of it, too: the table, the group, or the drawing.
    chosen = found.get("table", node.get("group", (found.get("openset") or {}).get("seed")))
    assert found["name"] == (name if chosen is None else f"{name}_{chosen}")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_classes_of_a_benchmark_meet_only_where_it_says_so(name, composed):
    """Without any data: the lists alone must keep what `build_benchmark` would check."""
    node = composed(f"+benchmark={name}")
    names = {
        s.path: {canonical(c) for c in SetConfig.from_node(s.node, s.path).listing().class_names()}
        for s in BenchmarkConfig.parse(node).sets
    }
    own = {canonical(c) for c in BenchmarkConfig.parse(node).classes}
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
