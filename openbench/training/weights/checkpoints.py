"""Checkpoints found by what they were trained on, never by a path: `<root>/<digest of the job>/`."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openbench.digest import file_sha256
from openbench.errors import CheckpointError
from openbench.say import Say, silent
from openbench.storage.locks import only_one
from openbench.training.job import TrainingJob
from openbench.training.loop.checkpoint_files import read_finished
from openbench.training.loop.distributed import ALONE, Team
from openbench.training.loop.session import EXTRAS, SUFFIX


@dataclass(frozen=True)
class Checkpoint:
    """A finished training.

    Args:
        weights: the network's weights at the epoch kept, which is the one that is evaluated.
        sha256: of that file, 64 hex digits.
        extras: weights of what the method added to the network (a head that its score needs), or None.
        info: best epoch, validation accuracies, seconds, device, versions; see finished.json.
    """

    weights: Path
    sha256: str
    extras: Path | None
    info: dict[str, Any]


def folder_of(job: TrainingJob, root: Path) -> Path:
    """Return the folder of a job's checkpoint, whether or not it exists."""
    return root / job.digest


def find_checkpoint(job: TrainingJob, root: Path) -> Checkpoint | None:
    """Return the finished checkpoint of a job, or None.

    Raises:
        CheckpointError: it is there, and a file is missing or not the one that was written.
    """
    folder = folder_of(job, root)
    info = read_finished(folder)
    if info is None:
        return None
    for name, sha256 in info["files"].items():
        if not (folder / name).is_file() or file_sha256(folder / name) != sha256:
            raise CheckpointError(
                f"checkpoint '{folder / name}' is missing or not the file that training wrote — SHA-256 {sha256} "
                "expected — delete its folder, or train again with runtime.train=force"
            )
    extras = folder / f"best{EXTRAS}"
    name = f"best{SUFFIX}"
    return Checkpoint(folder / name, info["files"][name], extras if extras.name in info["files"] else None, info)


def _lock_of(job: TrainingJob, root: Path) -> Path:
    # Beside the folder, not in it: `anew` removes the folder while the lock is held.
    return root / f"{job.digest}.lock"


def obtain(
    job: TrainingJob,
    root: Path,
    train: Callable[[Path], object],
    *,
    anew: bool = False,
    team: Team = ALONE,
    say: Say = silent,
) -> Checkpoint:
    """Return a job's checkpoint, after training it if it is missing; of several processes one trains, the others wait.

    Args:
        job: what is wanted.
        root: the folder of all checkpoints.
        train: trains the job in the folder given.
        anew: whether a finished or unfinished training is thrown away first.
        team: the processes that train together; the first one looks, locks and writes for all.
        say: receives a line if another process is waited for.

    Raises:
        CheckpointError: the folder cannot be written, or a finished checkpoint was altered.
    """
    if not team.leads:
        return _followed(job, root, train, team)
    with _only_trainer(job, root, say):
        if anew:
            shutil.rmtree(folder_of(job, root), ignore_errors=True)
        found = find_checkpoint(job, root)
        if team.told(found) is not None:
            return found  # type: ignore[return-value]
        train(folder_of(job, root))
        trained = team.told(find_checkpoint(job, root))
    if trained is None:
        raise CheckpointError(f"training {job} left no finished checkpoint in '{folder_of(job, root)}'")
    return trained


def _followed(job: TrainingJob, root: Path, train: Callable[[Path], object], team: Team) -> Checkpoint:
    """`obtain` for a process that does not lead: it trains if the first process says so."""
    found: Checkpoint | None = team.told(None)
    if found is None:
        train(folder_of(job, root))
        found = team.told(None)
    if found is None:
        raise CheckpointError(f"training {job} left no finished checkpoint in '{folder_of(job, root)}'")
    return found


@contextmanager
def _only_trainer(job: TrainingJob, root: Path, say: Say) -> Iterator[None]:
    with ExitStack() as held:
        try:
            root.mkdir(parents=True, exist_ok=True)
            held.enter_context(only_one(_lock_of(job, root), f"checkpoint of {job}: another process trains it", say))
        except OSError as error:
            raise CheckpointError(
                f"checkpoints: cannot write in '{root}' — {error.strerror or error} — choose a folder that can be "
                "written: set OPENBENCH_CACHE or runtime.cache"
            ) from error
        yield
