"""Configs are merged once for the same files, and are those that Hydra merges each time."""

import copy
from collections import OrderedDict

import pytest
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.default_element import ConfigDefault, GroupDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, MissingConfigException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError

from openbench import paths
from openbench.__main__ import main
from openbench.compose import loader
from openbench.compose.config import compose, options
from openbench.errors import ConfigError


@pytest.fixture
def both():
    """Ours and Hydra's own loader."""
    loader.install()
    with initialize_config_dir(config_dir=str(paths.config_dir()), version_base="1.3"):
        ours = GlobalHydra.instance().config_loader()
        yield ours, ConfigLoaderImpl(ours.config_search_path)


def words():
    """Files of every group, and overrides that choose or change parts of one."""
    groups = (options(group)[::20] for group in ("method", "training", "benchmark"))
    for method, training, benchmark in zip(*groups, strict=False):
        yield [f"+benchmark={benchmark}", f"method={method}", f"training={training}"]
    yield ["+benchmark=cifar10", "~method", "training.recipe.epochs=3"]
    yield ["+benchmark=cifar10", "method=ensemble", "backbone=resnet20_cifar10", "seed=1,2"]
    yield ["+benchmark=digits", "method=cover", "+method@method.base=energy", "runtime=slurm", "hydra.sweep.dir=/x"]
    yield ["+benchmark=digits", "dataset@outliers=tin597", "++method.k=7"]


def whole(config):
    """All that a config holds, but for the time of day, which Hydra's loader reads while it merges."""
    config = copy.deepcopy(config)
    OmegaConf.clear_cache(config)
    return state(config)


def state(node):
    """All that a config holds, down to each value, but for what it remembers of its flags."""
    held = {name: value for name, value in vars(node).items() if name not in ("_parent", "_flags_cache", "_content")}
    content = vars(node).get("_content")
    if isinstance(content, dict):
        content = {key: (state(child), child._get_parent() is node) for key, child in content.items()}
    elif isinstance(content, list):
        content = [(state(child), child._get_parent() is node) for child in content]
    return type(node), held, content


@pytest.mark.slow
def test_a_config_is_the_one_that_hydra_merges(both):
    ours, hydras = both
    for given in words():
        with pytest.MonkeyPatch.context() as patch:
            for place, name, own in loader.THEIRS:
                patch.setattr(place, name, own)
            theirs = whole(hydras.load_configuration("run", given, run_mode=RunMode.MULTIRUN))
        for _ in range(2):  # made, and copied
            assert whole(ours.load_configuration("run", given, run_mode=RunMode.MULTIRUN)) == theirs, given


def test_what_is_merged_knows_what_it_is_in(both):
    made = OmegaConf.create({"a": [{"b": 1}], "c": {"d": {}}})
    with pytest.raises(ConfigAttributeError):  # which every part remembers of its flags
        made.a[0].x  # noqa: B018
    made.merge_with({"a": [{"b": 2}], "c": {"d": {"e": [3]}}})
    OmegaConf.set_struct(made, False)
    for part, parent in ((made.a[0], made.a), (made.a, made), (made.c.d.e, made.c.d), (made.c.d, made.c)):
        assert part._get_parent() is parent
    made.a[0].x = made.c.d.x = 4
    OmegaConf.set_struct(made, True)
    for part in (made.a[0], made.c.d):
        with pytest.raises(ConfigAttributeError):
            part.y = 5


@pytest.mark.slow
def test_a_file_that_sets_up_hydra_does_so_for_its_own_config(both, tmp_path):
    ours, hydras = both
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "mine.yaml").write_text("# @package _global_\nhydra: {job: {name: mine, env_set: {A: 1}}}")
    words = ["+benchmark=digits", f"hydra.searchpath=[{tmp_path}]"]
    for given in ([*words, "tune=mine"], [*words, "tune=none"]):
        found = [each.load_configuration("run", given, run_mode=RunMode.RUN) for each in (ours, hydras)]
        assert whole(found[0]) == whole(found[1])
    assert found[0].hydra.job.env_set == {}
    with pytest.raises(MissingConfigException):  # the folder was searched for the others alone
        ours.load_configuration("run", ["+benchmark=digits", "tune=mine"], run_mode=RunMode.RUN)


def test_entries_of_a_defaults_list_are_copied_whole():
    given = loader._Defaults([GroupDefault(group="method", value=["knn", "msp"]), ConfigDefault(path="run")])
    made = copy.deepcopy(given)
    assert made == list(given)
    assert not {id(made[0]), id(made[0].value), id(made[1])} & {id(given[0]), id(given[0].value), id(given[1])}


def test_files_that_hydra_cannot_merge_are_refused_in_its_words(tmp_path):
    file = tmp_path / "hydra" / "launcher" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("defaults: [basic, _self_]\nunknown: 3\n")
    with pytest.raises(ConfigCompositionException, match=r"^In 'hydra/launcher/mine': ConfigKeyError raised while"):
        compose("run", ["+benchmark=digits", "hydra/launcher=mine"], tmp_path)


def test_what_is_done_with_a_config_does_not_change_the_next(both):
    ours, hydras = both
    given = ["+benchmark=digits", "method=knn"]
    first = ours.load_configuration("run", given, run_mode=RunMode.RUN)
    OmegaConf.set_struct(first, False)
    first.method.k, first.benchmark, first.hydra.job.name = -1, None, "changed"
    second = ours.load_configuration("run", given, run_mode=RunMode.RUN)
    assert whole(second) == whole(hydras.load_configuration("run", given, run_mode=RunMode.RUN))


def test_a_config_remembers_no_time_of_the_one_before(both):
    ours, _ = both
    for _ in range(2):
        made = ours.load_configuration("run", ["+benchmark=digits", "seed=9"], run_mode=RunMode.RUN)
        assert OmegaConf.get_cache(made) == {}


def test_a_file_that_changed_is_read_again(tmp_path):
    file = tmp_path / "method" / "mine.yaml"
    file.parent.mkdir()
    for text, method in (("k: 1", {"k": 1}), ("k: 2", {"k": 2}), ("defaults: [knn]", {"k": 50}), ("k: 1", {"k": 1})):
        file.write_text(text)
        assert compose("run", ["+benchmark=digits", "method=mine"], tmp_path).method.k == method["k"]
    file.write_text("k: [")
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        compose("run", ["+benchmark=digits", "method=mine"], tmp_path)
    file.unlink()
    assert "mine" in refusal(tmp_path)


def refusal(folder):
    try:
        compose("run", ["+benchmark=digits", "method=mine"], folder)
    except Exception as error:
        return str(error)
    return ""


def test_a_file_of_the_same_name_elsewhere_is_another(tmp_path):
    for name in "ab":
        (tmp_path / name / "method").mkdir(parents=True)
        (tmp_path / name / "method" / "mine.yaml").write_text(f"k: {name}")
    found = [compose("run", ["+benchmark=digits", "method=mine"], tmp_path / name).method.k for name in "aba"]
    assert found == ["a", "b", "a"]


def test_a_file_that_others_add_to_stays_as_it_is(tmp_path):
    for group, text in (("method", "k: 1"), ("tune", "j: 2")):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(f"# @package _global_\nmethod: {{{text}}}")
    both, method, tune = (
        ["+benchmark=digits", *words]
        for words in (["method=mine", "tune=mine"], ["method=mine"], ["tune=mine", "~method"])
    )
    found = [dict(compose("run", words, tmp_path).method) for words in (both, method, tune)]
    assert found == [{"k": 1, "j": 2}, {"k": 1}, {"j": 2}]


def test_a_process_keeps_a_limited_number(monkeypatch):
    monkeypatch.setattr(loader, "_MERGED", 2)
    monkeypatch.setattr(loader, "_merged", OrderedDict())
    for seed, method in enumerate(["knn", "msp", "vim", "knn"]):
        assert compose("run", ["+benchmark=digits", f"method={method}", f"seed={seed}"]).seed == seed
        assert len(loader._merged) == min(seed + 1, 2)


def test_a_command_is_composed_once(engine, monkeypatch):
    found = []
    made = ConfigLoaderImpl._load_configuration_impl
    monkeypatch.setattr(
        ConfigLoaderImpl,
        "_load_configuration_impl",
        lambda *given, **named: found.append(given) or made(*given, **named),
    )
    assert main(["run", "+benchmark=digits", "method=knn"]) == 0
    assert len(found) == 1
