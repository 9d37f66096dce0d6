"""Writing what `--json FILE` asks for."""

import sys
from pathlib import Path
from typing import Any

from openbench.errors import OpenbenchError
from openbench.results.plain import dumps
from openbench.storage.whole import output


def write_json(values: Any, path: Path) -> None:
    """Write values as strict JSON, whole or not at all, and say so on stderr.

    Raises:
        OpenbenchError: the file cannot be written.
    """
    try:
        with output(path) as stream:
            stream.write(dumps(values))
    except OSError as error:
        raise OpenbenchError(f"--json {path} cannot be written — {error.strerror} — choose another file") from error
    print(f"written {path}", file=sys.stderr)
