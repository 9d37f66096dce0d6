"""Escaping of text from records, score files and names, so that no output format interprets anything in it.

Every writer takes the function of its format from here. JSON needs none: `json` escapes by itself.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from html import escape
from urllib.parse import quote

_PLAIN = re.compile("[ -~±–·↑↓]*")  # what nearly all texts are made of
_MARKS = 3  # combining marks that one character may have; more would run into other lines
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are the full-width forms
_LATEX_MATH = {
    "±": "pm", "↑": "uparrow", "↓": "downarrow", "≥": "geq", "≤": "leq", "×": "times", "·": "cdot", "→": "rightarrow",
    "∪": "cup", "†": "dagger", "δ": "delta", "π": "pi", "α": "alpha", "ε": "varepsilon", "λ": "lambda",
    "ρ": "rho", "τ": "tau",
}  # fmt: skip
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{sign: rf"$\{name}$" for sign, name in _LATEX_MATH.items()},
    "–": "--",
    "−": "$-$",
    "…": r"\ldots{}",
}
# What may begin a link, an image, HTML, code, emphasis, a formula or an entity. Brackets alone begin nothing: intervals
# are written in them.
_MARKDOWN = re.compile(r"[\\|<*`~$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|&(?=#|\w)|:(?=//)|(?<=\bwww)\.", re.IGNORECASE)
_LINK = re.compile(rf"{_MARKDOWN.pattern}|[\[\]]", re.IGNORECASE)  # brackets end the text of a link
_BLOCK = re.compile(r"^((?=[#>+=-])|\d+(?=[.)]))")  # a backslash belongs behind it


def one_line(text: str) -> str:
    """Return text on one line, with every character that cannot be printed as its Python escape, e.g. that of ESC.

    Not printable are control characters, line and paragraph separators, signs that turn the direction of writing, lone
    surrogates, and what Unicode has not assigned. So is a combining mark with nothing, or with three marks, before it.
    """
    return text if _PLAIN.fullmatch(text) else _printable(text)


@lru_cache(maxsize=256)  # the reasons of a table are long, and stand in most of its rows
def _printable(text: str) -> str:
    signs, marks = [], _MARKS
    for sign in text:
        marks = marks + 1 if unicodedata.category(sign).startswith("M") else 0
        signs.append(sign if sign.isprintable() and marks <= _MARKS else _escaped(sign))
    return "".join(signs)


def console(text: str) -> str:
    """Return text for a terminal, on one line; white space of any kind becomes a space."""
    return text if _PLAIN.fullmatch(text) else one_line(re.sub(r"\s", " ", text))


def console_lines(text: str) -> str:
    """Return a message for a terminal, line breaks included."""
    return "\n".join(one_line(line.replace("\t", " ")) for line in text.split("\n"))


def markdown(text: str) -> str:
    """Return text within a line of Markdown: in a cell, a heading, or behind a list's dash."""
    return _MARKDOWN.sub(lambda match: f"\\{match.group()}", one_line(re.sub(r"\s+", " ", text)))


def markdown_paragraph(text: str) -> str:
    """Return text as a Markdown paragraph, which it cannot turn into a heading, a list or a quotation."""
    return _BLOCK.sub(r"\1\\", markdown(text).strip())


def markdown_link(text: str, target: str) -> str:
    """Return a link to a file in the page's folder."""
    label = _LINK.sub(lambda match: f"\\{match.group()}", console(text))
    return f"[{label}]({quote(target.encode('utf-8', 'replace'), safe='')})"


def html(text: str) -> str:
    """Return text for a page, between tags or in quotes, on one line."""
    return escape(console(text), quote=True)


def csv_cell(text: str) -> str:
    """Return text for a cell of a CSV: what a spreadsheet would compute begins with an apostrophe; numbers do not."""
    cell = console(text)
    formula = cell.lstrip().startswith(_FORMULA) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell


def csv_row(cells: Iterable[object]) -> list[object]:
    """Return a row of a CSV whose texts are escaped; numbers stay as they are."""
    return [csv_cell(cell) if isinstance(cell, str) else cell for cell in cells]


def latex(text: str) -> str:
    """Return text for LaTeX; a first bracket or star is put in braces, or a line break would take it as its own."""
    escaped = "".join(_LATEX.get(sign, sign) for sign in console(text).strip())
    return f"{{{escaped[0]}}}{escaped[1:]}" if escaped.startswith(("[", "*")) else escaped


def plot(text: str) -> str:
    """Return text for a picture: no formula, and no leading underscore, with which a legend leaves a name out.

    A character that matplotlib's font does not have is written as its Python escape.
    """
    glyphs = _glyphs()
    label = "".join(sign if ord(sign) in glyphs else _escaped(sign) for sign in console(text)).replace("$", r"\$")
    return f" {label}" if label.startswith("_") else label


@lru_cache(maxsize=1)
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties())).get_charmap())


def _escaped(sign: str) -> str:
    # Python prints a combining mark, and letters of every language.
    return sign.encode("ascii", "backslashreplace").decode() if ord(sign) > 127 else repr(sign)[1:-1]
