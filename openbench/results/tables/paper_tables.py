"""Tables of two papers as data, with openbench's names, to be shown beside its own figures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from openbench.errors import RecordError
from openbench.results.tables.published import reference_rows

REJECTION_SOURCE = "Franc, Prusa, Paplham, arXiv 2307.05199, table 2"
_NAMES = "paper_names.csv"
Key = tuple[str, str, str]


@dataclass(frozen=True)
class RejectionFigure:
    """What the reject-option paper prints for a method against an OOD set; fractions, None where nothing is printed.

    Args:
        min_tpr: φ_min of the risk.
        max_fpr: ρ_max of the risk.
        risk: selective risk there.
        auroc: AUROC.
        oscr: what it calls OSCR, the accuracy among the accepted over FPR.
    """

    min_tpr: float | None = None
    max_fpr: float | None = None
    risk: float | None = None
    auroc: float | None = None
    oscr: float | None = None


def rejection_figures(folder: Path) -> dict[tuple[str, str, str], RejectionFigure]:
    """Return figures by our names of (benchmark, OOD set, method); none without the files.

    Args:
        folder: that of the reference files.

    Raises:
        RecordError: a cell that is not a number, or a name that is not in `paper_names.csv`.
    """
    columns, found = {"benchmark": "id", "set": "ood", "method": "method"}, dict[Key, dict[str, float]]()
    for where, key_of, row in _figures(folder, "reject_option_table2", columns):
        values = {"risk" if row["metric"] == "selective_risk" else row["metric"]: _number(row["value"], where)}
        values |= {key: _number(row[key], where) for key in ("min_tpr", "max_fpr") if row[key]}
        found.setdefault(key_of, {}).update(values)
    return {key: RejectionFigure(**values) for key, values in found.items()}


def rebench_figures(folder: Path) -> dict[tuple[str, str, str], Mapping[str, float]]:
    """Return {`f1`, `auroc`, `fpr95`, `aupr`} by our names of (collection, training, method); none without the files.

    Args:
        folder: that of the reference files.

    Raises:
        RecordError: a cell that is not a number, or a name that is not in `paper_names.csv`.
    """
    columns = {"benchmark": "case", "training": "method", "method": "method"}
    return {
        key_of: {key: _number(row[key], where) for key in ("f1", "auroc", "fpr95", "aupr")}
        for where, key_of, row in _figures(folder, "rebenchmarking_tables", columns)
    }


def _figures(folder: Path, table: str, columns: Mapping[str, str]) -> Iterator[tuple[str, Key, Mapping[str, str]]]:
    """Yield place, key in our names, and cells of each row of a table; nothing without the files.

    Args:
        folder: that of the reference files.
        table: its name.
        columns: kind of name → the column that has it; three, in the order of the key.
    """
    names = {
        (row["kind"], row["published"]): row["ours"]
        for _, row in reference_rows(folder, _NAMES)
        if row["table"] == table
    }
    for where, row in reference_rows(folder, f"{table}.csv") if names else ():
        first, second, third = (_ours(names, kind, row[column], where) for kind, column in columns.items())
        yield where, (first, second, third), row


def _ours(names: Mapping[tuple[str, str], str], kind: str, published: str, where: str) -> str:
    if (kind, published) not in names:
        raise RecordError(f"{where}: {kind} '{published}' is not in {_NAMES} — add what it is called here")
    return names[kind, published]


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise RecordError(f"{where}: found {text!r} — allowed: a number") from error
