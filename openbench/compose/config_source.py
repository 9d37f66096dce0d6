"""Hydra reads its config files through the one YAML reader of openbench, not through OmegaConf's."""

import os
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.core_plugins import file_config_source
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf

from openbench.errors import ConfigError
from openbench.storage.yaml_file import parse_yaml, read_text

_HEADER = 512  # characters in which Hydra looks for `# @package`


@dataclass
class ReadResult(ConfigResult):
    """A config with the text that it was made of."""

    text: str = ""


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
        path, text = self._file(config_path), self.text(config_path)
        return ReadResult(
            provider=self.provider,
            path=f"{self.scheme()}://{self.path}",
            config=_config(text, path),
            header=_header(text[:_HEADER], path),
            text=text,
        )

    def text(self, config_path: str) -> str:
        """Return what a file holds.

        Raises:
            ConfigLoadError: no such file.
            ConfigError: it is asked for by the name of its file, or is refused by `read_text`.
        """
        if config_path.endswith((".yaml", ".yml")):  # Hydra would take it, and the records say another name
            raise ConfigError(f"'{config_path}' — a name is needed, not a file — write {Path(config_path).stem}")
        path = self._file(config_path)
        if not path.exists():
            raise ConfigLoadError(f"Config not found : {path}")
        return read_text(path)

    def _file(self, config_path: str) -> Path:
        return Path(self.path, self._normalize_file_name(config_path)).resolve()


def _config(text: str, path: Path) -> DictConfig:
    node = parse_yaml(text, f"'{path}'")
    if node is not None and not isinstance(node, dict):
        raise ConfigError(f"'{path}' holds a {type(node).__name__} — a mapping is needed, lines of `key: value`")
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
