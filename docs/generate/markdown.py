"""Markdown as MyST reads it: tables, and docstrings in Google's style with their formulas."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from generate.formula import sentence

_SECTIONS = ("Args", "Raises", "Returns", "Yields", "Reference", "References", "Example", "Examples", "Attributes")
_HEAD = re.compile(rf"^({'|'.join(_SECTIONS)}):[ \t]*(.*)$")
_ENTRY = re.compile(r"^    (\*{0,2}\w[\w ,]*):\s+(.*)$")


@dataclass
class Docstring:
    """A docstring in its parts.

    Args:
        summary: its first sentence.
        paragraphs: what follows, up to the first section; code is fenced.
        sections: {name: text}, e.g. `Reference`.
        arguments: {argument: its description}.
        raises: {exception: when}.
    """

    summary: str
    paragraphs: list[str] = field(default_factory=list)
    sections: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    raises: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Docstring":
        """Take a cleaned docstring apart."""
        blocks: dict[str, list[str]] = {"": []}
        current = ""
        for line in text.splitlines():
            if head := _HEAD.match(line):
                current = head.group(1)
                blocks.setdefault(current, []).append(head.group(2))
            elif line and not line.startswith(" ") and current and not blocks[current][-1]:
                current = ""  # a paragraph after the sections
                blocks[""] += ["", line]
            else:
                blocks[current].append(line)
        summary, *rest = _paragraphs(blocks.pop("")) or [""]
        found = cls(summary, rest)
        found.arguments = _entries(blocks.pop("Args", []))
        found.raises = _entries(blocks.pop("Raises", []))
        found.sections = {name: "\n\n".join(_paragraphs(lines)) for name, lines in blocks.items()}
        return found

    @property
    def reference(self) -> str:
        """The papers, as the docstring cites them."""
        return self.sections.get("Reference", "") or self.sections.get("References", "")

    def body(self) -> str:
        """The paragraphs with their formulas marked."""
        return "\n\n".join(text if text.startswith("```") else sentence(text) for text in self.paragraphs)


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a column of which every cell is empty is left out."""
    given = [list(row) for row in rows]
    kept = [i for i in range(len(headers)) if any(row[i] for row in given)]
    if not kept:
        return ""
    lines = [[headers[i] for i in kept], ["---"] * len(kept), *([cell(row[i]) for i in kept] for row in given)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """A text that stays within one cell."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def page(title: str, *parts: str) -> str:
    """A page from its title and its parts; empty parts are left out."""
    return "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts if part.strip())]) + "\n"


def code(text: str, language: str = "sh") -> str:
    """A fenced block."""
    return f"```{language}\n{text.strip(chr(10))}\n```"


def arxiv_linked(text: str) -> str:
    """References with their arXiv and OpenReview ids as links."""
    text = re.sub(r"arXiv[: ](\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)
    return re.sub(r"OpenReview (\w{10})\b", r"[OpenReview \1](https://openreview.net/forum?id=\1)", text)


def hidden_contents(names: Iterable[str], glob: bool = False) -> str:
    """The pages below this one, for the menu on the left."""
    lines = ["```{toctree}", ":hidden:", ":maxdepth: 1", *([":glob:"] if glob else []), "", *names, "```"]
    return "\n".join(lines)


def _paragraphs(lines: Sequence[str]) -> list[str]:
    """Paragraphs of one line each; what is indented and stands apart is code."""
    found = list[str]()
    for block in re.split(r"\n[ \t]*\n", "\n".join(lines).strip("\n")):
        indented = all(line.startswith("    ") for line in block.splitlines())
        if found and indented and found[-1].endswith(":") and block.strip():
            found.append(code("\n".join(line[4:] for line in block.splitlines()), "text"))
        elif block.strip():
            found.append(" ".join(block.split()))
    return found


def _entries(lines: Sequence[str]) -> dict[str, str]:
    entries, name = dict[str, str](), ""
    for line in lines:
        if entry := _ENTRY.match(line):
            name = entry.group(1)
            entries[name] = entry.group(2)
        elif line.strip() and name:
            entries[name] += " " + line.strip()
    return entries
