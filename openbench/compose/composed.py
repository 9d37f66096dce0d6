"""One job as the command line would compose it, for those who call openbench from Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir

from openbench import paths
from openbench.compose import loader
from openbench.compose.config import VERSION_BASE, check_no_clash, runtime, scientific, search_path
from openbench.compose.errors import Typed, explained
from openbench.compose.flags import check_overrides
from openbench.compose.renamed import refuse_moved
from openbench.compose.sweep import parse
from openbench.compose.unread import refuse_unread


@dataclass(frozen=True)
class Composed:
    """A job's config, plain and resolved.

    Args:
        config: the scientific nodes, as `openbench.engine.api` takes them.
        runtime: the runtime node.
    """

    config: dict[str, Any]
    runtime: dict[str, Any]


def composed(command: str, overrides: Sequence[str], config_dir: Path | None = None) -> Composed:
    """Return the config of one job, with the checks and in the words of the command line.

    Args:
        command: the primary config: run, train, extract or check.
        overrides: as typed on the command line, e.g. `+benchmark=digits`; no sweeps.
        config_dir: a folder of the user's group files, searched after ours.

    Raises:
        ConfigError: anything about the overrides or the config files.
        NotApplicableError: a key that nothing would read.
    """
    typed = Typed(command, list(overrides), config_dir)
    check_overrides(parse(typed.overrides))
    refuse_moved(parse(typed.overrides))
    if config_dir is not None:
        check_no_clash(config_dir)
    loader.install()
    with explained(typed):
        with initialize_config_dir(config_dir=str(paths.config_dir()), version_base=VERSION_BASE):
            words = [*search_path(config_dir), *typed.overrides]
            cfg = hydra_compose(command, words, return_hydra_config=True)
        choices = dict(cfg.hydra.runtime.choices)
        del cfg._content["hydra"]  # type: ignore[union-attr]
        config = scientific(cfg, choices, command)
        node = runtime(cfg)
    refuse_unread(command, typed.overrides, config)
    return Composed(config, node)
