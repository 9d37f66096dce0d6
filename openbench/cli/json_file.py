"""Writing what `--json FILE` asks for."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openbench.errors import ConfigError, OpenbenchError
from openbench.storage.files import output
from openbench.storage.plain_json import dumps, readable


def write_json(values: Any, path: Path) -> None:
    """Write values as strict JSON, whole or not at all, and say so on stderr; infinite ones become the text `inf`.

    Raises:
        OpenbenchError: the file cannot be written.
    """
    try:
        with output(path) as stream:
            stream.write(dumps(readable(values)))
    except OSError as error:
        raise OpenbenchError(f"--json {path} cannot be written — {error.strerror} — choose another file") from error
    print(f"written {path}", file=sys.stderr)


def check_json(path: Path | None, inputs: Sequence[Path]) -> None:
    """Refuse a `--json FILE` that is one of the files that are read, by whatever name or link.

    Raises:
        ConfigError: it is.
    """
    for given in inputs:
        if path is not None and path.exists() and given.exists() and path.samefile(given):
            raise ConfigError(f"--json {path} would overwrite '{given}', which is read — choose another file")
