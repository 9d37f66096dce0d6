"""Hydra reads its config files through the one YAML reader of openbench, not through OmegaConf's."""

import os
from pathlib import Path

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

from openbench.errors import ConfigError
from openbench.storage.yaml_file import read_yaml

_HEADER = 512  # characters in which Hydra looks for `# @package`


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
            ConfigError: it is refused by `read_yaml`, or holds neither a mapping nor nothing.
        """
        path = Path(self.path, self._normalize_file_name(config_path)).resolve()
        if not path.exists():
            raise ConfigLoadError(f"Config not found : {path}")
        node = read_yaml(path)
        if node is not None and not isinstance(node, dict):
            raise ConfigError(f"'{path}' holds a {type(node).__name__} — a mapping is needed, lines of `key: value`")
        with path.open(encoding="utf-8") as stream:
            header = ConfigSource._get_header_dict(stream.read(_HEADER))
        return ConfigResult(
            provider=self.provider,
            path=f"{self.scheme()}://{self.path}",
            config=OmegaConf.create(node or {}),  # an empty file says nothing
            header=header,
        )


def _spelt(folder: Path, name: str) -> bool:
    """Whether each part of a file's name stands so in its folder."""
    places = Path(name).parts
    return all(part in os.listdir(folder.joinpath(*places[:at])) for at, part in enumerate(places))


def install() -> None:
    """Have Hydra read the files of this process's configs through `FileConfigSource`."""
    Plugins.instance()  # which registers Hydra's own sources, once
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
