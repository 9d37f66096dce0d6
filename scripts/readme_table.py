"""Put the table of the README's Python example into the README, between its two marks, from committed records."""

import argparse
import sys
from pathlib import Path

import openbench as ob

BEGIN, END = "<!-- table:begin -->", "<!-- table:end -->"
README = Path(__file__).resolve().parent.parent / "README.md"
RUNS = {"msp": "e57cb01b20ece832", "knn": "0f1eafcfb5ce08fb", "vim": "a31bd4eb98a054a4"}


def table(folder: Path) -> str:
    """Return what the example prints, as a block of text."""
    results = ob.Results({method: ob.load(run, folder) for method, run in RUNS.items()})
    lines = [line.rstrip() for line in str(results).splitlines()]
    return "\n".join(["```text", *lines, "```"])


def main() -> int:
    """Rewrite the README, or with `--check` only say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=README.parent / "results")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    before = README.read_text(encoding="utf-8")
    head, rest = before.split(BEGIN)
    after = f"{head}{BEGIN}\n{table(arguments.results)}\n{END}{rest.split(END)[1]}"
    if arguments.check:
        print("up to date" if after == before else "outdated")
        return int(after != before)
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
