"""The pictures that the site brings along: of each board the mean ranks over its sets, with the critical difference."""

import io
import re
from collections.abc import Sequence
from typing import Any

from openbench.report.ranks import critical_difference
from openbench.report.style import save
from openbench.results.tables.views import GROUPS

_OF_SET = re.compile(r"(.+)\.auroc")
_NOT_SETS = (*GROUPS, "id", "mean")


def pictures(boards: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return {file: SVG} of the boards that have AUROCs on two sets at least, and note each file in its board.

    Methods that lack a set are left out. Where nothing is ranked, the rows that are shown take part.

    Args:
        boards: as the page reads them.
    """
    found: dict[str, str] = {}
    for board in boards:
        board["picture"] = None
        sets = [at for at, metric in enumerate(board["metrics"]) if _is_set(metric["id"])]
        rows = [row for row in board["rows"] if row["rank"] is not None] or board["rows"]
        values = {_name(row, rows): [_number(row["values"][at]) for at in sets] for row in rows}
        whole = {name: [v for v in line if v is not None] for name, line in values.items() if None not in line}
        if len(sets) < 2 or len(whole) < 2 or board["id"].endswith("-autc"):
            continue
        stream = io.BytesIO()
        figure = critical_difference(list(whole), list(whole.values()), "AUROC")
        save(figure, stream, "svg")
        board["picture"] = f"pictures/{board['id']}.svg"
        found[board["picture"]] = stream.getvalue().decode()
    return found


def _is_set(key: str) -> bool:
    found = _OF_SET.fullmatch(key)
    return found is not None and found[1] not in _NOT_SETS


def _name(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """The method, with what tells it from other rows of the method."""
    alike = [other for other in rows if other["method"] == row["method"]]
    keys = [key for key in ("training", "backbone", "augment", "settings") if len({other[key] for other in alike}) > 1]
    return " · ".join([row["method"], *(str(row[key]) for key in keys)])


def _number(value: Any) -> float | None:
    found = value[0] if isinstance(value, list) else value
    return found if isinstance(found, float | int) else None
