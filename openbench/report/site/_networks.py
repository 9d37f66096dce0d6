"""The page of networks × methods: the matrices with colours, and their pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openbench.report.run_page import template
from openbench.results.leaderboard.matrix import VIEWS, Matrix, matrices, table_csv
from openbench.results.leaderboard.plots import accuracy_picture
from openbench.results.leaderboard.ranking import Board
from openbench.results.plots import critical_difference, saved
from openbench.results.tables.render import Column, cell_text, to_csv
from openbench.results.tables.views import kind_of

PAGE = "networks.html"


def networks_page(boards: Sequence[Board], mark: str, trained: Sequence[Board] = ()) -> dict[str, str]:
    """Return {file: text} of the page, its pictures and its CSV; nothing if no board has several networks.

    Args:
        boards: of runs with AUROCs.
        mark: of the site's pages.
        trained: boards that compare trainings only.
    """
    of = {"networks": boards, "trainings": [*boards, *trained]}
    found = [matrix for view in VIEWS for matrix in matrices(of[view], view)]
    if not found:
        return {}
    files, sections = {"tables/networks.csv": to_csv(table_csv(found))}, []
    for number, matrix in enumerate(found):
        pictures = _pictures(matrix)
        named = {f"pictures/networks-{number}-{what}.svg": svg for what, svg in pictures.items()}
        files |= named
        sections.append(_section(matrix) | {"pictures": list(zip(pictures, named, strict=True))})
    page = template(Path(__file__).parent / "templates" / "networks.html.j2")
    return files | {PAGE: page.render(mark=mark, sections=sections)}


def _section(matrix: Matrix) -> dict[str, Any]:
    """A matrix as the page shows it: the colour of a cell follows from its rank, so that columns can be compared."""
    k, n = matrix.compared
    column = Column("", kind_of(matrix.key))
    rows = []
    for at, (method, line) in enumerate(zip(matrix.methods, matrix.values, strict=True)):
        cells = []
        for b, value in enumerate(line[:n]):
            text = "" if np.isnan(value) else cell_text(float(value), column)
            rank = float(matrix.ranks[at, b]) if at < k else None
            cells.append((text, "" if rank is None else f"{rank:g}", 0 if rank is None else 1 - (rank - 1) / (k - 1)))
        mean, ranks = matrix.place(at)
        rows.append(
            {"method": method, "mean": "" if mean is None else f"{mean:.1f}", "ranks": ranks or "", "cells": cells}
        )
    taus = [
        [
            None if a == b else (*(f"{number:.2f}" for number in matrix.taus[a, b]), max(0.0, matrix.taus[a, b, 0]))
            for b in range(n)
        ]
        for a in range(n)
    ]
    accuracy = [f"{100 * one.accuracy:.2f} %" if one.accuracy == one.accuracy else "" for one in matrix.networks[:n]]
    return {
        "title": matrix.title,
        "view": matrix.view,
        "summary": matrix.summary(),
        "details": matrix.details(),
        "networks": [one.label for one in matrix.networks[:n]],
        "accuracy": accuracy,
        "rows": rows,
        "taus": taus,
        "notes": matrix.notes,
    }


def _pictures(matrix: Matrix) -> dict[str, str]:
    """{what it shows: SVG} of mean ranks, and of the metric against ID accuracy where that is known."""
    k, n = matrix.compared
    figures = {"mean-ranks": critical_difference(matrix.methods[:k], matrix.complete, matrix.name, matrix.view)}
    if len({network.accuracy for network in matrix.networks[:n] if network.accuracy == network.accuracy}) > 1:
        figures["accuracy"] = accuracy_picture(matrix)
    return {what: saved(figure, "svg").decode() for what, figure in figures.items()}
