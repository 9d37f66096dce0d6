"""Locks between processes, which the system frees when their holder ends."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

logger = logging.getLogger(__name__)


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Hold a lock within the block; say so before waiting for another process that holds it.

    Args:
        path: the lock's file, which is not deleted.
        what: what the other process computes, for the log.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info(f"{what}, waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
