"""One run as a page: what was run, its tables and pictures, and how to make it again; from its record and scores."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import ConfigError, MetricError
from openbench.installation import pip_install
from openbench.metrics.options import MetricOptions
from openbench.metrics.suite import fixed_thresholds
from openbench.results import plots
from openbench.results.frame import cost_of
from openbench.results.scores.recompute import options_of
from openbench.results.tables.render import Column, Table
from openbench.results.tables.views import VIEWS, explained, run_tables

if TYPE_CHECKING:
    from jinja2 import Template

_HERE = Path(__file__).parent
_APART = ("overview", "trials")  # views with places of their own
_GUARANTEE = (
    "With probability 1 − δ over the draw of the {n:,} ID test images, a threshold at guaranteed FPR α flags at most a "
    "share α of new images of the same distribution. Nothing is promised about the share of OOD that is found. "
    "δ = {delta}, correction: {correction}."
)


@dataclass(frozen=True)
class Picture:
    """One image of a contact sheet.

    Args:
        source: a data URI of a PNG.
        name: how the benchmark's list writes it.
        score: the method's.
        note: e.g. the class.
    """

    source: str
    name: str
    score: float
    note: str = ""


@dataclass(frozen=True)
class Sheet:
    """Images in a row, with what they have in common."""

    title: str
    pictures: tuple[Picture, ...]


def run_page(
    record: ResultRecord,
    sets: Sequence[SetScores] = (),
    sheets: Sequence[Sheet] = (),
    classes: Sequence[str] = (),
    command: str = "",
    *,
    stylesheet: str = "",
) -> str:
    """Return the HTML of a run: equal arguments give equal text, and the file needs nothing but its style sheet.

    Args:
        record: of the run.
        sets: its scores; without them there are no pictures, and the page says so.
        sheets: images that were flagged or accepted first.
        classes: names of the ID classes, by index.
        command: what makes the run again, empty if that is not known.
        stylesheet: address of `run_style`; empty to hold it.
    """
    options = options_of(record)
    title = " · ".join(str(part) for part in (record.method["name"], record.benchmark["name"], record.backbone["name"]))
    return template(_HERE / "templates" / "run.html.j2").render(
        title=title,
        record=record,
        facts=_facts(record),
        overview=run_tables(record)[0],
        tables=[(view, tables) for view in VIEWS if view not in _APART and (tables := _filled(record, view))],
        trials=[replace(table, title="Validation chose among these") for table in _filled(record, "trials")],
        cost=_cost(record),
        pictures=list(_drawn(sets, options)) if sets else [],
        sheets=sheets,
        per_class=_per_class(sets, classes),
        kept=bool(sets),
        command=command,
        stylesheet=stylesheet,
        style=run_style(),
        explained=explained(record.header),
        config=json.dumps(record.config, indent=2, sort_keys=True, ensure_ascii=False),
        provenance=json.dumps(record.provenance, indent=2, sort_keys=True, ensure_ascii=False),
    )


def template(path: Path) -> "Template":
    """Return a page's template, which escapes what is put into it.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise ConfigError(f"pages need jinja2, which is not installed — {pip_install('site')}") from error
    folder = FileSystemLoader(path.parent)
    environment = Environment(
        loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    return environment.get_template(path.name)


def run_style() -> str:
    """Return the CSS of a run's page."""
    return (_HERE / "templates" / "run.css").read_text(encoding="utf-8")


def _facts(record: ResultRecord) -> dict[str, Any]:
    made = record.provenance
    params = ", ".join(f"{key}={value}" for key, value in record.method.get("params", {}).items())
    deviations = "; ".join(map(str, record.benchmark.get("deviations") or ()))
    return {
        "benchmark": f"{record.benchmark['name']}, definition {record.benchmark.get('digest', '?')}",
        "not as defined": deviations,
        "method": f"{record.method['name']}, version {record.method.get('version')}",
        "hyper-parameters": params,
        "tuned": ", ".join(f"{key}={value}" for key, value in record.tuned.items()),
        "from": record.method.get("reference", ""),
        "backbone": record.backbone["name"],
        "trained by": record.backbone.get("training") or "released weights",
        "weights": record.backbone.get("weights_sha256", ""),
        "seed": record.config.get("seed"),
        "made": f"{made.get('utc', '?')}, openbench {made.get('openbench', '?')}, commit {made.get('git_sha') or '?'}",
        "on": made.get("device", ""),
        "record": record.run_id,
    }


def _cost(record: ResultRecord) -> Table | None:
    """Time and peak memory of each stage of the run; None if the record states neither."""
    made, spent = record.provenance, cost_of(record)["ms"]
    seconds, peak = ({} if not isinstance(made.get(key), dict) else made[key] for key in ("seconds", "peak_mib"))
    stages = dict.fromkeys((*seconds, *peak))
    rows = tuple((stage, *(_number(found.get(stage)) for found in (seconds, peak))) for stage in stages)
    if not rows:
        return None
    each = () if spent is None else (f"Scoring takes {spent:.3g} ms per image whose features are cached.",)
    columns = Column("stage"), Column("seconds", "number"), Column("peak MiB of the process", "count")
    return Table("Cost", columns, rows, notes=each)


def _number(value: object) -> float | None:
    return value if isinstance(value, float | int) else None


def _filled(record: ResultRecord, view: str) -> list[Table]:
    return [table for table in run_tables(record, view) if table.rows and len(table.columns) > 1]


def _drawn(sets: Sequence[SetScores], options: MetricOptions) -> Iterator[tuple[str, str, str]]:
    """Title, text and SVG of every picture that the scores allow."""
    ids, _ = plots.sides(sets)
    guarantee = _GUARANTEE.format(n=len(ids.scores), delta=options.delta, correction=options.correction)
    one = {"": sets}
    plans: tuple[tuple[str, str, Callable[[], Figure | None]], ...] = (
        ("ROC", "Larger scores are flagged as OOD.", lambda: plots.roc(one)),
        ("Precision and recall", "OOD counts as positive.", lambda: plots.precision_recall(one)),
        ("Scores", "ID test beside near sets, and beside far sets.", lambda: plots.histograms(one)),
        (
            "Error rates over the threshold",
            "From the least score to the largest, the areas below FPR and FNR are AUFPR and AUFNR as shares of the "
            "panel; their weighted mean is AUTC: 0 is perfect, and a method whose scores leave a wide gap has room for "
            "a threshold.",
            lambda: plots.error_rates(one, options),
        ),
        (
            "Selective prediction",
            "Left: how often the accepted ID images are wrong. Right: ID images accepted and right, over OOD accepted.",
            lambda: plots.selective(sets),
        ),
        ("Conformal false positive rate", guarantee, lambda: plots.conformal(sets, options)),
        (
            "Accuracy by score",
            "Where a high score means that the classifier errs, rejecting by it also avoids errors.",
            lambda: plots.accuracy_by_score(sets),
        ),
        (
            "Reliability",
            "How often the classifier is right where it is so sure: below the diagonal it is surer than right. ECE is "
            "the mean distance in %.",
            lambda: plots.reliability(sets),
        ),
    )
    for number, (title, text, draw) in enumerate(plans):
        try:
            figure = draw()
        except MetricError as error:
            yield title, f"Not drawn: {error}", ""
            continue
        if figure is not None:
            yield title, text, plots.svg(figure, f"{title}. {text}", f"p{number}-")


def _per_class(sets: Sequence[SetScores], classes: Sequence[str]) -> Table | None:
    """Of each ID class: how many images, how many are flagged at the threshold of 95 % of ID, and the accuracy."""
    ids = next((s for s in sets if s.role == "id_test"), None)
    if ids is None or ids.labels is None or not len(ids.labels) or ids.labels.min() < 0:
        return None
    flagged = np.asarray(ids.scores) > fixed_thresholds(sets)["95tnr"]
    rows = []
    for index in np.unique(ids.labels):
        chosen = ids.labels == index
        name = classes[index] if index < len(classes) else f"class {index}"
        right = None if ids.correct is None else float(np.mean(ids.correct[chosen]))
        rows.append((name, int(chosen.sum()), float(flagged[chosen].mean()), right))
    rows.sort(key=lambda row: (-row[2], row[0]))
    columns = (Column("class"), Column("n", "count"), Column("flagged ↓", "percent"), Column("accuracy ↑", "percent"))
    return Table("ID test by class, at the threshold that accepts 95 % of all", columns, tuple(rows))
