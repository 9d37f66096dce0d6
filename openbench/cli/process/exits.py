"""The exit codes of every command."""

OK = 0
FAILED = 1  # a check failed, or an internal error with its traceback
BAD_INPUT = 2  # arguments, configs, data or files; one message on stderr
ALARM = 3  # of `monitor`: the stream has changed; all else went well
INTERRUPTED = 130  # Ctrl-C, as shells count it
TERMINATED = 143  # SIGTERM: `kill`, a batch system, or a machine that shuts down


class Terminated(KeyboardInterrupt):
    """SIGTERM; code that stops for Ctrl-C stops for it too."""


def code_of(stop: KeyboardInterrupt) -> int:
    """Return the exit code that an interrupt ends in."""
    return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
