"""How a long job tells what it does: it is handed a function that takes a line of text."""

from collections.abc import Callable

Say = Callable[[str], None]


def silent(text: str) -> None:
    """Tell nobody."""
