"""`evaluate`: every table from a file of scores, whatever made them."""

import argparse
import math
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from openbench.cli.json_file import check_json, write_json
from openbench.cli.process import OK
from openbench.cli.score_file import read_sets
from openbench.cli.tables import ALL, SCORE_VIEWS, print_tables, tables_of_scores
from openbench.core.scores import SetScores
from openbench.engine.provenance import WARNINGS, remarks, turned
from openbench.metrics.suite import MetricOptions, describe, evaluate
from openbench.results.escape import console
from openbench.results.scores.file import Advance, passes, silent
from openbench.results.tables.render import FORMATS
from openbench.results.tables.views import explained

_LONG = 1 << 24  # bytes from which on reading is shown
_LARGE = 1_000_000  # scores from which on the computation is announced

_EPILOG = """\
columns: score (larger = more OOD), set, role (id_test, id_val, csid, ood_val, near, far); optionally correct (0/1),
label, prediction, p_0 … p_{c-1}. Decimals that share a float64 are ties; numbers beyond 2^53 that do are refused.
Lists are separated by commas.

  python -m openbench evaluate scores.csv
  python -m openbench evaluate scores.parquet --json metrics.json
  python -m openbench evaluate scores.csv --families ranking,conformal --delta 0.01 --correction simes
"""


def main(argv: list[str]) -> int:
    """Run the command line `argv` and return its exit code."""
    arguments = _parser().parse_args(argv)
    check_json(arguments.json, [arguments.scores])
    chosen = {f.name: getattr(arguments, f.name) for f in fields(MetricOptions)}
    options = MetricOptions(**{name: value for name, value in chosen.items() if value is not None})
    with _reading(arguments.scores) as advance:
        sets = read_sets(arguments.scores, advance)
    _announce(sets)
    values = evaluate(sets, options)
    tables = tables_of_scores(arguments.scores.name, sets, values, options, arguments.view)
    whose = f"'{arguments.scores.name}'"
    for line in (*remarks(whose, sets).get(WARNINGS, ()), *turned(whose, sets, values)):
        print(console(line), file=sys.stderr)
    if not tables:
        print(f"view '{arguments.view}' is empty: the file or the families do not yield it", file=sys.stderr)
    print_tables(tables, arguments.format)
    if arguments.explain:
        print(explained(describe(options)), file=sys.stderr if arguments.format == "csv" else sys.stdout)
    if arguments.json is not None:
        write_json(values, arguments.json)
    return OK


@contextmanager
def _reading(path: Path) -> Iterator[Advance]:
    """A bar on a terminal for a file that takes seconds to read; nothing elsewhere."""
    size = os.path.getsize(path) * passes(path) if os.path.isfile(path) else 0
    if size < _LONG or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, TextColumn

    from openbench.progress import bars

    title = TextColumn("{task.description}", markup=False)
    with bars(Console(stderr=True), before=[title], count=[DownloadColumn()]) as bar:
        task = bar.add_task(f"reading {console(path.name)}", total=size)
        yield lambda count: bar.advance(task, count)


def _announce(sets: Sequence[SetScores]) -> None:
    """Say on stderr what is computed where that takes longer than a few seconds."""
    total = sum(len(s.scores) for s in sets)
    if total < _LARGE:
        return
    print(
        f"{total:,} scores in {len(sets)} sets read; computing the metrics, up to {math.ceil(total * 6e-6)} s on a "
        "free processor",
        file=sys.stderr,
        flush=True,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openbench evaluate",
        description="Compute every metric of a file of scores and print the tables.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scores", type=Path, metavar="SCORES", help=".csv or .parquet, one row per scored image")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number as {set or group: {key: value}}")
    parser.add_argument(
        "--view", choices=(*SCORE_VIEWS, ALL), default="overview", help="which tables (default: overview)"
    )
    parser.add_argument("--format", choices=FORMATS, default="console", help="how tables are written")
    parser.add_argument("--explain", action="store_true", help="also print every convention that the numbers depend on")
    options = parser.add_argument_group("metric options (defaults as in configs/metrics/default.yaml)")
    for field in fields(MetricOptions):
        default = field.default
        options.add_argument(
            f"--{field.name.replace('_', '-')}",
            dest=field.name,
            type=_kind(field),
            metavar=_metavar(default),
            help=f"{_meaning(field.name)} (default: {_shown(default)})".replace("%", "%%"),
        )
    return parser


def _kind(field: Field[Any]) -> Any:
    """How an option's text becomes its value: by the type of its default."""
    default = field.default
    if default is MISSING:
        raise TypeError(f"MetricOptions.{field.name} has no default to tell its type by")
    if field.name == "fpr":
        return _rates
    if not isinstance(default, tuple):
        return type(default)
    item = type(default[0])

    def items(text: str) -> tuple[Any, ...]:
        return tuple(item(part.strip()) for part in text.split(",") if part.strip())

    items.__name__ = "list"  # argparse names it when a part does not convert
    return items


def _rates(text: str) -> float | dict[str, float]:
    """One rate, or `SET=RATE,SET=RATE`."""
    try:
        if "=" not in text:
            return float(text)
        pairs = [part.strip().rpartition("=") for part in text.split(",")]
        rates = {name: float(rate) for name, _, rate in pairs}
        if "" not in rates and len(rates) == len(pairs):
            return rates
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"found {text!r} — allowed: a rate for all sets, or SET=RATE,… with each set once")


def _metavar(default: Any) -> str:
    if isinstance(default, tuple):
        return "A,B,…"
    return "NAME" if isinstance(default, str) else "X"


def _shown(default: Any) -> str:
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _meaning(name: str) -> str:
    """The option's line in the docstring of MetricOptions, where its meaning is written once."""
    match = re.search(rf"^ *{name}: (.+?)\.?$", MetricOptions.__doc__ or "", flags=re.MULTILINE)
    return match.group(1) if match else ""
