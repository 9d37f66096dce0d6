"""Put the current leaderboard of one benchmark into the README, between its two marks."""

import argparse
import sys
from pathlib import Path

from openbench.results.leaderboard.ranking import Board, boards
from openbench.results.records.store import RecordStore
from openbench.results.tables.render import Column, Table, to_markdown

BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"
README = Path(__file__).resolve().parent.parent / "README.md"


SHOWN = ("odin", "react", "energy", "mls", "fdbd", "scale", "ash", "knn", "mds_pp", "vim", "msp", "gradnorm", "mds")


def table(board: Board) -> str:
    """Return the best-known rows of a board as Markdown, in its order."""
    keys = {"near auroc": "near AUROC ↑", "far auroc": "far AUROC ↑", "near fpr95": "near FPR@95 ↓"}
    columns = (Column("method"), Column("chosen on validation"), *(Column(t, "percent") for t in keys.values()))
    rows = tuple(
        (row.method, (row.settings if row.tuned == "validation" else ""), *(row.values.get(key) for key in keys))
        for row in (*board.ranked, *board.unranked)
        if row.method in SHOWN
    )
    return to_markdown(Table("", columns, rows)).removeprefix("### ").strip()


def main() -> int:
    """Rewrite the README, or with `--check` only say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmark", nargs="?", default="cifar10")
    parser.add_argument("--results", type=Path, default=README.parent / "results")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    found = [b for b in boards(RecordStore(arguments.results)) if b.benchmark == arguments.benchmark]
    if not found:
        print(f"no records of '{arguments.benchmark}' in {arguments.results}", file=sys.stderr)
        return 2
    before = README.read_text(encoding="utf-8")
    head, rest = before.split(BEGIN)
    after = f"{head}{BEGIN}\n{table(found[0])}\n{END}{rest.split(END)[1]}"
    if arguments.check:
        print("up to date" if after == before else "outdated")
        return int(after != before)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
