"""Files of a checkpoint folder: written whole or not at all."""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from openbench.digest import file_sha256
from openbench.errors import CheckpointError


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, then rename it: readers see all of it or nothing.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"checkpoint '{path}' cannot be written — {error.strerror or error} — give a folder that can be written "
            "and has room: set OPENBENCH_CACHE or runtime.cache"
        ) from error


def write_weights(path: Path, state: Mapping[str, Tensor]) -> str:
    """Write tensors as safetensors and return the file's SHA-256, 64 hex digits."""
    # safetensors takes neither shared storage nor other strides, and weights here are laid out channels last.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    write_atomically(path, save(plain))
    return file_sha256(path)
