"""Whether an evaluation called from Python tells how far it is: in notebooks and terminals, never into a pipe."""

import sys

from openbench.progress import in_notebook
from openbench.say import Say, silent


def shown(progress: bool) -> bool:
    """Return whether progress is shown: it was asked for, and there is somebody to see it.

    Args:
        progress: what the caller asked for; this is `runtime.progress` of what the call runs.
    """
    return progress and (in_notebook() or sys.stderr.isatty())


def say_of(progress: bool) -> Say:
    """Return what tells the user what is being done, a line each; silent where progress is not shown.

    Args:
        progress: what the caller asked for.
    """
    if not shown(progress):
        return silent
    return _tell_page if in_notebook() else _tell_terminal


def _tell_page(text: str) -> None:
    """A line in the output of the cell; a notebook shows what stderr says as if it were an error."""
    print(text, flush=True)


def _tell_terminal(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
