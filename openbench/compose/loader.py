"""Hydra's loader of configs, which reads every file each time but merges the same files only once in a process."""

import copy
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hydra import version
from hydra._internal import defaults_list as hydras
from hydra._internal import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository, IConfigRepository
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ConfigDefault, GroupDefault, InputDefault, ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.base import Box
from omegaconf.errors import OmegaConfBaseException

from openbench.compose.config_source import FileConfigSource, ReadResult
from openbench.compose.copies import copied

_FILES = 1024  # which a process keeps as configs; we ship about half as many
_MERGED = 64  # sets of files whose config a process keeps
_BEGUN = "hydra/"  # groups of Hydra's own, which come first and are the same for most commands

_PACKAGED = "pkg"  # a scheme

_Key = tuple[Any, ...]

# A file's place and text → what Hydra makes of it. Shared: nobody may change one.
_files: OrderedDict[tuple[str, ...], ConfigResult] = OrderedDict()
# Which file goes where → the file, so that it cannot go and another have its id, and its config in that place.
_placed: OrderedDict[_Key, tuple[ConfigResult | None, ConfigResult]] = OrderedDict()
# Which files go where, in order → the files, for the same reason, and their config: of those that come first, of all.
_first: OrderedDict[_Key, tuple[Sequence[ConfigResult | None], DictConfig]] = OrderedDict()
_merged: OrderedDict[_Key, tuple[Sequence[ConfigResult | None], DictConfig]] = OrderedDict()
# A package and the name of a file → whether it has one: what is installed stays as it is.
_packaged: dict[tuple[str, str], bool] = {}


class _Defaults(list[InputDefault]):
    """The defaults list of a file, of which Hydra takes a deep copy each time: entries of text and lists of text."""

    def __deepcopy__(self, memo: object) -> list[InputDefault]:
        made = [copy.copy(default) for default in self]
        for default in made:
            if isinstance(value := vars(default).get("value"), list):
                vars(default)["value"] = list(value)
        return made


class SharingRepository(ConfigRepository):
    """Hydra's repository, in which the same text of the same file is one config."""

    def __deepcopy__(self, memo: object) -> "SharingRepository":
        """Return one that may look into other folders, which is what Hydra copies it for; it makes a list of them."""
        return copy.copy(self)

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return a file's config, without its defaults list; None if there is no such file.

        Raises:
            ConfigError: as `FileConfigSource.load_config`.
        """
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None:
            return None
        place = (source.scheme(), source.path, config_path)
        # What is no file of a folder, Hydra's own configs, stays what it is.
        text = source.text(config_path) if isinstance(source, FileConfigSource) else ""
        if (*place, text) not in _files:
            made = super().load_config(config_path)
            if made is None:
                return None
            text = made.text if isinstance(made, ReadResult) else ""  # it may have been written in the meantime
            made.defaults_list = _Defaults(made.defaults_list or ())
            _keep(_files, (*place, text), made, _FILES)
        return _files[*place, text]

    def _find_object_source(self, config_path: str, object_type: ObjectType | None) -> ConfigSource | None:
        if object_type != ObjectType.CONFIG:
            return super()._find_object_source(config_path, object_type)
        return next((source for source in self.sources if _has(source, config_path)), None)


def _has(source: ConfigSource, config_path: str) -> bool:
    """Whether a source has a config; a package is asked once."""
    if source.scheme() != _PACKAGED:
        return bool(source.is_config(config_path))
    key = source.path, config_path
    if key not in _packaged:
        _packaged[key] = bool(source.is_config(config_path))
    return _packaged[key]


class _Copies:
    """A repository whose configs may be changed."""

    def __init__(self, repository: IConfigRepository) -> None:
        self._repository = repository

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repository, name)

    def load_config(self, config_path: str) -> ConfigResult | None:
        found = copy.copy(self._repository.load_config(config_path))
        if found is not None:
            found.config = copied(found.config)
        return found


class Loader(ConfigLoaderImpl):
    """Hydra's loader, which copies a config instead of merging the same files again.

    Merging is most of what composing takes. What Hydra's own files merge to, which come first, is kept by itself, and
    so is each file as it is in its place. Files of a folder are read each time, so a changed one counts; what else
    Hydra finds, its own configs, is kept.
    """

    def __init__(self, config_search_path: ConfigSearchPath) -> None:
        super().__init__(config_search_path)
        self.repository = SharingRepository(config_search_path)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        install()  # a worker of a sweep has it from another process, and makes none

    def _compose_config_from_defaults_list(
        self, defaults: Sequence[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        files = [repo.load_config(str(default.config_path)) for default in defaults]
        places = ((each.config_path, each.package, each.primary) for each in defaults)
        key = tuple((id(file), *place) for file, place in zip(files, places, strict=True))
        if key not in _merged:
            first = list(itertools.takewhile(lambda each: str(each.config_path).startswith(_BEGUN), defaults))
            begun = self._begun(key[: len(first)], first, repo)
            rest = defaults if begun is None else [begun, *defaults[len(first) :]]
            made = super()._compose_config_from_defaults_list(list(rest), repo)
            _keep(_merged, key, (files, made), _MERGED)
        _merged.move_to_end(key)
        return copied(_merged[key][1])

    def _begun(self, key: _Key, first: Sequence[ResultDefault], repo: IConfigRepository) -> "_Begun | None":
        """What the files merge to that come first; None where they do not, which Hydra then says."""
        if key not in _first:
            made = OmegaConf.create()
            try:
                with flag_override(made, "no_deepcopy_set_nodes", True):
                    for default in first:
                        made.merge_with(self._load_single_config(default, repo).config)
            except OmegaConfBaseException:
                return None
            _keep(_first, key, ([repo.load_config(str(default.config_path)) for default in first], made), _MERGED)
        return _Begun(config_path=_BEGUN, config=copied(_first[key][1]))

    def _load_single_config(self, default: ResultDefault, repo: IConfigRepository) -> ConfigResult:
        if isinstance(default, _Begun):
            return ConfigResult(provider="", path="", config=default.config, header={})
        file = repo.load_config(str(default.config_path))
        key = (id(file), default.config_path, default.package, default.primary)
        if key not in _placed:
            made = super()._load_single_config(default, _Copies(repo))  # type: ignore[arg-type]
            _keep(_placed, key, (file, made), _FILES)
        found = copy.copy(_placed[key][1])
        found.config = copied(found.config)
        return found


@dataclass
class _Begun(ResultDefault):
    """In place of the files that come first: what they merge to."""

    config: DictConfig = field(default_factory=OmegaConf.create)


def _keep(kept: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    kept[key] = value
    while len(kept) > most:
        kept.popitem(last=False)


_every_choice = hydras._create_interpolation_map


def _choices_where_read(overrides: hydras.Overrides, defaults_list: list[InputDefault], self_added: bool) -> DictConfig:
    """The choices that a file's defaults may refer to, as `${backbone}`.

    Hydra makes them for every file, a fifth of all that composing takes; few files have such a reference.
    """
    if any(default.is_interpolation() for default in defaults_list):
        return _every_choice(overrides, defaults_list, self_added)
    return OmegaConf.create()


def _refers(self: ConfigDefault) -> bool:
    """Whether a default has a reference; Hydra makes a value of a config of each to ask it."""
    return "${" in self.get_config_path()


def _group_refers(self: GroupDefault) -> bool:
    return isinstance(self.value, str) and "${" in self.value


def _re_parent(self: Box) -> None:
    """Have all that is in a config know what it is in, as Hydra does after each file, for each part of a config.

    What knows it already remembers flags that hold still: they are forgotten where a flag or a parent is set.
    """
    content = self.__dict__["_content"]
    for child in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        if child is not None and child.__dict__["_parent"] is not self:
            child._set_parent(self)
        if isinstance(child, Box):
            child._re_parent()


def _no_mode(self: hydra.Hydra, config_name: str | None, overrides: list[str]) -> None:
    """What `hydra.mode` says. It cannot be set: `-m` makes a sweep. Hydra composes the whole config once to look."""


_OURS: tuple[tuple[Any, str, Any], ...] = (
    (hydras, "_create_interpolation_map", _choices_where_read),
    (ConfigDefault, "is_interpolation", _refers),
    (GroupDefault, "is_interpolation", _group_refers),
    (Box, "_re_parent", _re_parent),
    (version, "_get_version", lru_cache(version._get_version)),
    (hydra, "ConfigLoaderImpl", Loader),
    (hydra.Hydra, "get_mode", _no_mode),
)
THEIRS = tuple((owner, name, getattr(owner, name)) for owner, name, _ in _OURS)  # to compare with


def install() -> None:
    """Have Hydra read and merge the files of this process's configs as above, and make only what it reads."""
    Plugins.instance()  # which registers Hydra's own sources, once
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
    for owner, name, ours in _OURS:
        setattr(owner, name, ours)
