"""Output of commands: tables, JSON files, lines on runs, and the list of files that were left out."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openbench.cli.process import BAD_INPUT, OK, writing
from openbench.core.record import ResultRecord
from openbench.errors import ConfigError, OpenbenchError
from openbench.results.escape import console
from openbench.results.tables.render import Table, rendered
from openbench.results.tables.views import GROUPS
from openbench.storage.files import output
from openbench.storage.plain_json import dumps, readable

PICTURES = ("png", "svg", "pdf")
_SHOWN = 20  # errors that are listed one by one


def headline(record: ResultRecord, label: str = "") -> str:
    """Return one line for a record: what was run, near and far AUROC in percent.

    Args:
        record: the run.
        label: how it differs from other runs of its benchmark and method, e.g. `seed=1`.
    """
    name = " ".join(part for part in (record.benchmark["name"], record.method["name"], label) if part)
    return ", ".join([name, *(f"{group} AUROC {100 * value:.2f}" for group, value in group_auroc(record).items())])


def group_auroc(record: ResultRecord) -> dict[str, float]:
    """Return {group: AUROC} of a record, for near and far, if it has them."""
    values = {group: record.metrics.get(group, {}).get("auroc") for group in GROUPS}
    return {group: value for group, value in values.items() if isinstance(value, float | int)}


def print_tables(tables: Sequence[Table], form: str = "console") -> None:
    """Print tables one below the other in one of `render`'s formats."""
    print("\n".join(rendered(tables, form)), end="")


def note(text: str, form: str = "console") -> None:
    """Print lines for people: on stdout, but on stderr where programs read the tables.

    Args:
        text: of one line or more.
        form: of the tables.
    """
    print(text, file=sys.stderr if form in ("csv", "json", "latex") else sys.stdout, flush=True)


def write_json(values: Any, path: Path) -> None:
    """Write values as strict JSON, whole or not at all, and say so on stderr; infinite ones become the text `inf`.

    Raises:
        OpenbenchError: the file cannot be written.
    """
    with writing(path, "--json"), output(path) as stream:
        stream.write(dumps(readable(values)))
    print(f"written {path}", file=sys.stderr)


def picture_format(path: Path | None, option: str = "--plot") -> str:
    """Return the format of a picture by the name of its file, empty for None.

    Raises:
        ConfigError: the name ends in none of PICTURES.
    """
    suffix = path.suffix.removeprefix(".").lower() if path else ""
    if path and suffix not in PICTURES:
        raise ConfigError(f"{option} '{path}' — allowed: a name that ends in .{', .'.join(PICTURES)}")
    return suffix


class LeftOut(list[OpenbenchError]):
    """An error for each file that was left out."""

    @property
    def code(self) -> int:
        """The exit code: 2 if there are any."""
        return BAD_INPUT if self else OK


@contextmanager
def left_out() -> Iterator[LeftOut]:
    """Collect errors of files that are left out, and list them at the end, even if the block raises an error."""
    errors = LeftOut()
    try:
        yield errors
    finally:
        say_left_out(errors)


def say_left_out(unreadable: Sequence[OpenbenchError]) -> int:
    """List on stderr the files that were left out, each with its reason; the exit code is 2 if there are any."""
    for error in unreadable[:_SHOWN]:
        print(console(f"error: {error}"), file=sys.stderr)
    if len(unreadable) > _SHOWN:
        print(f"… and {len(unreadable) - _SHOWN:,} more such errors", file=sys.stderr)
    if unreadable:
        print(f"{len(unreadable):,} files were left out" if unreadable[1:] else "1 file was left out", file=sys.stderr)
    return BAD_INPUT if unreadable else OK
