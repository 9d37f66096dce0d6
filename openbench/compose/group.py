"""Configs of a sweep's jobs that differ in the method: composed once, then the method's file is put in."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra._internal.config_repository import IConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from openbench.compose.copies import copied
from openbench.compose.loader import Loader

GROUP = "method"
_MOST = 16  # templates: in a sweep over seeds too, each seed has its own


class GroupLoader(Loader):
    """Hydra's loader, which composes jobs that differ in `method=` only once; configs are those that Hydra composes.

    A job takes Hydra's way where that might not hold: a method's file that has a defaults list or goes to another node,
    overrides of `method.…`, or a benchmark or other file that says something about the method too.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._templates: OrderedDict[tuple[str, ...], DictConfig | None] = OrderedDict()
        self._repositories: dict[tuple[str, ...], IConfigRepository] = {}

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: it makes templates of its own."""
        return {**self.__dict__, "_templates": OrderedDict(), "_repositories": {}}

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: Sequence[str]) -> DictConfig:
        """Return the config of a job of a sweep.

        Args:
            master_config: of the sweep.
            sweep_overrides: the job's.

        Raises:
            HydraException, OmegaConfBaseException: as Hydra's own loader.
        """
        given = list(sweep_overrides)
        places = [place for place, text in enumerate(given) if text.partition("=")[0] == GROUP]
        if len(places) == 1:
            made = self._put_in(master_config, given, places[0])
            if made is not None:
                return made
        return super().load_sweep_config(master_config, given)

    def _put_in(self, master_config: DictConfig, given: list[str], place: int) -> DictConfig | None:
        """The config made from the template of its group; None if it may not be the one that Hydra composes."""
        try:
            parsed = OverridesParser.create().parse_overrides(given)
            if not _plain(parsed, place):
                return None
            name = str(parsed[place].value())
            template = self._template(master_config, given, place)
            found = None if template is None else self._file(master_config, parsed, name)
        except (HydraException, OmegaConfBaseException):
            return None  # Hydra's own way ends in the error that users know
        if template is None or found is None:
            return None
        made = copied(template)
        with open_dict(made):
            made[GROUP] = found.config
        own = [override for override in parsed if not override.is_hydra_override()]
        hydra = made.hydra
        with open_dict(hydra):
            hydra.overrides.task = [override.input_line for override in own]
            hydra.runtime.choices[GROUP] = name
            how = hydra.job.config.override_dirname
            hydra.job.override_dirname = get_overrides_dirname(
                overrides=own, kv_sep=how.kv_sep, item_sep=how.item_sep, exclude_keys=how.exclude_keys
            )
        OmegaConf.copy_cache(from_config=master_config, to_config=made)
        return made

    def _template(self, master_config: DictConfig, given: list[str], place: int) -> DictConfig | None:
        """The config of a job without its method; None if something else says what the method is."""
        key = (*_typed(master_config), *given[:place], "", *given[place + 1 :])
        if key not in self._templates:
            while len(self._templates) >= _MOST:
                self._templates.popitem(last=False)
            try:
                rest = [*given[:place], f"~{GROUP}", *given[place + 1 :]]
                made = super().load_sweep_config(master_config, rest)
            except (HydraException, OmegaConfBaseException):
                made = None
            self._templates[key] = None if made is None or GROUP in made else made
        return self._templates[key]

    def _file(self, master_config: DictConfig, parsed: list[Override], name: str) -> ConfigResult | None:
        """The method's file; None if it is missing, or is more than the values of its node."""
        texts = _typed(master_config)
        texts += [str(override.input_line) for override in parsed if override.is_hydra_override()]
        if (key := tuple(texts)) not in self._repositories:
            _, made = self._parse_overrides_and_create_caching_repo(master_config.hydra.job.config_name, texts)
            self._repositories[key] = made
        found = self._repositories[key].load_config(f"{GROUP}/{name}")
        plain = found is not None and not found.defaults_list and found.header["package"] in (None, GROUP)
        return found if plain else None


def _typed(master_config: DictConfig) -> list[str]:
    """The overrides of `hydra.…` that a sweep was given."""
    found: list[str] = OmegaConf.to_container(master_config.hydra.overrides.hydra)  # type: ignore[assignment]
    return list(found)


def _plain(parsed: Sequence[Override], place: int) -> bool:
    """Whether a job's overrides say nothing about the method but its name."""
    chosen = parsed[place]
    others = [override for i, override in enumerate(parsed) if i != place]
    return (
        chosen.type == OverrideType.CHANGE
        and chosen.package is None
        and isinstance(chosen.value(), str)
        and not any(other.key_or_group.split(".")[0].split("@")[0] == GROUP for other in others)
    )


@contextmanager
def composing_groups() -> Iterator[None]:
    """Have the sweeper that Hydra makes within the block, and its launcher, compose through a `GroupLoader`."""
    make = Plugins.instantiate_sweeper

    def making(self: Plugins, *, hydra_context: HydraContext, **named: Any) -> Sweeper:
        loader = GroupLoader(hydra_context.config_loader.config_search_path)  # type: ignore[attr-defined]
        return make(self, hydra_context=replace(hydra_context, config_loader=loader), **named)

    Plugins.instantiate_sweeper = making  # type: ignore[method-assign]
    try:
        yield
    finally:
        Plugins.instantiate_sweeper = make  # type: ignore[method-assign]
