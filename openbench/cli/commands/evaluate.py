"""`evaluate`: every table from a file of scores."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from openbench.api.result import Result
from openbench.api.scores import result_of
from openbench.cli import options
from openbench.cli.output import check_output, note, print_tables, write_json
from openbench.cli.process import OK
from openbench.core.scores import SetScores
from openbench.metrics.suite import MetricOptions, fixed_thresholds
from openbench.results.escape import console
from openbench.results.scores.cells import read_sets
from openbench.results.tables.render import Table
from openbench.results.tables.views import SIDES, VIEWS, explained, run_tables

ALL = "all"
SCORE_VIEWS = tuple(view for view in VIEWS if view not in ("trials", "counts"))  # a file of scores has no others


def _rates(text: str) -> float | dict[str, float]:
    """A rate, or `SET=RATE,SET=RATE`."""
    pairs = [part.strip().rpartition("=") for part in text.split(",")]
    try:
        rates = {name: float(rate) for name, _, rate in pairs} if "=" in text else float(text)
    except ValueError:
        rates = {}
    if isinstance(rates, dict) and ("" in rates or len(rates) < len(pairs)):
        raise click.BadParameter(f"found {text!r} — allowed: a rate for all sets, or SET=RATE,… with each set once")
    return rates


@click.command(cls=options.Command)
@click.argument("scores", type=options.FILE, metavar="SCORES")
@options.file_option("--json", "FILE", "write every number as {set or group: {key: value}}")
@click.option("--view", type=click.Choice([*SCORE_VIEWS, ALL]), default="overview", help="which tables")
@options.table_format()
@click.option("--explain", is_flag=True, help="also print every convention that the numbers depend on")
@options.fields_of(MetricOptions, fpr=_rates)
def evaluate(scores: Path, json: Path | None, view: str, form: str, explain: bool, **metric_options: Any) -> int:
    """Compute every metric of a file of scores and print the tables.

    SCORES is a .csv or .parquet with a row per scored image and the columns score (larger = more OOD), set, role
    (id_test, id_val, csid, ood_val, near, far); optionally correct (0/1), label, prediction, p_0 … p_{c-1}. Decimals
    that share a float64 are ties; numbers beyond 2^53 that do are refused. Lists are separated by commas. The options
    of metrics have the defaults of configs/metrics/default.yaml.

    Examples:
      python -m openbench evaluate scores.csv
      python -m openbench evaluate scores.parquet --json metrics.json
      python -m openbench evaluate scores.csv --families ranking,conformal --delta 0.01 --correction simes
    """
    check_output("--json", json, [scores])
    chosen = MetricOptions(**{name: value for name, value in metric_options.items() if value is not None})
    result = result_of(read_sets(scores), chosen, scores.name)
    tables = [table for one in (SCORE_VIEWS if view == ALL else (view,)) for table in _tables(result, one)]
    for line in result.warnings:
        print(console(line), file=sys.stderr)
    if not tables:
        print(f"view '{view}' is empty: the file or the families do not yield it", file=sys.stderr)
    print_tables(tables, form)
    if explain:
        note(explained(result.record.header), form)
    if json is not None:
        write_json(result.metrics, json)
    return OK


def _tables(result: Result, view: str) -> Iterator[Table]:
    """The tables of one view; backbone and method are unknown, so their titles name the file and its accuracy."""
    accuracy = result.metrics["id"].get("accuracy")
    known = [] if accuracy is None else [f"ID accuracy {100 * float(accuracy):.2f} %"]
    tables = run_tables(result.record, view)
    sides = [next((s for s in SIDES.values() if s and t.title.startswith(f"{view} · {s} · ")), "") for t in tables]
    standard = [at for at, side in enumerate(sides) if not side]
    for at, (side, table) in enumerate(zip(sides, tables, strict=True)):
        title = " · ".join(part for part in (view, side, str(result.record.benchmark["name"]), *known) if part)
        notes = [_operating(result.scores)] if view == "threshold" and standard[-1:] == [at] else []
        yield replace(table, title=title, notes=(*table.notes, *notes))


def _operating(sets: Sequence[SetScores]) -> str:
    """What the names of thresholds stand for, with their values, to be used elsewhere."""
    meant = {"95tnr": "accepts 95 % of id_test", "val": "FPR = FNR on id_val and ood_val"}
    values = [f"{name} = {value:.6g} ({meant[name]})" for name, value in fixed_thresholds(sets).items()]
    unknown = [] if len(values) == len(meant) else ["val: needs the roles id_val and ood_val"]
    return (
        f"thresholds, above which a score is flagged: {' · '.join([*values, *unknown])} · test: FPR = FNR on each set "
        "itself, for comparison only"
    )
