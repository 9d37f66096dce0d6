"""Hydra configs as plain values: composing them, and separating what is scientific from how it is carried out."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from openbench import paths
from openbench.compose import loader
from openbench.compose.augmented import augmented
from openbench.compose.foreign import check_file
from openbench.compose.interpolations import RUNTIME, limited
from openbench.compose.published import SCORER_OF_TRAINING, published_scorer
from openbench.config.constraints import Seed, check_value
from openbench.config.overrides import NAME, OUTLIERS, quoted
from openbench.config.shipped import by_data
from openbench.errors import ConfigError, check_known

SCIENTIFIC = ("benchmark", "backbone", "training", "method", "tune", "metrics", "seed")
VERSION_BASE = "1.3"


def _by_data(general: Any, others: Mapping[str, Any], *, _root_: DictConfig) -> Any:
    """The value that `others` has for the data set whose classes are the benchmark's ID classes, else the general one.

    As `${by_data:0.95,{cifar100:0.5}}` in a yaml: what a paper takes on some data and not on others.
    """
    classes = OmegaConf.select(_root_, "benchmark.classes")  # e.g. cifar100/classes
    return by_data(general, others, classes.partition("/")[0] if isinstance(classes, str) else "")


OmegaConf.register_new_resolver("by_data", _by_data, replace=True)


def compose(command: str, overrides: Sequence[str], config_dir: Path | None = None) -> DictConfig:
    """Return the config of a command as Hydra would hand it to a job.

    Args:
        command: the primary config: run, train, extract or check.
        overrides: as typed on the command line.
        config_dir: a folder of the user's group files, searched after ours.

    Raises:
        HydraException, OmegaConfBaseException: whatever Hydra has to say; `explained` puts it into words.
        ConfigError: a config file that is not plain, valid YAML.
    """
    loader.install()
    with initialize_config_dir(config_dir=str(paths.config_dir()), version_base=VERSION_BASE):
        return hydra_compose(command, [*search_path(config_dir), *overrides])


def search_path(config_dir: Path | None) -> list[str]:
    """Return the override by which Hydra looks into a user's folder too; none without a folder."""
    return [] if config_dir is None else [f"hydra.searchpath=[{as_searched(config_dir)}]"]


def as_searched(folder: Path) -> str:
    """Return a folder as Hydra's search path takes it: its name after `file://`, with nothing encoded."""
    return quoted(f"file://{folder.absolute().as_posix()}")


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
    known = (*SCIENTIFIC, OUTLIERS, RUNTIME)
    check_known(map(str, cfg), known, "config")
    if "benchmark" not in cfg:
        raise no_benchmark(command)
    nodes = {key: plain(cfg, key) for key in SCIENTIFIC if key in cfg}
    for key in SCIENTIFIC[:-1]:
        if not isinstance(nodes.get(key), dict):
            raise ConfigError(f"{key} is not chosen — found {nodes.get(key)!r} (python -m openbench list {key})")
        if key != "benchmark" and isinstance(choices.get(key), str):
            nodes[key][NAME] = choices[key]
    augmented(nodes["training"], choices.get("augment"))
    if OUTLIERS in cfg:
        nodes[OUTLIERS] = {**plain(cfg, OUTLIERS), NAME: choices.get(f"dataset@{OUTLIERS}")}
    if nodes["method"].get(SCORER_OF_TRAINING):
        nodes["method"] = published_scorer(nodes["training"])
    check_value(nodes.get("seed"), Seed, "seed")
    return nodes


def runtime(cfg: DictConfig) -> dict[str, Any]:
    """Return the plain, resolved `runtime` node: what must not change a number."""
    node = plain(cfg, RUNTIME) if RUNTIME in cfg else None
    if not isinstance(node, dict):
        raise ConfigError(f"runtime is not chosen — found {node!r} (python -m openbench list runtime)")
    return node


def plain(cfg: DictConfig, key: str) -> Any:
    """Return one node of a config as plain Python values.

    Raises:
        ConfigError: an interpolation that does not resolve, reads the environment or does not end, or a `???` that
            nobody filled in.
    """
    try:
        with limited(key):
            node = cfg[key]
            if not OmegaConf.is_config(node):
                return node
            return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{key} has no value: {reason} — set it on the command line or in the yaml") from error


def no_benchmark(command: str, config_dir: Path | None = None) -> ConfigError:
    """Return the error for a command line without a benchmark: what there is, and a command that works."""
    names = options("benchmark", config_dir)
    first = "digits" if "digits" in names else (names or ["NAME"])[0]
    return ConfigError(
        f"no benchmark chosen — available: {', '.join(names) or 'none'} — add one with a plus sign: "
        f"python -m openbench {command} +benchmark={first}"
    )


def options(group: str, config_dir: Path | None = None) -> list[str]:
    """Return the names that a config group offers, sorted."""
    folders = [paths.config_dir() / group, *([] if config_dir is None else [config_dir / group])]
    return sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})


def check_no_clash(config_dir: Path) -> None:
    """Refuse a user's folder whose files ours would hide: Hydra takes the first it finds and says nothing.

    Raises:
        ConfigError: the folder does not exist, a file in it has the name of a shipped one, or sets up Hydra itself.
    """
    if not config_dir.is_dir():
        raise ConfigError(f"--config-dir '{config_dir}' is not a folder — give one that holds e.g. method/mine.yaml")
    ours = paths.config_dir()
    for file in _config_files(config_dir):
        relative = file.relative_to(config_dir)
        check_file(file, relative)
        if (ours / relative).exists():
            raise ConfigError(
                f"'{file}' has the name of a config that openbench ships ({relative}), which would hide it — "
                "rename your file"
            )


def _config_files(config_dir: Path) -> Iterator[Path]:
    """Every YAML file below a folder that may be a group's, sorted, linked folders included, each folder once."""
    seen: set[str] = set()
    for folder, below, files in os.walk(config_dir, followlinks=True):
        # No group has a name that begins with a dot; Hydra's own notes on a run lie in such a folder.
        groups = [name for name in below if not name.startswith(".")]
        below[:] = sorted(name for name in groups if os.path.realpath(os.path.join(folder, name)) not in seen)
        seen |= {os.path.realpath(os.path.join(folder, name)) for name in below}
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".yaml"))
