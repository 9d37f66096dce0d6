"""The yaml of a study that is made of a sweep."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PLAIN = re.compile(r"[A-Za-z_+~][\w+~@=./ ×·()-]*")
_SPECIAL = {"null", "true", "false", "yes", "no", "on", "off"}


@dataclass(frozen=True)
class Draft:
    """What a study of a sweep says.

    Args:
        title: as printed.
        command: what makes its tables, for the first comment.
        run: overrides of all its runs.
        seeds: what cells are means over.
        rows: {name: overrides}.
        groups: {name of a benchmark: overrides} where there are several; columns then stand below each.
        columns: {name: SET.METRIC}.
    """

    title: str
    command: str
    run: Sequence[str]
    seeds: Sequence[str]
    rows: Mapping[str, Sequence[str]]
    groups: Mapping[str, Sequence[str]]
    columns: Mapping[str, str]

    def text(self) -> str:
        """Return the yaml."""
        lines = [f"# {self.title}", f"#   {self.command}", f"title: {_scalar(self.title)}"]
        lines += [f"run: {_list(self.run)}"] * bool(self.run)
        lines += [f"seeds: [{', '.join(self.seeds)}]", "rows:"]
        lines += [f"  {_scalar(name)}: {_list(words)}" for name, words in self.rows.items()]
        lines.append("columns:")
        for name, words in self.groups.items():
            columns = ", ".join(f"{_scalar(title)}: {_scalar(value)}" for title, value in self.columns.items())
            lines.append(f"  {_scalar(name)}: {{run: {_list(words)}, columns: {{{columns}}}}}")
        if not self.groups:
            lines += [f"  {_scalar(name)}: {_scalar(value)}" for name, value in self.columns.items()]
        first = next(iter(self.rows))
        lines.append(f"# test: {_scalar(first)}   # compares every row with this one, in pairs")
        return "\n".join(lines) + "\n"


def _list(words: Sequence[str]) -> str:
    return _scalar(words[0]) if len(words) == 1 else f"[{', '.join(map(_scalar, words))}]"


def _scalar(text: str) -> str:
    """A text as yaml reads it back."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _SPECIAL and text == text.strip()
    return text if plain else json.dumps(text, ensure_ascii=False)
