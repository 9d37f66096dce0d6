"""The command line that makes something again: which files its config chose, and how that is typed."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from openbench.config.overrides import AUGMENT, NAME, OUTLIERS

GROUPS = ("backbone", "training", "method", "tune", "metrics")
OUTLIER_SET = f"dataset@{OUTLIERS}"
_ADDED = "augment"  # no default chooses a file of this group
_UNTYPED = {"metrics": "default"}  # what is chosen where nothing is typed, and need not be


def choices(config: Mapping[str, Any]) -> dict[str, str | None]:
    """Return {group: the file that was chosen} of a scientific config, None where none was; as Hydra names groups.

    Args:
        config: nodes with the names of their files.
    """
    found = {group: config.get(group, {}).get(NAME) for group in GROUPS}
    return {
        **found,
        OUTLIER_SET: config.get(OUTLIERS, {}).get(NAME),
        _ADDED: config.get("training", {}).get(AUGMENT),
    }


def words_of(chosen: Mapping[str, str | None]) -> list[str]:
    """Return the overrides that choose files, e.g. `["backbone=vit_b_16", "+augment=pixmix"]`.

    Args:
        chosen: as `choices` returns it, or a part of it.
    """
    typed = {group: name for group, name in chosen.items() if name and name != _UNTYPED.get(group)}
    return [f"{'+' * (group == _ADDED)}{group}={name}" for group, name in typed.items()]


def command_line(name: str, arguments: Iterable[str], config_dir: Path | None = None) -> str:
    """Return a command line of openbench, quoted for the shell.

    Args:
        name: of the sub-command.
        arguments: what follows it.
        config_dir: the user's folder of group files, if there is one.
    """
    folder = [] if config_dir is None else ["--config-dir", str(config_dir)]
    return shlex.join(["python", "-m", "openbench", name, *arguments, *folder])
