"""`evaluate`: every table from a file of scores, whatever made them."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from openbench.cli import options
from openbench.cli.output import ALL, SCORE_VIEWS, check_json, print_tables, tables_of_scores, write_json
from openbench.cli.process import OK
from openbench.engine.provenance import WARNINGS, remarks, turned
from openbench.metrics import suite
from openbench.metrics.suite import MetricOptions, describe
from openbench.progress import reporting
from openbench.results.escape import console
from openbench.results.scores.cells import read_sets
from openbench.results.scores.file import Advance, passes, silent
from openbench.results.tables.views import explained

_LONG = 1 << 24  # bytes from which on reading is shown

_EPILOG = """\
columns: score (larger = more OOD), set, role (id_test, id_val, csid, ood_val, near, far); optionally correct (0/1),
label, prediction, p_0 … p_{c-1}. Decimals that share a float64 are ties; numbers beyond 2^53 that do are refused.
Lists are separated by commas.

  python -m openbench evaluate scores.csv
  python -m openbench evaluate scores.parquet --json metrics.json
  python -m openbench evaluate scores.csv --families ranking,conformal --delta 0.01 --correction simes
"""


def _rates(text: str) -> float | dict[str, float]:
    """One rate, or `SET=RATE,SET=RATE`."""
    pairs = [part.strip().rpartition("=") for part in text.split(",")]
    try:
        found = {name: float(rate) for name, _, rate in pairs} if "=" in text else float(text)
    except ValueError:
        found = {}
    if isinstance(found, dict) and ("" in found or len(found) < len(pairs)):
        raise click.BadParameter(f"found {text!r} — allowed: a rate for all sets, or SET=RATE,… with each set once")
    return found


def _list_of(kind: type) -> Callable[[str], tuple[Any, ...]]:
    """What reads values separated by commas."""
    return lambda text: tuple(map(kind, options.names(text)))


def _metric_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add an option for each metric option, explained by its line in the docstring of MetricOptions."""
    for field in reversed(fields(MetricOptions)):
        default: Any = field.default
        first, shown = (default[0], ",".join(map(str, default))) if isinstance(default, tuple) else (default, default)
        match = re.search(rf"^ *{field.name}: (.+?)\.?$", MetricOptions.__doc__ or "", flags=re.MULTILINE)
        kind: Any = _list_of(type(first)) if isinstance(default, tuple) else type(first)
        command = click.option(
            f"--{field.name.replace('_', '-')}",
            type=_rates if field.name == "fpr" else kind,
            metavar="A,B,…" if isinstance(default, tuple) else "NAME" if isinstance(default, str) else "X",
            help=f"{match.group(1) if match else ''} (default: {shown})",
        )(command)
    return command


@click.command(cls=options.Command, epilog=_EPILOG)
@click.argument("scores", type=options.FILE, metavar="SCORES")
@click.option("--json", type=options.FILE, metavar="FILE", help="write every number as {set or group: {key: value}}")
@click.option("--view", type=click.Choice([*SCORE_VIEWS, ALL]), default="overview", help="which tables")
@options.table_format()
@click.option("--explain", is_flag=True, help="also print every convention that the numbers depend on")
@_metric_options
def evaluate(scores: Path, json: Path | None, view: str, form: str, explain: bool, **metric_options: Any) -> int:
    """Compute every metric of a file of scores and print the tables.

    SCORES is a .csv or .parquet, one row per scored image. The options of metrics have the defaults of
    configs/metrics/default.yaml.
    """
    check_json(json, [scores])
    chosen = MetricOptions(**{name: value for name, value in metric_options.items() if value is not None})
    with _reading(scores) as advance:
        sets = read_sets(scores, advance)
    values = suite.evaluate(sets, chosen)
    tables = tables_of_scores(scores.name, sets, values, chosen, view)
    whose = f"'{scores.name}'"
    for line in (*remarks(whose, sets).get(WARNINGS, ()), *turned(whose, sets, values)):
        print(console(line), file=sys.stderr)
    if not tables:
        print(f"view '{view}' is empty: the file or the families do not yield it", file=sys.stderr)
    print_tables(tables, form)
    if explain:
        print(explained(describe(chosen)), file=sys.stderr if form == "csv" else sys.stdout)
    if json is not None:
        write_json(values, json)
    return OK


@contextmanager
def _reading(path: Path) -> Iterator[Advance]:
    """A bar on a terminal for a file that takes seconds to read; nothing elsewhere."""
    size = os.path.getsize(path) * passes(path) if os.path.isfile(path) else 0
    if size < _LONG or not sys.stderr.isatty():
        yield silent
        return
    with reporting(f"reading {console(path.name)}", size, unit="bytes") as advance:
        yield advance
