"""What commands write: tables of runs and scores, files of JSON, and the list of what was left out."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openbench.cli.process import BAD_INPUT, OK, writing
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import ConfigError, OpenbenchError
from openbench.results.escape import console
from openbench.results.tables.render import Table, rendered
from openbench.results.tables.views import GROUPS, SIDES, VIEWS, run_tables
from openbench.storage.files import output
from openbench.storage.plain_json import dumps, readable

if TYPE_CHECKING:
    from openbench.metrics.suite import MetricOptions

ALL = "all"
_SHOWN = 20  # errors that are listed one by one
SCORE_VIEWS = tuple(view for view in VIEWS if view not in ("trials", "counts"))  # a file of scores has no others


def headline(record: ResultRecord, apart: str = "") -> str:
    """Return one line for a record: what was run, near and far AUROC in percent.

    Args:
        record: the run.
        apart: what tells it from other runs of its benchmark and method, e.g. `seed=1`.
    """
    name = " ".join(part for part in (record.benchmark["name"], record.method["name"], apart) if part)
    return ", ".join([name, *(f"{group} AUROC {100 * value:.2f}" for group, value in group_auroc(record).items())])


def group_auroc(record: ResultRecord) -> dict[str, float]:
    """Return near and far AUROC of a record, as far as it has them."""
    found = {group: record.metrics.get(group, {}).get("auroc") for group in GROUPS}
    return {group: value for group, value in found.items() if isinstance(value, float | int)}


def print_tables(tables: Sequence[Table], form: str = "console") -> None:
    """Print tables one below the other in one of `render`'s formats."""
    print("\n".join(rendered(tables, form)), end="")


def tables_of_scores(
    name: str, sets: Sequence[SetScores], metrics: dict[str, dict[str, Any]], options: "MetricOptions", view: str
) -> list[Table]:
    """Return the tables of scores that openbench did not make.

    Args:
        name: what the scores are called in titles, e.g. the file's name.
        sets: the scores.
        metrics: what `evaluate` made of them.
        options: with which options.
        view: one of SCORE_VIEWS, or `all`.
    """
    from openbench.metrics.suite import describe  # which loads SciPy

    counts = {f"{s.role}/{s.name}": {"n": len(s.scores), "expected": len(s.scores)} for s in sets}
    record = ResultRecord(
        run_id="",
        config={},
        benchmark={"name": name, "pristine": True},
        backbone={},
        method={},
        tuned={},
        trials=[],
        metrics=metrics,
        header=describe(options),
        counts=counts,
    )
    views = SCORE_VIEWS if view == ALL else (view,)
    accuracy = metrics["id"].get("accuracy")
    title = name if accuracy is None else f"{name} · ID accuracy {100 * accuracy:.2f} %"
    # Backbone and method are unknown here, so the title that a run's tables have would say little.
    found: list[Table] = []
    for v in views:
        tables = [(_side(table, v), table) for table in run_tables(record, v)]
        found += [replace(t, title=" · ".join(part for part in (v, side, title) if part)) for side, t in tables]
        standard = [at for at, (side, _) in enumerate(tables, len(found) - len(tables)) if not side]
        if v == "threshold" and standard:
            last = found[standard[-1]]
            found[standard[-1]] = replace(last, notes=(*last.notes, _operating(sets)))
    return found


def _side(table: Table, view: str) -> str:
    """The ID side that a run's table is about; empty for the standard one."""
    return next((side for side in SIDES.values() if side and table.title.startswith(f"{view} · {side} · ")), "")


def _operating(sets: Sequence[SetScores]) -> str:
    """What the names of thresholds stand for, with their values, to be used elsewhere."""
    from openbench.metrics.suite import fixed_thresholds

    meant = {"95tnr": "accepts 95 % of id_test", "val": "FPR = FNR on id_val and ood_val"}
    values = [f"{name} = {value:.6g} ({meant[name]})" for name, value in fixed_thresholds(sets).items()]
    unknown = [] if len(values) == len(meant) else ["val: needs the roles id_val and ood_val"]
    return (
        f"thresholds, above which a score is flagged: {' · '.join([*values, *unknown])} · test: FPR = FNR on each set "
        "itself, for comparison only"
    )


def write_json(values: Any, path: Path) -> None:
    """Write values as strict JSON, whole or not at all, and say so on stderr; infinite ones become the text `inf`.

    Raises:
        OpenbenchError: the file cannot be written.
    """
    with writing(path, "--json"), output(path) as stream:
        stream.write(dumps(readable(values)))
    print(f"written {path}", file=sys.stderr)


def check_json(path: Path | None, inputs: Sequence[Path]) -> None:
    """Refuse a `--json FILE` that is one of the files that are read, by whatever name or link.

    Raises:
        ConfigError: it is.
    """
    for given in inputs:
        if path is not None and path.exists() and given.exists() and path.samefile(given):
            raise ConfigError(f"--json {path} would overwrite '{given}', which is read — choose another file")


class LeftOut(list[OpenbenchError]):
    """The reason why each file was left out."""

    @property
    def code(self) -> int:
        """The exit code: 2 if there are any."""
        return BAD_INPUT if self else OK


@contextmanager
def left_out() -> Iterator[LeftOut]:
    """Collect what is left out, and list it at the end, even if the block raises an error."""
    found = LeftOut()
    try:
        yield found
    finally:
        say_left_out(found)


def say_left_out(unreadable: Sequence[OpenbenchError]) -> int:
    """List on stderr what was left out, each with its reason; the exit code is 2 if there is any."""
    for error in unreadable[:_SHOWN]:
        print(console(f"error: {error}"), file=sys.stderr)
    if len(unreadable) > _SHOWN:
        print(f"… and {len(unreadable) - _SHOWN:,} more such errors", file=sys.stderr)
    if unreadable:
        print(f"{len(unreadable):,} files were left out" if unreadable[1:] else "1 file was left out", file=sys.stderr)
    return BAD_INPUT if unreadable else OK
