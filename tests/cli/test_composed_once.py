"""Jobs that differ in their method are composed once, to the configs that Hydra composes for each of them."""

import pickle

import pytest
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException
from hydra.types import RunMode
from omegaconf import OmegaConf

from openbench.__main__ import main
from openbench.compose import loader
from openbench.compose.composed import composed
from openbench.compose.group import GroupLoader
from openbench.errors import ConfigError


@pytest.fixture
def loaders(configs):
    """Ours, Hydra's, and a function that composes a job with one of them."""
    loader.install()
    with initialize_config_dir(config_dir=str(configs), version_base="1.3"):
        hydra = ConfigLoaderImpl(GlobalHydra.instance().config_loader().config_search_path)
        master = hydra.load_configuration("run", ["+benchmark=digits"], run_mode=RunMode.MULTIRUN)

        def composed(loader, *job):
            return loader.load_sweep_config(master, ["+benchmark=digits", *job])

        yield GroupLoader(hydra.config_search_path), hydra, composed


@pytest.fixture
def compositions(monkeypatch):
    """The overrides of every config that Hydra composes."""
    found = []
    compose = ConfigLoaderImpl._load_configuration_impl

    def composing(self, config_name, overrides, *arguments, **named):
        found.append(list(overrides))
        return compose(self, config_name, overrides, *arguments, **named)

    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", composing)
    return found


def plain(config):
    flags = OmegaConf.is_struct(config), "method" in config and OmegaConf.is_struct(config.method)
    return OmegaConf.to_container(config, resolve=False), flags


def test_a_sweep_over_methods_composes_one_config_for_all_of_them(engine, compositions):
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp", "seed=3"]) == 0
    assert [config["method"]["_name_"] for _, config, _ in engine.asked] == ["knn", "msp"]
    # Besides the template Hydra composes the sweep's own config.
    assert [job for job in compositions if any(text.startswith("~") for text in job)] == [
        [*compositions[-1][:-3], "+benchmark=digits", "~method", "seed=3"]
    ]
    assert not any(text.startswith("method=") and "," not in text for job in compositions for text in job)


@pytest.mark.slow
def test_each_job_has_the_config_that_hydra_composes(loaders, compositions):
    ours, hydras, composed = loaders
    for job in (["method=knn"], ["method=msp"], ["seed=2", "method=knn", "benchmark.incomplete=allow"]):
        assert plain(composed(ours, *job)) == plain(composed(hydras, *job))
    assert sum(any(text == "~method" for text in job) for job in compositions) == 2


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("file", "text", "job"),
    [
        ("method/more.yaml", "defaults: [knn, _self_]\nk: 7\n", ["method=more"]),
        ("method/far.yaml", "# @package _global_\nseed: 5\n", ["method=far"]),
        ("method/named.yaml", "# @package method\nk: 5\n", ["method=named"]),
        ("method/reads.yaml", "k: ${seed}\nof: ${benchmark.name}\n", ["method=reads", "seed=4"]),
        ("method/empty.yaml", "", ["method=empty"]),
        ("benchmark/digits.yaml", "# @package _global_\nbenchmark: {name: d}\nmethod: {k: 9}\n", ["method=knn"]),
        (
            "benchmark/digits.yaml",
            "# @package _global_\ndefaults: [override /method: knn]\nbenchmark: {name: d}\n",
            ["method=msp"],
        ),
        ("method/x.yaml", "k: 1\n", ["method=x", "method.k=3"]),
        ("method/x.yaml", "k: 1\n", ["method=x", "+method.z=3"]),
        ("method/x.yaml", "k: 1\n", ["method=x", "backbone=tiny", "backbone.weights=${method.k}"]),
    ],
)
def test_files_and_overrides_that_say_more_of_the_method_are_composed_by_hydra(configs, loaders, file, text, job):
    (configs / file).write_text(text)
    ours, hydras, composed = loaders
    for _ in range(2):
        assert plain(composed(ours, *job)) == plain(composed(hydras, *job))


def test_a_config_that_a_job_changes_does_not_change_the_next(loaders):
    ours, hydras, composed = loaders
    first = composed(ours, "method=knn")
    OmegaConf.update(first, "benchmark.near.eight", 0)
    OmegaConf.update(first, "method.k", 0)
    assert plain(composed(ours, "method=knn")) == plain(composed(hydras, "method=knn"))


def test_a_method_that_does_not_exist_ends_in_hydras_error(loaders):
    ours, _, composed = loaders
    with pytest.raises(MissingConfigException, match="Could not find 'method/nearest'"):
        composed(ours, "method=nearest")


def test_another_process_composes_the_same(loaders):
    ours, hydras, composed = loaders
    composed(ours, "method=knn")
    assert plain(composed(pickle.loads(pickle.dumps(ours)), "method=msp")) == plain(composed(hydras, "method=msp"))


def test_a_worker_that_is_handed_the_loader_composes_in_the_same_way(loaders, monkeypatch):
    packed = pickle.dumps(loaders[0])
    for owner, name, theirs in loader.THEIRS:
        monkeypatch.setattr(owner, name, theirs)
    pickle.loads(packed)
    assert [name for owner, name, ours in loader._OURS if getattr(owner, name) is not ours] == []


def test_what_is_composed_carries_the_names_of_its_files():
    config = composed("run", ["+benchmark=digits", "method=knn", "tune=none"]).config
    assert {key: config[key]["_name_"] for key in ("method", "tune")} == {"method": "knn", "tune": "none"}
    assert "_name_" not in config["benchmark"]


def test_what_does_not_compose_is_explained_to_callers_too():
    with pytest.raises(ConfigError, match=r"method 'knm' not found in configs/method; did you mean 'knn'\?"):
        composed("run", ["+benchmark=digits", "method=knm"])
