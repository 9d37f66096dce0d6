"""Readable JSON files that state the SHA-256 of their own content, so that a changed byte is noticed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openbench.digest import bytes_sha256
from openbench.storage.sealed import DamagedError

KEY = "content_sha256"


def stated(content: Mapping[str, Any]) -> bytes:
    """Return the text of a file that holds `content` and, as its last key, the digest of everything before it.

    Args:
        content: what JSON can hold.
    """
    return _text({**content, KEY: bytes_sha256(_text(content))})


def read_stated(path: Path) -> dict[str, Any]:
    """Return the content of a file that `stated` made; an older file without a digest is taken as it is.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: it cannot be read, is not a JSON object, or has changed since it was written.
    """
    try:
        whole = path.read_bytes()
        content = json.loads(whole)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise DamagedError(f"'{path}' cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise DamagedError(f"'{path}' does not hold a JSON object")
    # The key's name may be damaged too; one changed byte cannot damage both of its halves.
    halves = KEY.split("_")
    if not any(name.startswith(halves[0]) or name.endswith(halves[1]) for name in content):
        return content
    content.pop(KEY, None)
    if whole != stated(content):
        raise DamagedError(f"'{path}' has changed since it was written")
    return content


def _text(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
