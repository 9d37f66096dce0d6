"""The command that makes a record again, found by comparing what the configs now say with what the record holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from openbench.compose.config import SCIENTIFIC, compose, scientific
from openbench.compose.sweep import options
from openbench.config.overrides import OUTLIERS, changes, choices, command_line, words_of
from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.errors import ConfigError, RecordError
from openbench.public import TARGET, public

_SHOWN = 200  # characters of names in a message

GONE = (
    "no command gives its config any more: it was made from other config files — check out that commit, or give your "
    "config folder as --config-dir"
)


@dataclass(frozen=True)
class Again:
    """What makes a record again.

    Args:
        words: the overrides after `run`.
        config: the scientific config that they compose to: the record's config, but with paths to openbench's classes,
            and with its keys in the order of the config files, which a record does not keep. Sets are read and
            settings are tried in that order.
        foreign: the classes in it that are not openbench's; each is named in one of the user's config files.
    """

    words: tuple[str, ...]
    config: dict[str, Any]
    foreign: tuple[str, ...] = ()


def command(record: ResultRecord, config_dir: Path | None = None) -> str | None:
    """Return the command whose scientific config is that of a record, quoted for the shell.

    Args:
        record: any.
        config_dir: the user's folder of group files that the run was given.

    Returns:
        None where no command gives this config: a file that it chose is gone, or has a value that cannot be overridden.

    Raises:
        RecordError: as for `again`.
    """
    found = again(record, config_dir)
    return None if found is None else command_line("run", found.words, config_dir)


def again(record: ResultRecord, config_dir: Path | None = None) -> Again | None:
    """Return the overrides and the config that make a record again; None as for `command`.

    Nothing that the record names is imported.

    Raises:
        RecordError: it names classes that are not openbench's, and no config file that was chosen names them.
    """
    wanted = record.config
    name = str(record.benchmark.get("name"))
    # A benchmark may end its name in a choice: `adbench_wine` is the config `adbench`.
    fitting = [known for known in options("benchmark", config_dir) if f"{name}_".startswith(f"{known}_")]
    if not fitting:
        return None
    chosen = choices(wanted)
    words = [f"+benchmark={max(fitting, key=len)}", *words_of(chosen)]
    try:
        found = _composed(words, wanted, chosen, config_dir)
        foreign = _foreign(record, found)
        # The benchmark first: what it is given reaches other nodes through interpolations.
        for nodes in (("benchmark",), (key for key in (*SCIENTIFIC, OUTLIERS) if key != "benchmark")):
            typed = [word for key in nodes for word in changes(key, public(found.get(key)), wanted.get(key))]
            if typed:
                words += typed
                found = _composed(words, wanted, chosen, config_dir)
    except (HydraException, OmegaConfBaseException, ConfigError):
        return None
    return Again(tuple(words), found, foreign) if digest(public(found)) == digest(wanted) else None


def _foreign(record: ResultRecord, of_files: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes of a record's config that are not openbench's; one of the user's config files must name each.

    A record may come from anybody, and what it names would be imported from wherever Python finds it.
    """
    found = sorted({target for target in _targets(record.config) if "." in target})
    unknown = sorted(set(found) - set(_targets(of_files)))
    if unknown:
        raise RecordError(
            f"record {record.run_id} names code that is not openbench's: {', '.join(unknown)[:_SHOWN]} — nothing of it "
            "was imported, since no config file here names it — if you trust it, give the folder of group files that "
            "the run was given as --config-dir"
        )
    return tuple(found)


def _targets(node: Any) -> Iterator[str]:
    """Every `_target_` of a config, at any depth."""
    if isinstance(node, Mapping):
        if TARGET in node:
            yield str(node[TARGET])
        for child in node.values():
            yield from _targets(child)
    elif isinstance(node, list | tuple):
        for child in node:
            yield from _targets(child)


def _composed(
    words: list[str], wanted: Mapping[str, Any], chosen: Mapping[str, Any], config_dir: Path | None
) -> dict[str, Any]:
    """What a command line gives now; outliers only where the record's training was shown some."""
    found = scientific(compose("run", words, config_dir), chosen)
    return {key: node for key, node in found.items() if key != OUTLIERS or key in wanted}
