"""The command that reproduces a record."""

from pathlib import Path
from typing import Any

from openbench.compose.config import HYDRA, RUNTIME, compose, scientific
from openbench.compose.sweep import parse
from openbench.config.overrides import OUTLIERS, choices, command_line
from openbench.core.record import ResultRecord
from openbench.digest import digest
from openbench.errors import ConfigError, RecordError
from openbench.public import public, targets
from openbench.results.records.settings import given_of

_SHOWN = 200  # characters of an override in a message


def command(record: ResultRecord, config_dir: Path | None = None) -> str:
    """Return the command by which a record was made, quoted for the shell; empty if it has none.

    Args:
        record: any.
        config_dir: the user's folder of group files that the run was given.
    """
    return "" if _problem(record) else command_line("run", record.overrides, config_dir)


def again(record: ResultRecord, config_dir: Path | None = None) -> dict[str, Any]:
    """Return the config of a record as its overrides compose it now.

    Its keys are in the order of the config files, in which sets are read and settings are tried. Nothing that only the
    record names is imported.

    Raises:
        RecordError: the record has no overrides, they name code, or they compose to another config.
    """
    if problem := _problem(record):
        raise RecordError(f"record {record.run_id} {problem}")
    try:
        nodes = scientific(compose("run", record.overrides, config_dir), choices(record.config))
    except ConfigError:
        nodes = {}
    nodes = {key: node for key, node in nodes.items() if key != OUTLIERS or key in record.config}
    if digest(public(nodes)) != digest(record.config):
        raise RecordError(
            f"record {record.run_id}: no command gives its config any more: it was made from other config files — "
            "check out that commit, or give your config folder as --config-dir"
        )
    return nodes


def _problem(record: ResultRecord) -> str:
    """Why there is no command: a record may come from anybody, so its overrides may not name code or its place."""
    if given_of(record):
        return "has given scores: nobody here ran the code that made them, so that no command makes them again"
    if not record.overrides:
        return (
            "does not say which overrides made it: an earlier version of openbench wrote it, or its network or method "
            "was an object in Python"
        )
    for override in parse(record.overrides):
        key = override.key_or_group
        named = targets({key.rpartition(".")[2]: override.value()})
        if key.startswith((HYDRA, RUNTIME)) or not all(map(str.isidentifier, named)):
            return (
                f"names code that is not openbench's and was not imported: {str(override.input_line)[:_SHOWN]} — if "
                "you trust it, name it in a group file of your own (--config-dir) and run that"
            )
    return ""
