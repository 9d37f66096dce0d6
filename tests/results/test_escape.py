"""What comes from others is written into five formats and read back by other programs: nothing of it may act."""

import csv
import io
import re
import sys
import unicodedata
from collections import Counter
from functools import cache
from html.parser import HTMLParser

import pytest
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt

from openbench.results import escape
from openbench.results.tables.render import FORMATS, Column, Link, Table, render, to_html

ATTACKS = (
    "<script>alert(1)</script>",
    "<!-- x",
    "![](http://evil.example/x.png)",
    "[x](javascript:alert(1))",
    "[x][y]",
    "[x]: http://evil.example",
    "<http://evil.example>",
    "https://evil.example",
    "www.evil.example",
    "&lt;img&gt; &#60;",
    "a | b | c",
    "`code` ```",
    "~~~",
    "# heading",
    "- item",
    "1. item",
    "> quoted",
    "===",
    "    four spaces",
    "\\",
    "\\|",
    "\\\\|",
    "**bold** _it_ $x$ ~~gone~~",
    "\x1b[31mred\x1b]0;title\x07",
    "a\nb\r\nc\td\x85e\u2028f\u2029g\x0bh\x0ci",
    "\u202egnp.exe\u2066\u200f\u200b\ufeff",
    "e" + "\u0301" * 200,
    "\u0301 leading",
    "\U000e0041tag",
    "=cmd|' /C calc'!A0",
    "+1+cmd",
    "-2+3",
    "@SUM(A1)",
    "\t=1+1",
    "\uff1d1+1",
    "\r=1",
    '"quoted", cells',
    r"\input{/etc/passwd}",
    "^^5cinput{x}",
    "$x$ $$",
    "[2pt]",
    "*{3pt}",
    "  [2pt]",
    "\x00",
)
TEXTS = st.one_of(
    st.sampled_from(ATTACKS),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.text("[]()!<>|`\\*_~#-+=@$^&{}%:/.\n\r\t wx1", max_size=20),
    st.lists(st.sampled_from(ATTACKS), max_size=3).map("".join),
)
CATEGORIES = ("Cc", "Cf", "Zl", "Zp", "Zs", "Mn", "Mc", "Me")
HARMLESS = {"text", "softbreak", "text_special", "em_open", "em_close", "strong_open", "strong_close"}


@cache
def every_sign() -> list[str]:
    """All characters that show nothing by themselves, and some that are not assigned or private."""
    found = [sign for sign in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(sign) in CATEGORIES]
    return found + [chr(n) for n in (0x378, 0xE000, 0xFFFE, 0xFFFF, 0xF0000, 0x10FFFF)]


def table_of(texts: list[str]) -> Table:
    """A table in which every place for text has one of four."""
    a, b, c, d = texts
    columns = (Column(a), Column("n", "count"), Column(b), Column("x", "percent"))
    return Table(c, columns, ((a, 1, b, 0.5), (c, -2, d, None), (d, None, a, "unable")), d, (a, b))


def shows(sign: str) -> bool:
    return sign == "\n" or (sign.isprintable() and unicodedata.category(sign)[0] != "C")


@pytest.mark.parametrize(
    "write", [escape.console, escape.markdown, escape.html, escape.csv_cell, escape.latex, escape.plot]
)
def test_no_control_or_format_character_of_unicode_is_written(write):
    wrong = [sign for sign in every_sign() if not all(map(shows, write(f"a{sign}b"))) or "\n" in write(f"a{sign}b")]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\ud800", "a\\ud800"),
        ("ViM ∪ α–β 90.12 ± 0.30 日本語 émile ↑", "ViM ∪ α–β 90.12 ± 0.30 日本語 émile ↑"),
        ("n\u0303o", "n\u0303o"),  # combining marks stay where they belong to a character and are few
        ("\u0303o", "\\u0303o"),
        ("e" + "\u0301" * 5, "e" + "\u0301" * 3 + "\\u0301" * 2),
    ],
)
def test_letters_of_any_script_stay_and_what_cannot_be_seen_is_its_escape(text, shown):
    assert escape.console(text) == shown


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "csv"])
@given(st.lists(TEXTS, min_size=4, max_size=4))
def test_what_is_printed_can_be_seen(form, texts):
    assert all(map(shows, render(table_of(texts), form)))


@given(st.lists(TEXTS, min_size=4, max_size=4))
def test_csv_has_the_same_cells_in_every_row_and_no_formula(texts):
    rows = list(csv.reader(io.StringIO(render(table_of(texts), "csv")), strict=True))
    assert [len(row) for row in rows] == [4] * 4
    for cell in (cell for row in rows for cell in row):
        assert all(map(shows, cell))
        assert cell.lstrip()[:1] not in tuple("=+-@\uff1d\uff0b\uff0d\uff20") or float(cell) <= 0 or cell[0] == "+"
    assert [row[1] for row in rows] == ["n", "1", "-2", ""]


@pytest.mark.parametrize(("text", "cell"), [("-0.5", "-0.5"), ("+1e-3", "+1e-3"), ("-x", "'-x"), ("k=5", "k=5")])
def test_numbers_stay_numbers_in_a_csv(text, cell):
    assert escape.csv_cell(text) == cell


@given(st.lists(TEXTS, min_size=4, max_size=4))
def test_markdown_has_no_html_link_image_or_code_and_the_same_cells_in_every_row(texts):
    tokens = MarkdownIt("gfm-like").parse(render(table_of(texts), "markdown"))
    inline = [child.type for token in tokens for child in token.children or ()]
    assert set(inline) <= HARMLESS, set(inline) - HARMLESS
    kinds = [token.type for token in tokens]
    assert set(kinds) <= {
        *(f"{kind}_{end}" for kind in ("heading", "paragraph", "table", "thead", "tbody") for end in ("open", "close")),
        *(f"{kind}_{end}" for kind in ("tr", "th", "td") for end in ("open", "close")),
        "inline",
    }
    assert (kinds.count("table_open"), kinds.count("tr_open")) == (1, 4)
    assert (kinds.count("th_open"), kinds.count("td_open")) == (4, 12)
    assert kinds.count("heading_open") == 1
    assert kinds.count("paragraph_open") == len([text for text in (texts[3], *texts[:2]) if text.strip()])


@given(st.lists(TEXTS, min_size=4, max_size=4))
def test_html_has_the_tags_of_a_table_only_and_shows_the_text(texts):
    tags, shown = Counter(), []
    page = HTMLParser(convert_charrefs=True)
    page.handle_starttag = lambda tag, attrs: tags.update([tag])
    page.handle_comment = page.handle_decl = page.handle_pi = lambda data: tags.update(["other"])
    page.handle_data = shown.append
    page.feed(to_html(table_of(texts), notes=[texts[0]], warnings=[texts[3]]))
    page.close()
    # Title, note and warning; four columns and three rows; the footnotes and the line of conventions.
    expected = {"div": 1, "table": 1, "thead": 1, "tbody": 1, "strong": 1, "th": 4, "td": 12, "tr": 4}
    below = sum(map(bool, (texts[0], texts[1], texts[3])))
    assert tags == Counter({**expected, "p": 3 + below, "small": below})
    assert escape.console(texts[0]) in "".join(shown)


@given(TEXTS, TEXTS)
def test_an_intended_link_stays_one_whatever_its_text(text, target):
    shown = MarkdownIt("commonmark").parseInline(f"x {escape.markdown_link(text, target)} y")[0].children or []
    assert [token.type for token in shown if token.type not in HARMLESS] == ["link_open", "link_close"]
    assert not re.search(r"[:/\\]", next(str(token.attrs["href"]) for token in shown if token.type == "link_open"))


def test_the_link_of_a_table_is_one_in_markdown_and_its_text_elsewhere():
    table = Table("t", (Column("name"),), ((Link("digits", "digits.md"),),))
    assert "| [digits](digits.md) |" in render(table, "markdown")
    assert ["digits.md" in render(table, form) for form in ("console", "csv", "latex")] == [False] * 3


COMMANDS = (
    r"\\(?:textbackslash\{\}|textasciitilde\{\}|textasciicircum\{\}|textless\{\}|textgreater\{\}|ldots\{\}|[&%$#_{}])"
)
MATHS = (
    r"\$(?:-|\\(?:pm|uparrow|downarrow|geq|leq|times|delta|pi|alpha|varepsilon|lambda|rho|tau|cdot|rightarrow|cup"
    r"|dagger))\$"
)


@given(TEXTS)
def test_latex_has_no_command_but_those_that_print_a_character(text):
    rest = re.sub(r"^\{[\[*]\}", "", escape.latex(text))
    rest = re.sub(MATHS, "", re.sub(COMMANDS, "", rest))
    assert not set("\\{}$%#&_^~") & set(rest)


@given(st.lists(TEXTS, min_size=4, max_size=4))
def test_no_row_of_latex_begins_with_what_the_line_break_takes_for_its_length(texts):
    lines = render(table_of(texts), "latex").splitlines()
    begin = lines.index(r"\midrule") + 1
    assert [line[:1] for line in lines[begin : begin + 3] if line.lstrip()[:1] in ("[", "*")] == []
    assert [line.endswith(r" \\") for line in lines[begin : begin + 3]] == [True] * 3


@given(TEXTS)
def test_a_picture_has_no_formula_and_leaves_no_name_out(text):
    from matplotlib.cbook import is_math_text

    shown = escape.plot(text)
    assert not is_math_text(shown)
    assert not shown.startswith("_")
