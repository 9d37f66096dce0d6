"""The one way to read a YAML file."""

from pathlib import Path
from typing import Any

from openbench.errors import ConfigError
from openbench.storage.plain_yaml import parse_yaml
from openbench.storage.regular import read_regular

_MOST_BYTES = 2**20


def read_yaml(path: Path) -> Any:
    """Return the plain values of a YAML file; None for an empty one.

    Raises:
        ConfigError: it cannot be read, is not UTF-8, or is refused by `parse_yaml`.
    """
    return parse_yaml(read_text(path), f"'{path}'")


def read_text(path: Path) -> str:
    """Return the text of a YAML file.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the bytes are not UTF-8"
        raise ConfigError(f"'{path}' cannot be read — {reason} — correct the file") from error
