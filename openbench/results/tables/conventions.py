"""Which of a record's conventions the numbers of a table depend on."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from openbench.results.escape import console
from openbench.results.tables.table import Table

# Beginning of a clause of the header → the keys that depend on it; what is not listed is always shown.
_DEPENDING: tuple[tuple[str, str], ...] = (
    (r"FPR@95: ", r"(conformal_)?fpr95.*"),
    (r"AUPR by ", r"(aupr|ap)_(in|out)"),
    (r"AUTC: ", r"autc|aufpr|aufnr"),
    (r"risk: TPR ", r"risk@tpr.*"),
    (r"precision ", r"risk@prec.*"),
    (r"costs ", r"cost"),
    (r"conformal: ", r"(conformal|bh)_.+"),
    (r"prediction sets: ", r"\w+_(coverage|size|singletons|worst_class).*@.+"),
)
_RISK = "risk: "
_INTERVALS = re.compile(r"[\d.]+ % intervals: ")
_BOOTSTRAP = re.compile(r", stratified bootstrap[^(]*\([^)]*\)")
_OTHER_SIDE = re.compile(r" \(fpr95_id_positive: [^)]*\)")


def conventions(header: str, keys: Collection[str], intervals: Collection[str] = ()) -> str:
    """Return the part of a record's header that a table needs.

    Args:
        header: clauses divided by ` · ` and `; `, as `metrics.describe` writes them.
        keys: of the metrics that the table shows.
        intervals: those of them that it shows with their intervals.
    """
    base = {key.removeprefix("pooled_") for key in keys}
    parts = []
    for part in header.split(" · "):
        kept = [text for clause in part.split("; ") if (text := _needed(clause, base, intervals))]
        if kept and part.startswith(_RISK) and not kept[0].startswith(_RISK):
            kept[0] = _RISK + kept[0]
        parts += ["; ".join(kept)] * bool(kept)
    return " · ".join(parts)


def explained(header: str) -> str:
    """Return all of a record's conventions, one on a line."""
    return "\n".join(["conventions:", *(f"  {console(part)}" for part in header.split(" · ") if part)])


def said_once(tables: Iterable[Table]) -> list[Table]:
    """Return the tables of a view with each line about them under the last table that it is about."""
    found, headers, notes = [], set[str](), set[str]()
    for table in reversed(list(tables)):
        kept = tuple(note for note in table.notes if note not in notes)
        found.append(replace(table, header="" if table.header in headers else table.header, notes=kept))
        headers.add(table.header)
        notes |= set(table.notes)
    return found[::-1]


def _needed(clause: str, keys: Collection[str], intervals: Collection[str]) -> str:
    """A clause, or as much of it as the keys need."""
    if _INTERVALS.match(clause):
        if not intervals:
            return ""
        return clause if set(intervals) - {"auroc"} else _BOOTSTRAP.sub("", clause)
    patterns = [pattern for start, pattern in _DEPENDING if clause.startswith(start)]
    if patterns and not _any(patterns, keys):
        return ""
    return clause if "fpr95_id_positive" in keys else _OTHER_SIDE.sub("", clause)


def _any(patterns: Sequence[str], keys: Collection[str]) -> bool:
    return any(re.fullmatch(pattern, key) for pattern in patterns for key in keys)
