"""Hydra reads its config files through the one YAML reader of openbench, not through OmegaConf's."""

import copy
import os
from functools import lru_cache
from pathlib import Path

from hydra._internal import defaults_list as hydras
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.default_element import InputDefault
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

from openbench.errors import ConfigError
from openbench.storage.plain_yaml import parse_yaml
from openbench.storage.yaml_file import read_text

_HEADER = 512  # characters in which Hydra looks for `# @package`
_MOST = 1024  # files that a process keeps as configs; we ship about half as many


class FileConfigSource(file_config_source.FileConfigSource):
    """Config files in folders, each read whole and checked before Hydra makes a config of it.

    It has the name of Hydra's own: a process of a launcher takes over this one and then registers Hydra's, which is
    refused beside a source of another name.
    """

    def is_config(self, config_path: str) -> bool:
        """Whether there is a config of this name, spelt as its file is: records hold what was typed.

        macOS and Windows find `knn.yaml` under the name `KNN.yaml` too.
        """
        return bool(super().is_config(config_path)) and _spelt(Path(self.path), self._normalize_file_name(config_path))

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the config of a file.

        Raises:
            ConfigLoadError: no such file.
            ConfigError: it is asked for by the name of its file, is refused by `read_yaml`, holds neither a mapping nor
                nothing, or begins with a comment that says in another form than `# @package PLACE` where the config
                goes.
        """
        if config_path.endswith((".yaml", ".yml")):  # Hydra would take it, and the records say another name
            raise ConfigError(f"'{config_path}' — a name is needed, not a file — write {Path(config_path).stem}")
        path = Path(self.path, self._normalize_file_name(config_path)).resolve()
        if not path.exists():
            raise ConfigLoadError(f"Config not found : {path}")
        text = read_text(path)
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://{self.path}",
            config=copy.deepcopy(_config(text, f"'{path}'")),
            header=_header(text[:_HEADER], path),
        )


@lru_cache(_MOST)
def _config(text: str, where: str) -> DictConfig:
    """The config of a file's text, to be copied again and again: OmegaConf makes one in three times as long."""
    node = parse_yaml(text, where)
    if node is not None and not isinstance(node, dict):
        raise ConfigError(f"{where} holds a {type(node).__name__} — a mapping is needed, lines of `key: value`")
    return OmegaConf.create(node or {})  # an empty file says nothing


def _header(text: str, path: Path) -> dict[str, str | None]:
    try:
        return dict(ConfigSource._get_header_dict(text))
    except ValueError as error:
        raise ConfigError(f"'{path}': {error} — write # @package PLACE, or leave the @ out of the comment") from error


def _spelt(folder: Path, name: str) -> bool:
    """Whether each part of a file's name stands so in its folder."""
    places = Path(name).parts
    return all(part in os.listdir(folder.joinpath(*places[:at])) for at, part in enumerate(places))


_every_choice = hydras._create_interpolation_map


def _choices_where_read(overrides: hydras.Overrides, defaults_list: list[InputDefault], self_added: bool) -> DictConfig:
    """The choices that a file's defaults may refer to, as `${backbone}`.

    Hydra makes them for every file, a fifth of all that composing takes; few files have such a reference.
    """
    if any(default.is_interpolation() for default in defaults_list):
        return _every_choice(overrides, defaults_list, self_added)
    return OmegaConf.create()


def install() -> None:
    """Have Hydra read the files of this process's configs through `FileConfigSource`, and make only what it reads."""
    Plugins.instance()  # which registers Hydra's own sources, once
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
    hydras._create_interpolation_map = _choices_where_read
