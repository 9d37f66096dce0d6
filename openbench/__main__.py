"""The command line: `python -m openbench COMMAND`, and the installed command `openbench`."""

import io
import os
import sys
from collections.abc import Sequence

from openbench.cli.app import carry_out
from openbench.cli.process import flush, report, take_signals
from openbench.progress import messages


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 = done; 1 = a check failed or an internal error; 2 = bad input, one message on stderr; 130 = interrupted;
    143 = terminated.
    """
    # Waiting OpenMP threads spin: where another process wants the core, a small network takes ten times as long. This
    # bounds the spinning, at no cost on an idle machine. It must be set before torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        with messages():
            code = carry_out(sys.argv[1:] if argv is None else argv)
        flush(code)
        return code
    except (Exception, KeyboardInterrupt) as error:
        return report(error)


def script() -> int:
    """Run as the whole process."""
    take_signals()
    if not sys.flags.safe_path:
        sys.path.insert(0, "")  # methods of one's own in the working directory, as `python -m` finds them
    # A name that is not UTF-8 is shown with its bytes in place of an exception.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return main()


if __name__ == "__main__":
    sys.exit(script())
