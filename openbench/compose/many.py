"""Configs of thousands of runs: Hydra composes once for all runs with the same choices."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from openbench.compose.config import compose, plain, scientific
from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.errors import ConfigError
from openbench.public import public
from openbench.storage.yaml_file import parse_yaml


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
    before = deepcopy(cfg.get("benchmark"))
    with open_dict(cfg):
        _set(cfg, form)
        node = public(plain(cfg, "benchmark"))
        cfg.benchmark = before
    return choices, node, public(OmegaConf.to_container(cfg.backbone))


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
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        try:
            OmegaConf.update(cfg, key, parse_yaml(value, key), force_add=word.startswith("+"))
        except OmegaConfBaseException as error:
            raise ConfigError(f"{word}: {str(error).splitlines()[0]}") from error
