"""The files of a checkpoint folder: weights, the job at its start, the outcome at its end."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from openbench import __version__
from openbench.checkout import made_now
from openbench.digest import file_sha256
from openbench.errors import CheckpointError
from openbench.storage.checksum import DamagedError, read_stated, stated, write_sealed
from openbench.storage.files import write_whole
from openbench.storage.plain_json import readable
from openbench.training.job import TrainingJob
from openbench.training.loop.progress import EpochRow

JOB, FINISHED = "job.json", "finished.json"


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


@dataclass(frozen=True)
class TrainingResult:
    """How a training went.

    Args:
        curve: one row per epoch.
        best_epoch: the epoch kept, counted from 1.
        files: file name in the folder → SHA-256: weights of the kept and the last epoch.
        resumed_after: epochs that an earlier, interrupted process had finished.
        seconds: wall time of all epochs.
    """

    curve: tuple[EpochRow, ...]
    best_epoch: int
    files: dict[str, str]
    resumed_after: int
    seconds: float


def write_job(folder: Path, job: TrainingJob) -> None:
    """Write `job.json`: what is trained, readable, with the digest that names the folder.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint folder '{folder}' cannot be made — {error.strerror or error} — choose another place: set "
            "OPENBENCH_CACHE or runtime.cache"
        ) from error
    content = {
        "digest": job.digest,
        "backbone": job.backbone.name,
        "benchmark": job.benchmark,
        "images": {"id_train": len(job.id_train), "id_val": len(job.id_val)},
        **job.identity(),
    }
    write_atomically(folder / JOB, stated(readable(content)))


def write_finished(folder: Path, job: TrainingJob, result: TrainingResult, device: torch.device) -> None:
    """Write `finished.json`, the marker that every file is there; it must come last."""
    best = result.curve[result.best_epoch - 1]
    content = {
        "digest": job.digest,
        "files": result.files,
        "selection": job.method.selection,
        "best_epoch": result.best_epoch,
        "best_val_accuracy": best.val_accuracy,
        "last_val_accuracy": result.curve[-1].val_accuracy,
        "epochs": len(result.curve),
        "seconds": result.seconds,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "openbench": __version__,
        "torch": torch.__version__,
        "made": made_now(),
    }
    write_atomically(folder / FINISHED, stated(readable(content)))


def read_finished(folder: Path) -> dict[str, Any] | None:
    """Return the content of `finished.json`, or None if the training has not ended.

    Raises:
        CheckpointError: the file, or `job.json` beside it, is there but is not what was written.
    """
    path = folder / FINISHED
    try:
        content = read_stated(path)
        with suppress(FileNotFoundError):  # no code needs it; people read it
            read_stated(folder / JOB)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        raise CheckpointError(
            f"{error} — the file that training wrote is expected — delete the folder '{folder}', or train again with "
            "runtime.train=force"
        ) from error
    if not isinstance(content.get("files"), dict):
        raise CheckpointError(f"'{path}' names no files — it was altered — delete the folder and train again")
    return content
