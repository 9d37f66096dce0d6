"""Files of a checkpoint folder: written whole or not at all."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from openbench.digest import file_sha256
from openbench.errors import CheckpointError
from openbench.storage.checksum import write_sealed
from openbench.storage.files import write_whole


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, then rename it: readers see all of it or nothing.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    with _refusals(path):
        write_whole(path, content)


def write_state(path: Path, content: bytes) -> None:
    """Write the state of a training under the digest of its content; `storage.checksum.read_sealed` reads it.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    with _refusals(path):
        write_sealed(path, content)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that says what to do."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"checkpoint '{path}' cannot be written — {error.strerror or error} — choose a folder that can be written "
            "and has room: set OPENBENCH_CACHE or runtime.cache"
        ) from error


def write_weights(path: Path, state: Mapping[str, Tensor]) -> str:
    """Write tensors as safetensors and return the file's SHA-256, 64 hex digits."""
    # safetensors accepts neither shared storage nor other strides, and weights here are laid out channels last.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
    write_atomically(path, save(plain))
    return file_sha256(path)
