"""What openbench logs, for tests."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Listed(logging.Handler):
    def __init__(self, then: Callable[[str], object]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._then = then

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._then(record.getMessage())


@contextmanager
def logged(then: Callable[[str], object] = str) -> Iterator[list[str]]:
    """Yield the list of messages that are logged within the block; `then` is called with each."""
    log, handler = logging.getLogger("openbench"), _Listed(then)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        log.setLevel(level)
        log.removeHandler(handler)
