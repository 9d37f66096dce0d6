"""Overrides in the grammar of Hydra: values as typed, and the command line of a config."""

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NAME = "_name_"  # key of a node that holds the name of its file, and is not part of it
AUGMENT = "_augment_"  # key of a training that holds the name typed after `+augment=`; its recipe holds what that means
STREAM = "_stream_"  # key of a streaming method's config: the streams that it scores
ATTACK = "attack"  # key of the node of an attack on test images, added by `+attack=NAME`
OUTLIERS = "outliers"  # key of the node with the outliers that a training is shown
GROUPS = ("backbone", "training", "method", "tune", "metrics")
OUTLIER_SET = f"dataset@{OUTLIERS}"
_ADDED = ("augment", ATTACK)  # no default chooses a file of these groups
_UNTYPED = {"metrics": "default"}  # what is chosen where nothing is typed, and need not be
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_NUMBER = re.compile(r"[0-9][0-9_]*(e[0-9_]+)?|0[box][0-9a-f_]+", re.IGNORECASE)
_WORDS_OF_YAML = {"null", "true", "false", "yes", "no", "on", "off", "nan", "inf"}


def quoted(text: str) -> str:
    """Return a value in Hydra's quotes, so that commas, braces and spaces in a path are only characters."""
    # In Hydra's grammar backslashes are escaped only before a quote; elsewhere they stand for themselves.
    return "'" + re.sub(r"(\\*)(\'|$)", lambda m: m[1] * 2 + m[2].replace("'", "\\'"), text) + "'"


def is_name(text: str) -> bool:
    """Whether letters, digits and underscores are read as text, and not as a number, a truth value or nothing."""
    return text.lower() not in _WORDS_OF_YAML and not _NUMBER.fullmatch(text)


def word(value: Any) -> str:
    """Return a value as it is typed after `KEY=`: numbers, text, None, lists and mappings of them."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{word(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(word, value)) + "]"
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML else quoted(text)


def choices(config: Mapping[str, Any]) -> dict[str, str | None]:
    """Return {group: the file that was chosen} of a scientific config, None where none was; as Hydra names groups.

    Args:
        config: nodes with the names of their files.
    """
    chosen = {group: config.get(group, {}).get(NAME) for group in GROUPS}
    return {
        **chosen,
        OUTLIER_SET: config.get(OUTLIERS, {}).get(NAME),
        "augment": config.get("training", {}).get(AUGMENT),
        ATTACK: config.get(ATTACK, {}).get(NAME),
    }


def words_of(chosen: Mapping[str, str | None]) -> list[str]:
    """Return the overrides that choose files, e.g. `["backbone=vit_b_16", "+augment=pixmix"]`.

    Args:
        chosen: as `choices` returns it, or a part of it.
    """
    typed = {group: name for group, name in chosen.items() if name and name != _UNTYPED.get(group)}
    return [f"{'+' * (group in _ADDED)}{group}={name}" for group, name in typed.items()]


def command_line(name: str, arguments: Iterable[str], config_dir: Path | None = None) -> str:
    """Return a command line of openbench, quoted for the shell.

    Args:
        name: of the sub-command.
        arguments: what follows it.
        config_dir: the user's folder of group files, if there is one.
    """
    folder = [] if config_dir is None else ["--config-dir", str(config_dir)]
    return shlex.join(["python", "-m", "openbench", name, *arguments, *folder])
