"""Hydra: the overrides of jobs and sweeps, configs as plain values, and Hydra's errors in our words."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hydra import compose as hydra_compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, OverrideType
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from openbench import paths
from openbench.config.build import target_of
from openbench.config.constraints import Seed, check_value
from openbench.config.folders import config_folders, names, shipped, with_package
from openbench.config.overrides import (
    ATTACK,
    AUGMENT,
    NAME,
    OUTLIER_SET,
    OUTLIERS,
    STREAM,
    choices as choices_of,
    quoted,
    word,
    words_of,
)
from openbench.errors import (
    ConfigError,
    NotApplicableError,
    OpenbenchError,
    available,
    check_known,
    did_you_mean,
    not_found,
    pip_install,
)
from openbench.public import TARGET, public
from openbench.storage.yaml_file import parse_yaml

SCIENTIFIC = ("benchmark", "backbone", "training", "method", "tune", "metrics", "seed")
RUNTIME, HYDRA = "runtime", "hydra"
VERSION_BASE = "1.3"
_SEARCHED = "hydra.searchpath"
# Launchers are plug-ins that not everybody needs: launcher → the extra that installs it.
EXTRAS = {"joblib": "joblib", "submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}
_OF_CONFIGS = (HydraException, OmegaConfBaseException, YAMLError, ValueError, AssertionError)
_SCORER_OF_TRAINING = "_scorer_of_training_"  # a key of the method node that configs/scorer/published.yaml sets
_THEN = "then"  # a list of a training's recipe: what `+augment=NAME` puts after the recipe's own augmentation


def _by_data(general: Any, others: Mapping[str, Any], *, _root_: DictConfig) -> Any:
    """The value that `others` has for the data set whose classes are the benchmark's ID classes, else the general one.

    As `${by_data:0.95,{cifar100:0.5}}` in a yaml: what a paper takes on some data and not on others.
    """
    classes = OmegaConf.select(_root_, "benchmark.classes")  # e.g. cifar100/classes
    return others.get(classes.partition("/")[0] if isinstance(classes, str) else "", general)


OmegaConf.register_new_resolver("by_data", _by_data, replace=True)


def compose(
    command: str, overrides: Sequence[str], config_dir: Path | None = None, sweep: Sequence[str] = ()
) -> DictConfig:
    """Return the config of a command as Hydra would hand it to a job, with Hydra's own node.

    Args:
        command: the primary config: run, train, extract or check.
        overrides: as typed on the command line; no sweeps.
        config_dir: a folder of the user's group files, searched after ours.
        sweep: the overrides of the sweep that this is a job of, for messages.

    Raises:
        ConfigError: the overrides or config files do not compose.
    """
    with explained(command, sweep or overrides, config_dir):
        return _composed(command, overrides, config_dir)


def _composed(command: str, overrides: Sequence[str], config_dir: Path | None) -> DictConfig:
    others = [folder.path for folder in config_folders(config_dir)[1:]]
    with initialize_config_dir(config_dir=str(paths.config_dir()), version_base=VERSION_BASE):
        return hydra_compose(command, with_folders(overrides, others), return_hydra_config=True)


def scientific(cfg: DictConfig, choices: Mapping[str, Any], command: str = "run") -> dict[str, Any]:
    """Return the plain, resolved nodes that can change a number.

    Each group node carries its file's name in `_name_`, except for the benchmark, which names itself.

    Args:
        cfg: a composed config.
        choices: group → chosen file, Hydra's `runtime.choices`.
        command: the command's name, for messages.

    Raises:
        ConfigError: no benchmark, a node that is missing, unknown or without value, or a seed that is not whole.
    """
    optional = (OUTLIERS, ATTACK) if command == "run" else (OUTLIERS,)
    check_known((str(key) for key in cfg if key != HYDRA), (*SCIENTIFIC, *optional, RUNTIME), "config")
    if "benchmark" not in cfg:
        raise no_benchmark(command)
    nodes = {key: plain(cfg, key) for key in SCIENTIFIC if key in cfg}
    for key in SCIENTIFIC[:-1]:
        if not isinstance(nodes.get(key), dict):
            raise ConfigError(f"{key} is not chosen, found {nodes.get(key)!r} (python -m openbench list {key})")
        if key != "benchmark" and isinstance(choices.get(key), str):
            nodes[key][NAME] = choices[key].removesuffix(".yaml")
    _augment(nodes["training"], choices.get("augment"))
    if OUTLIERS in cfg:
        nodes[OUTLIERS] = {**plain(cfg, OUTLIERS), NAME: choices.get(f"dataset@{OUTLIERS}")}
    if ATTACK in cfg:
        nodes[ATTACK] = {**plain(cfg, ATTACK), NAME: choices.get(ATTACK)}
    if nodes["method"].get(_SCORER_OF_TRAINING):
        nodes["method"] = published_scorer(nodes["training"])
    check_value(nodes.get("seed"), Seed, "seed")
    return nodes


def runtime(cfg: DictConfig) -> dict[str, Any]:
    """Return the plain, resolved `runtime` node, which must not change a number."""
    node = plain(cfg, RUNTIME) if RUNTIME in cfg else None
    if not isinstance(node, dict):
        raise ConfigError(f"runtime is not chosen, found {node!r} (python -m openbench list runtime)")
    return node


def plain(cfg: DictConfig, key: str) -> Any:
    """Return one node of a config as plain Python values.

    Raises:
        ConfigError: an interpolation that does not resolve, or a `???` without value.
    """
    try:
        node = cfg[key]
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=True) if OmegaConf.is_config(node) else node
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key} has no value: {reason} — set it on the command line or in the yaml") from error


def _augment(training: dict[str, Any], name: str | None) -> None:
    """Append the list `then` of a training's recipe to its `augment`, and note the file that `+augment=NAME` chose."""
    recipe = training.get("recipe")
    if not isinstance(recipe, dict):
        return
    if _THEN in recipe:
        recipe["augment"] = [*(recipe.get("augment") or ()), *recipe.pop(_THEN)]
    if name is None:
        return
    whole = (shipped("augment", name) or {}).get("augment")
    if whole is not None and whole != recipe["augment"]:
        raise ConfigError(
            f"+augment={name} has no effect, as a later argument replaces the list training.recipe.augment — write "
            f"+augment={name} after +benchmark=NAME, and do not set the list"
        )
    training[AUGMENT] = name


def published_scorer(training: Mapping[str, Any]) -> dict[str, Any]:
    """Return the method that a training's paper evaluates it with, as its yaml has it: `+scorer=published`.

    Raises:
        ConfigError: the training names no method of configs/method.
    """
    from openbench.training.base import TrainingMethod

    target: Any = target_of(training, "training", (TrainingMethod,))
    scorer = getattr(target, "scorer", "")
    node = shipped("method", scorer)
    if node is None:
        raise ConfigError(
            f"training: `{TARGET}: {training[TARGET]}` has no `scorer` that is a name in configs/method — choose a "
            "method by name instead of +scorer=published"
        )
    return {**node, **target.scorer_params, NAME: scorer}


def no_benchmark(command: str, config_dir: Path | None = None) -> ConfigError:
    """Return the error for a command line without a benchmark: what there is, and a command that works."""
    names = options("benchmark", config_dir)
    first = "digits" if "digits" in names else (names or ["NAME"])[0]
    return ConfigError(
        f"no benchmark chosen — add one with a plus sign: python -m openbench {command} +benchmark={first} (available: "
        f"{available(names)}; python -m openbench list benchmark)"
    )


@contextmanager
def explained(command: str, overrides: Sequence[str], config_dir: Path | None) -> Iterator[None]:
    """Translate the errors of a block that composes a config: what is wrong, what is allowed, what to type.

    Args:
        command: run, train, extract or check.
        overrides: the `key=value` arguments.
        config_dir: the folder after `--config-dir`.

    Raises:
        ConfigError: an error about configuration; all others are raised as they are.
    """
    try:
        yield
    except OpenbenchError:
        raise
    except _OF_CONFIGS as error:
        raise _explanation(error, command, overrides, config_dir) from error


def _explanation(error: Exception, command: str, overrides: Sequence[str], config_dir: Path | None) -> ConfigError:
    if isinstance(error, OverrideParseException):
        return _grammar(error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_file(error)
    text = _one_line(f"{error} {error.__cause__ or ''}")
    if match := re.match(r"Could not override '([^'@]+)'\. To append to your config", text):
        return _unknown_key(match.group(1), command, overrides, config_dir)
    if match := re.match(r"Could not override '([^']+)'\. No match in the defaults list", text):
        return ConfigError(f"'{match.group(1)}' is added with a plus sign — write +{match.group(1)}=NAME")
    if match := re.search(r"An item is already at '([^']+)'|Multiple values for ([\w/]+)\.", text):
        return ConfigError(f"'{match.group(1) or match.group(2)}' exists already — drop the plus sign, choose it once")
    if match := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", text):
        many = f"'{match.group(1)}' names several values — add -m to run them all (python -m openbench {command} -m …)"
        return ConfigError(many + ", or brackets for one list: key=[a,b]" * ("." in match.group(1).split("=")[0]))
    reason = text or "look for a name that is empty or of the wrong kind"
    return ConfigError(with_package(f"the config does not compose — {reason}"))


def _grammar(error: OverrideParseException) -> ConfigError:
    text = error.override
    if re.fullmatch(r"[\w.-]+", text):
        files = sorted(paths.config_dir().glob(f"*/{text}.yaml"))
        plus = "+" if files and files[0].parent.name == "benchmark" else ""
        hint = f"; did you mean '{plus}{files[0].parent.name}={text}'?" if files else ""
        return ConfigError(f"argument '{text}' is not an override{hint} — write key=value")
    return ConfigError(f"override '{text}' cannot be read — write key=value, and quote it for the shell: 'key=[1,2]'")


def _missing_file(error: MissingConfigException) -> ConfigError:
    group, _, name = str(error.missing_cfg_file).rpartition("/")
    if group == "hydra/launcher" and name in EXTRAS:
        return ConfigError(
            f"the launcher '{name}' is an optional extra that is not installed — {pip_install(EXTRAS[name])}"
        )
    choices = list(error.options or [])
    what = f"{group} '{name}' not found in configs/{group}"
    return ConfigError(not_found(what, name, choices, f"list {group}; your own files: --config-dir DIR"))


def _unknown_key(key: str, command: str, overrides: Sequence[str], config_dir: Path | None) -> ConfigError:
    """The error for a key that the config of a job lacks: the keys that would be allowed, of the first such job."""
    for job in jobs(overrides, config_dir):
        rest = [o.input_line or "" for o in parse(job) if o.key_or_group != key]
        try:
            cfg = _composed(command, rest, config_dir)
        except _OF_CONFIGS as error:  # another argument is wrong too
            return _explanation(error, command, rest, config_dir)
        parent, leaf, allowed = _first_unknown(cfg, key)
        if leaf not in allowed:
            break
    if leaf in allowed:  # the value is a mapping
        return ConfigError(f"{key} lacks a key of the value that it is given — add it with a plus sign: +{key}=VALUE")
    hint = did_you_mean(leaf, allowed)
    if not parent and leaf in (cfg.get("runtime") or {}):
        hint = f"; did you mean 'runtime.{leaf}'?"
    message = f"{parent or 'the config'} has no key '{leaf}'{hint} — allowed: {available(allowed, leaf)}"
    if parent:
        message += f"; a parameter that its yaml leaves out takes a plus sign: +{key}=VALUE"
    which = label(job, swept_keys(overrides, config_dir))
    return ConfigError(message + f" (in the job {which})" * bool(which))


def _first_unknown(cfg: DictConfig, key: str) -> tuple[str, str, list[str]]:
    """Walk down a dotted key: the last node that exists, the first part that does not, and the keys of that node."""
    node, parts = cfg, key.split(".")
    for depth, part in enumerate(parts):
        allowed = [str(k) for k in node if k != HYDRA and not str(k).startswith("_")] if OmegaConf.is_dict(node) else []
        if part not in allowed or depth == len(parts) - 1:
            break
        node = node[part]
    return ".".join(parts[:depth]), part, allowed


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().rstrip(".")


Node = Mapping[str, Any]


@dataclass(frozen=True)
class Composed:
    """A job's config, plain and resolved.

    Args:
        config: the scientific nodes, as `openbench.engine.prepare` takes them.
        runtime: the runtime node.
        overrides: that compose to the config, in one spelling: files are chosen first, then values set.
    """

    config: dict[str, Any]
    runtime: dict[str, Any]
    overrides: tuple[str, ...] = ()


def composed(command: str, overrides: Sequence[str], config_dir: Path | None = None) -> Composed:
    """Return the config of one job.

    Args:
        command: the primary config: run, train, extract or check.
        overrides: as typed on the command line, e.g. `+benchmark=digits`; no sweeps.
        config_dir: a folder of the user's group files, searched after ours.

    Raises:
        ConfigError: anything about the overrides or the config files.
        NotApplicableError: a key that nothing would read.
    """
    cfg = compose(command, overrides, config_dir)
    return nodes(command, cfg, cfg.hydra.runtime.choices, overrides)


def nodes(command: str, cfg: DictConfig, choices: Mapping[str, Any], overrides: Sequence[str]) -> Composed:
    """Return the plain nodes of a config that Hydra has composed.

    Args:
        command: the primary config.
        cfg: composed.
        choices: group → chosen file, Hydra's `runtime.choices`.
        overrides: as typed for this job.
    """
    if lists := [o.input_line for o in parse(overrides) if "." not in o.key_or_group and isinstance(o.value(), list)]:
        raise ConfigError(f"'{lists[0]}' is a list — choose one; -m with commas, without brackets, runs them in turn")
    config = scientific(cfg, choices, command)
    _refuse_unread(command, overrides, config)
    return Composed(config, runtime(cfg), _spelt(overrides, config, str(choices.get("benchmark"))))


def _spelt(overrides: Sequence[str], config: Mapping[str, Node], benchmark: str) -> tuple[str, ...]:
    """Overrides in one spelling: every choice of a file, then the values that were typed; no runtime.

    Outliers, which few trainings read, are chosen only where that was typed.
    """
    chosen = {group: name for group, name in choices_of(config).items() if group != OUTLIER_SET}
    words = [f"+benchmark={benchmark}", *words_of(chosen)]
    for override in parse(overrides):
        key = override.key_or_group
        if key in ("benchmark", *chosen) or re.split("[./]", key)[0] in (RUNTIME, HYDRA):
            continue
        typed = "" if override.is_delete() else f"={word(override.value())}"
        words.append(f"{override.get_key_element()}{typed}")
    return tuple(words)


def _refuse_unread(command: str, overrides: Sequence[str], config: Mapping[str, Node]) -> None:
    """Refuse keys of a training that have no effect on released weights, and outliers that a training does not use.

    `check` reads outliers whatever the weights. A sweep skips the combination as not applicable.
    """
    outliers, recipe = list(_typed_of(overrides, OUTLIERS)), list(_typed_of(overrides, "training"))
    if command != "check" and comes_with_weights(config["backbone"]) and (recipe or outliers):
        raise NotApplicableError(
            f"{' '.join(recipe + outliers)} has no effect, as backbone '{_name(config['backbone'])}' comes with "
            "weights and is not trained — leave it out, or choose another backbone, e.g. backbone=resnet18_cifar "
            "(python -m openbench list backbone)"
        )
    if outliers and not _learns_from_outliers(config["training"]):
        known = [name for name in names("training") if _learns_from_outliers(shipped("training", name) or {})]
        raise NotApplicableError(
            f"{' '.join(outliers)} has no effect, as training '{_name(config['training'])}' does not learn from "
            f"outliers — leave it out, or choose one of {', '.join(known)} (training=NAME)"
        )


def comes_with_weights(backbone: Node) -> bool:
    """Whether the node of a backbone names weights, so that there is nothing to train; False if it does not tell."""
    if "start" in backbone:
        return False
    member = backbone.get("member")
    return bool(backbone.get("weights")) or (isinstance(member, Mapping) and comes_with_weights(member))


def _typed_of(overrides: Sequence[str], node: str) -> Iterator[str]:
    """The overrides below a node, or that put a group there; removing outliers is always allowed."""
    for override in parse(overrides):
        below = override.key_or_group.startswith(f"{node}.") or (override.package or "").split(".")[0] == node
        if below and not (node == OUTLIERS and override.is_delete()):
            yield override.input_line or override.key_or_group


def _name(node: Node) -> str:
    return str(node.get(NAME) or node.get("name"))


def _learns_from_outliers(training: Node) -> bool:
    return bool(getattr(target_of(training, "training"), "uses_outliers", False))


@lru_cache(maxsize=4096)
def outline(
    words: tuple[str, ...], form: tuple[str, ...], config_dir: Path | None = None
) -> tuple[dict[str, str], Mapping[str, Any], Mapping[str, Any]]:
    """Return {group: the file that is chosen}, the node of the benchmark in one of its forms, and that of the backbone.

    Args:
        words: overrides that choose benchmark and backbone.
        form: those of the benchmark's keys.
        config_dir: the user's folder of group files.

    Raises:
        ConfigError: anything about the overrides.
    """
    cfg = _hydra(words, config_dir)
    choices = {group: str(file) for group, file in cfg.hydra.runtime.choices.items() if file is not None}
    if form:
        cfg = OmegaConf.masked_copy(cfg, ["benchmark", "backbone"])
        _set(cfg, form)
    return choices, public(plain(cfg, "benchmark")), public(OmegaConf.to_container(cfg.backbone))


@lru_cache(maxsize=256)
def scientific_nodes(words: tuple[str, ...], config_dir: Path | None = None) -> Mapping[str, Any]:
    """Return the scientific config with public names.

    Raises:
        ConfigError: anything about the overrides.
    """
    cfg = _hydra(words, config_dir)
    return public(scientific(cfg, dict(cfg.hydra.runtime.choices)))


@lru_cache(maxsize=1024)
def method_node(name: str, words: tuple[str, ...], data: str) -> dict[str, Any]:
    """Return the node of a method that openbench ships, as Hydra would compose it.

    Args:
        name: what is typed after `method=`.
        words: overrides of its hyper-parameters.
        data: whose classes are the ID classes.

    Raises:
        ConfigError: a hyper-parameter that the method does not have.
    """
    cfg = OmegaConf.create({"method": {**(shipped("method", name, data) or {}), NAME: name}})
    OmegaConf.set_struct(cfg, True)
    _set(cfg, words)
    return public(OmegaConf.to_container(cfg.method, resolve=True))


@lru_cache(maxsize=256)
def _hydra(words: tuple[str, ...], config_dir: Path | None) -> DictConfig:
    return compose("run", words, config_dir)


def _set(cfg: DictConfig, words: Sequence[str]) -> None:
    """Set values as overrides would."""
    for text in words:
        key, _, value = text.lstrip("+").partition("=")
        try:
            OmegaConf.update(cfg, key, parse_yaml(value, key), force_add=text.startswith("+"))
        except OmegaConfBaseException as error:
            parent, leaf, known = _first_unknown(cfg, key)
            raise ConfigError(f"{text}: {parent} has no key '{leaf}' — allowed: {available(known, leaf)}") from error


def options(group: str, config_dir: Path | None = None) -> list[str]:
    """Return the names that a config group offers, sorted."""
    return sorted({file.stem for folder in config_folders(config_dir) for file in (folder.path / group).glob("*.yaml")})


def parse(overrides: Sequence[str]) -> list[Override]:
    """Return the overrides that can be parsed."""
    return [override for text in overrides if (override := _parsed(text)) is not None]


def with_folders(overrides: Sequence[str], searched: Sequence[Path]) -> list[str]:
    """Return overrides by which Hydra looks into these folders too, after those of a typed `hydra.searchpath`."""
    typed = [override for override in parse(overrides) if override.key_or_group == _SEARCHED]
    if not searched:
        return list(overrides)
    rest = [text for text in overrides if text not in [override.input_line for override in typed]]
    named = [str(place) for override in typed for place in override.value()]  # type: ignore[union-attr]
    places = [*named, *(f"file://{folder.absolute().as_posix()}" for folder in searched)]
    return [f"{_SEARCHED}=[{','.join(map(quoted, places))}]", *rest]


def jobs(overrides: Sequence[str], config_dir: Path | None) -> list[list[str]]:
    """Return the overrides of every job of a sweep, in the order in which Hydra numbers them.

    Args:
        overrides: as typed.
        config_dir: a folder of the user's group files, which `glob` looks into too.
    """
    choices: dict[str, list[str]] = {}
    for override in parse(overrides):
        key = override.get_key_element()
        typed, swept = override.input_line or "", override.is_sweep_override()
        choices[key] = [f"{key}={value}" for value in _values(override, config_dir)] if swept else [typed]
    return [list(job) for job in itertools.product(*choices.values())]


def swept_keys(overrides: Sequence[str], config_dir: Path | None) -> list[str]:
    """Return the keys that have several values in a sweep, as they are typed but for a plus sign."""
    several = [o for o in parse(overrides) if o.is_sweep_override() and len(_values(o, config_dir)) > 1]
    return list(dict.fromkeys(override.get_key_element().lstrip("+") for override in several))


def label(job: Sequence[str], swept: Sequence[str]) -> str:
    """Return how a job differs from the others of its sweep: `method=knn seed=1`."""
    plain = [override.lstrip("+") for override in job]
    return " ".join(override for override in plain if override.split("=", 1)[0] in swept)


def deferred(text: str) -> str:
    """Return an override of a sweep; that of a key of a node is left to the jobs.

    Hydra checks `benchmark.incomplete=allow` against the config without the keys that are swept over, which may have no
    benchmark. A sweep over the single value `choice(allow)` is checked against the config of every job.
    """
    override = _parsed(text)
    if override is None or override.is_sweep_override() or override.type not in (OverrideType.CHANGE, OverrideType.ADD):
        return text
    first, _, rest = override.key_or_group.partition(".")
    if not rest or first in (HYDRA, RUNTIME):
        return text
    waiting = f"{override.get_key_element()}=choice({text.partition('=')[2]})"
    in_jobs = parse([job for [job] in jobs([waiting], None)] if _parsed(waiting) else [])
    # Hydra writes the value again for the job; where that would change it (null, '1'), it stays as typed.
    return waiting if [repr(job.value()) for job in in_jobs] == [repr(override.value())] else text


def without_streams(overrides: Sequence[str], config_dir: Path | None) -> tuple[list[str], list[str]]:
    """Return overrides with the names that `method=glob(…)` means, but for streaming methods, and the names of these.

    A streaming method scores an image by those before it, so it has no place beside methods that score each by itself.

    Args:
        overrides: as typed.
        config_dir: a folder of the user's group files.
    """
    globs = [o for o in parse(overrides) if o.key_or_group == "method" and o.is_sweep_override()]
    globs = [o for o in globs if isinstance(o.value(), Glob)]
    streams = [name for o in globs for name in _values(o, config_dir) if _streams(name, config_dir)]
    words = {o.input_line: ",".join(name for name in _values(o, config_dir) if name not in streams) for o in globs}
    return [f"method={words[text]}" if words.get(text) else text for text in overrides], streams


def _streams(method: str, config_dir: Path | None) -> bool:
    files = [folder.path / "method" / f"{method}.yaml" for folder in config_folders(config_dir)]
    return any(f"\n{STREAM}:" in file.read_text(encoding="utf-8") for file in files if file.is_file())


def sharded(overrides: Sequence[str]) -> list[str]:
    """Return overrides with a job for each of the shards that they ask for.

    Args:
        overrides: as typed; `runtime.shards=16` adds `runtime.shard=range(16)`, unless that is typed too.
    """
    typed = {override.key_or_group: override for override in parse(overrides)}
    shards = typed.get("runtime.shards")
    if shards is None or "runtime.shard" in typed or not isinstance(count := shards.value(), int) or count < 1:
        return list(overrides)
    return [*overrides, f"runtime.shard=range({count})"]


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Override | None:
    try:
        return OverridesParser.create().parse_overrides([text])[0]
    except HydraException:
        return None


def _values(override: Override, config_dir: Path | None) -> list[str]:
    """The values that an override has in a sweep, as they are typed."""
    if not override.is_sweep_override():
        return [str(override.value())]
    if override.is_interval_sweep():
        raise ConfigError(f"{override.input_line} names no values — write them, e.g. {override.key_or_group}=1,2,5")
    # The part of Hydra's ConfigLoader that `glob` asks.
    groups = SimpleNamespace(get_group_options=lambda group, results_filter: options(group, config_dir))
    override.config_loader = groups  # type: ignore[assignment]
    return list(override.sweep_string_iterator())
