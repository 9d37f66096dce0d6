import csv
import io
import re

import pytest

from openbench.results.tables.render import (
    FORMATS,
    Column,
    Estimate,
    Table,
    cell_text,
    render,
    to_console,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    with_best,
)

PERCENT = Column("AUROC", "percent")


@pytest.mark.parametrize(
    ("cell", "column", "text"),
    [
        (0.90125, PERCENT, "90.12"),
        (0.90125, Column("AUROC", "percent", 1), "90.1"),
        (None, PERCENT, "–"),
        ("unable", PERCENT, "unable"),
        (Estimate(0.9, 0.855, 0.95), PERCENT, "90.00 [85.50, 95.00]"),
        (Estimate(0.9, 0.85, 0.95, 0.0125), PERCENT, "90.00 ± 1.25"),
        (Estimate(0.9), PERCENT, "90.00"),
        (12345, Column("n", "count"), "12345"),
        (2.5, Column("n", "count"), "2.5"),
        (-0.00012346, Column("threshold", "number"), "-0.0001235"),
        (Estimate(1.7712, std=0.15638), Column("size", "number"), "1.771 ± 0.156"),
        (Estimate(-0.5, 0.25, 12.3456), Column("size", "number"), "-0.5 [0.2, 12.3]"),
        (Estimate(1.5e-7, std=2.34567e-8), Column("size", "number"), "1.5e-07 ± 2.346e-08"),
    ],
)
def test_a_cell_is_written_as_its_column_says(cell, column, text):
    assert cell_text(cell, column) == text


def toy(**changes) -> Table:
    columns = (Column("method"), PERCENT, Column("n", "count"))
    rows = (("knn_a & b", Estimate(0.123456789, 0.1, 0.2), 3), ("odd|name", "unable", None))  # brackets are no markup
    return Table(
        **{"title": "a title", "columns": columns, "rows": rows, "header": "δ = 5 %", "notes": ("a note",)} | changes
    )


def test_console_shows_title_cells_header_and_notes_in_that_order():
    lines = [line.strip() for line in to_console(toy()).splitlines() if line.strip()]
    assert lines[0] == "a title"
    assert re.split(r"\s{2,}", lines[3]) == ["knn_a & b", "12.35 [10.00, 20.00]", "3"]
    assert re.split(r"\s{2,}", lines[4]) == ["odd|name", "unable", "–"]
    assert lines[5:] == ["δ = 5 %", "a note"]


def test_csv_keeps_full_precision_and_gives_an_interval_columns_of_its_own():
    rows = list(csv.reader(io.StringIO(to_csv(toy()))))
    assert rows == [
        ["method", "AUROC", "AUROC low", "AUROC high", "n"],
        ["knn_a & b", "0.123456789", "0.1", "0.2", "3"],
        ["odd|name", "unable", "", "", ""],
    ]


def test_markdown_has_one_cell_per_column_whatever_the_cells_hold():
    text = to_markdown(toy())
    body = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in body] == [4, 4, 4, 4]
    assert body[1] == "| --- | ---: | ---: |"
    assert body[3] == r"| odd\|name | unable | – |"
    assert text.startswith("### a title\n\n")
    assert text.endswith("δ = 5 %\n\na note\n")


def scored(*values: float | None) -> Table:
    rows = tuple((f"m{at}", value, value) for at, value in enumerate(values))
    return with_best(Table("t", (Column("method"), Column("AUROC ↑", "percent"), Column("FPR ↓", "percent")), rows))


def test_the_best_and_the_second_best_are_marked_in_every_format_that_can():
    table = scored(0.9, 0.8, 0.7, None)
    assert (table.best, table.second) == ({(0, 1), (2, 2)}, {(1, 1), (1, 2)})
    assert "| m0 | **90.00** | 90.00 |" in to_markdown(table)
    assert r"m0 & \textbf{90.00} & 90.00 \\" in to_latex(table)
    assert r"m1 & \underline{80.00} & \underline{80.00} \\" in to_latex(table)
    assert "<strong>90.00</strong>" in to_html(table)
    assert "<u>80.00</u>" in to_html(table)
    assert "\x1b[1m90.00\x1b[0m" in to_console(table, styled=True)
    assert "\x1b" not in to_console(table)


def test_ties_are_by_what_is_printed_and_of_more_than_three_none_is_marked():
    assert scored(0.9, 0.90001, 0.8).best >= {(0, 1), (1, 1)}
    assert {at for at in scored(0.9, 0.9, 0.9, 0.9, 0.8).best if at[1] == 1} == set()
    assert scored(0.9, 0.9).best == scored(0.9).best == set()  # nothing is worse


def test_headings_above_rows_and_columns_are_in_every_format():
    columns = (Column(""), Column("near", "percent", group="AUROC"), Column("far", "percent", group="AUROC"))
    table = Table("t", columns, (("a", 0.1, 0.2), ("b", 0.3, 0.4)), headings={1: "trained"})
    assert "|  | AUROC near | AUROC far |" in to_markdown(table)
    assert "| **trained** |  |  |\n| b | 30.00" in to_markdown(table)
    latex = to_latex(table)
    assert r" & \multicolumn{2}{c}{AUROC} \\" in latex
    assert r"\cmidrule(lr){2-3}" in latex
    assert "\\midrule\n\\multicolumn{3}{l}{\\textit{trained}} \\\\\nb & 30.00" in latex
    lines = [line.rstrip() for line in to_console(table).splitlines()]
    assert re.split(r"\s{2,}", lines[2].strip()) == ["AUROC near", "AUROC far"]
    assert lines[5] == " trained"
    assert lines[6].startswith("   b")


def test_latex_escapes_and_rules():
    text = to_latex(toy())
    assert r"knn\_a \& b & 12.35 [10.00, 20.00] & 3 \\" in text
    assert r"$\delta$ = 5 \%" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert r"\begin{tabular}{lrr}" in text
    assert text.isascii()


def test_latex_knows_every_symbol_of_the_metric_header():
    from openbench.results.tables.views import VIEWS, run_tables

    from .records import full_record

    for view in VIEWS:
        for table in run_tables(full_record(), view):
            assert to_latex(table).isascii(), view


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_table_renders(form):
    assert "method" in render(toy(rows=()), form)


def methods_of(*settings: str) -> Table:
    columns = (Column("method"), Column("run"), *(Column(f"a title {i}", "number") for i in range(9)))
    rows = [(name, text, *(1 / (7 + i) for i in range(9))) for name, text in zip(("knn", "vim"), settings, strict=True)]
    return Table("wide", columns, tuple(rows), "the header", ("a note",))


SETTINGS = ("index=exact, k=50, probes=16 · cross_entropy · resnet18", "dim=auto · resnet18")


@pytest.mark.parametrize("width", [60, 100, 300])
def test_console_breaks_neither_numbers_nor_words_and_stays_within_its_width(width):
    table = methods_of(*SETTINGS)
    text = to_console(table, width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for row in table.texts():
        for cell in row:
            assert set(cell.split()) <= set(words)
    assert all(words.count(f"{1 / (7 + i):.4g}") == 2 for i in range(9))
    assert [words.count(word) for word in ("wide", "header", "note")] == [1, 1, 1]
    if width == 300:  # whole: title, blank, columns, rule, two rows, blank, header, note
        assert len(text.splitlines()) == 9


def test_later_parts_repeat_no_more_than_tells_the_rows_apart():
    text = to_console(methods_of(*SETTINGS), 80)
    assert text.count("method") == text.count("knn") == 2
    assert text.count("index=exact") == 1
    alike = methods_of(*SETTINGS)
    alike = Table("wide", alike.columns, tuple(("knn", *row[1:]) for row in alike.rows))
    text = to_console(alike, 80)
    assert text.count("index=exact") == text.count(" method ") >= 2


def test_two_long_words_are_folded_before_a_number_is_dropped():
    columns = (Column("method"), Column("run"), Column("near", "number"), Column("far", "number"))
    rows = (("a" * 38, "b" * 40, 0.125, 0.25), ("c" * 38, "d" * 40, 0.375, 0.5))
    text = to_console(Table("t", columns, rows), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert [text.count(number) for number in ("0.125", "0.375", "0.25", "0.5")] == [1, 1, 1, 1]
    assert text.count("b") == 40  # folded, and nothing of it lost
    headers = [line.split() for line in text.splitlines() if "method" in line]
    assert headers == [["method", "run", "near"], ["method", "far"]]  # no part holds texts alone
    text = to_console(Table("t", (Column("file"), PERCENT), (("x" * 100, 0.5),)), 80)
    assert text.count("x") == 100
    assert max(map(len, text.splitlines())) <= 80


def test_the_terminal_gives_the_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert to_console(methods_of(*SETTINGS)) == to_console(methods_of(*SETTINGS), 80)
    monkeypatch.setenv("COLUMNS", "160")
    assert to_console(methods_of(*SETTINGS)) == to_console(methods_of(*SETTINGS), 160)
