"""A table as HTML for a notebook, in the colours of the page around it: light or dark."""

from collections.abc import Sequence

from openbench.results.escape import html
from openbench.results.tables.table import Table

_CELL = "padding:0.2em 0.8em;text-align:{side};white-space:nowrap"
_RULE = "border-bottom:1px solid currentColor"
_NO_FORMULAS = "tex2jax_ignore mathjax_ignore"  # a notebook would typeset what stands between two dollar signs
_WARNING = "border-left:3px solid #D55E00;padding-left:0.6em;margin:0.3em 0"


def to_html(table: Table, notes: Sequence[str] = (), warnings: Sequence[str] = ()) -> str:
    """Return a table with its title, what is to be known before its numbers are read above it, and its notes below.

    Args:
        table: any.
        notes: where the numbers come from.
        warnings: why they may not be what the user expects.
    """
    sides = ["left" if column.kind == "text" else "right" for column in table.columns]
    head = "".join(_cell("th", column.title, side) for column, side in zip(table.columns, sides, strict=True))
    rows = ["".join(_cell("td", text, side) for text, side in zip(row, sides, strict=True)) for row in table.texts()]
    return "\n".join(
        [
            f'<div class="{_NO_FORMULAS}">',
            f"<p><strong>{html(table.title)}</strong></p>",
            *(f'<p style="{_WARNING}">{html(text)}</p>' for text in warnings),
            *(f"<p>{html(text)}</p>" for text in notes),
            '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">',
            f'<thead><tr style="{_RULE}">{head}</tr></thead>',
            f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody>",
            "</table>",
            *(f"<p><small>{html(text)}</small></p>" for text in (*table.notes, table.header) if text),
            "</div>",
        ]
    )


def _cell(tag: str, text: str, side: str) -> str:
    return f'<{tag} style="{_CELL.format(side=side)}">{html(text)}</{tag}>'
