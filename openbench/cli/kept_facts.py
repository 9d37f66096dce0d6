"""What follows from openbench's own files alone and takes seconds to find, kept in the cache."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from openbench import paths
from openbench.digest import bytes_sha256, digest
from openbench.results.leaderboard.index import code_digest, kept_file
from openbench.storage.checksum import DamagedError, read_sealed, write_sealed


def kept(name: str, find: Callable[[], tuple[Any, bool]]) -> Any:
    """Return facts as JSON holds them: those of this state of the code, config files and manifests, or found now.

    Args:
        name: of the facts, as part of a file's name.
        find: returns them, and whether they may be kept.
    """
    file = kept_file(f"{name}-{digest([code_digest(), _lists_digest()], 32)}.facts")
    if file is not None:
        with suppress(DamagedError, FileNotFoundError):
            return json.loads(read_sealed(file))
    found, lasting = find()
    text = json.dumps(found).encode()
    if lasting and file is not None:
        with suppress(OSError):  # a cache that cannot be written
            write_sealed(file, text)
    return json.loads(text)


@cache
def _lists_digest() -> str:
    """Return a digest of the manifests and class lists that come with openbench, by their content as `code_digest`."""
    folder = paths.manifest_dir()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest([(str(path.relative_to(folder)), bytes_sha256(path.read_bytes())) for path in files], 32)
