"""The report of a run: a page of settings, tables and plots, made from its record and scores."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.errors import ConfigError, MetricError, pip_install
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
_ELSEWHERE = ("overview", "trials")  # views that the page shows outside of "All metrics"
_GUARANTEE = (
    "With probability 1 − δ over the draw of the {n:,} ID test images, the threshold at guaranteed FPR α flags at most "
    "a share α of new ID images. The TPR is not guaranteed. δ = {delta}, correction: {correction}."
)
_RELIABILITY = "Accuracy by confidence of the classifier: below the diagonal it is overconfident. ECE in %."


@dataclass(frozen=True)
class Picture:
    """One image of a contact sheet.

    Args:
        source: a data URI of a PNG.
        name: its line in the benchmark's list.
        score: of the method.
        note: e.g. the class.
    """

    source: str
    name: str
    score: float
    note: str = ""


@dataclass(frozen=True)
class Sheet:
    """A row of images with a title."""

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
    """Return the HTML of a run, a pure function of its arguments.

    Args:
        record: of the run.
        sets: its scores; without them there are no plots, and the page says so.
        sheets: images with the highest and lowest scores.
        classes: names of the ID classes, by index.
        command: the command that reproduces the run; empty if unknown.
        stylesheet: address of `run_style`; empty to include it.
    """
    options, overview = options_of(record), run_tables(record)[0]
    facts = _facts(record)
    deviations = facts["not as defined"]  # the page begins with them
    notes = tuple(note for note in overview.notes if not deviations or deviations not in note)
    with plots.look():
        pictures = list(_drawn(sets, options)) if sets else []
    title = " · ".join(str(part) for part in (record.method["name"], record.benchmark["name"], record.backbone["name"]))
    return template(_HERE / "templates" / "run.html.j2").render(
        title=title,
        record=record,
        facts=facts,
        overview=replace(overview, notes=notes),
        tables=[(view, tables) for view in VIEWS if view not in _ELSEWHERE and (tables := _filled(record, view))],
        trials=[
            replace(table, title="Hyper-parameters tried on validation data") for table in _filled(record, "trials")
        ],
        cost=_cost(record),
        pictures=pictures,
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


@lru_cache
def template(path: Path) -> "Template":
    """Return a page's template, which escapes all values.

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
    provenance = record.provenance
    utc, version, commit = (provenance.get(key) or "?" for key in ("utc", "openbench", "git_sha"))
    params = ", ".join(f"{key}={value}" for key, value in record.method.get("params", {}).items())
    deviations = "; ".join(map(str, record.benchmark.get("deviations") or ()))
    return {
        "benchmark": f"{record.benchmark['name']}, definition {record.benchmark.get('digest', '?')}",
        "not as defined": deviations,
        "method": f"{record.method['name']}, version {record.method.get('version')}",
        "hyper-parameters": params,
        "tuned": ", ".join(f"{key}={value}" for key, value in record.tuned.items()),
        "reference": record.method.get("reference", ""),
        "backbone": record.backbone["name"],
        "training": record.backbone.get("training") or "released weights",
        "weights": record.backbone.get("weights_sha256", ""),
        "seed": record.config.get("seed"),
        "date": f"{utc}, openbench {version}, commit {commit}",
        "device": provenance.get("device", ""),
        "record": record.run_id,
    }


def _cost(record: ResultRecord) -> Table | None:
    """Time and peak memory of each stage of the run; None if the record states neither."""
    provenance, spent = record.provenance, cost_of(record)["ms"]
    seconds, peak = (provenance.get(key) or {} for key in ("seconds", "peak_mib"))
    rows = tuple((stage, seconds.get(stage), peak.get(stage)) for stage in dict.fromkeys((*seconds, *peak)))
    if not rows:
        return None
    each = () if spent is None else (f"Scoring takes {spent:.3g} ms per image with cached features.",)
    columns = Column("stage"), Column("seconds", "number"), Column("peak memory (MiB)", "count")
    return Table("Cost", columns, rows, notes=each)


def _filled(record: ResultRecord, view: str) -> list[Table]:
    return [table for table in run_tables(record, view) if table.rows and len(table.columns) > 1]


def _drawn(sets: Sequence[SetScores], options: MetricOptions) -> Iterator[tuple[str, str, str]]:
    """Title, text and SVG of every plot that the scores allow."""
    ids, _ = plots.sides(sets)
    guarantee = _GUARANTEE.format(n=len(ids.scores), delta=options.delta, correction=options.correction)
    one = {"": sets}
    plans: tuple[tuple[str, str, Callable[[], Figure | None]], ...] = (
        ("ROC", "OOD is the positive class; larger scores are flagged.", lambda: plots.roc(one)),
        ("Precision–recall", "OOD is the positive class.", lambda: plots.precision_recall(one)),
        ("Score histograms", "ID test with near OOD and with far OOD sets.", lambda: plots.histograms(one)),
        (
            "Error rates by threshold",
            "The areas below FPR and FNR are AUFPR and AUFNR; their weighted mean is AUTC (0 is perfect): a small AUTC "
            "means a wide range of good thresholds.",
            lambda: plots.error_rates(one, options),
        ),
        (
            "Selective prediction",
            "Left: error rate among accepted ID images, by coverage. Right: correct classification rate (CCR) by the "
            "share of OOD accepted (OSCR).",
            lambda: plots.selective(sets),
        ),
        ("Conformal false positive rate", guarantee, lambda: plots.conformal(sets, options)),
        (
            "Accuracy by score",
            "Accuracy that falls with the score means that rejecting by the score also avoids classification errors.",
            lambda: plots.accuracy_by_score(sets),
        ),
    )
    for number, (title, text, draw) in enumerate(plans):
        try:
            figure = draw()
        except MetricError as error:
            yield title, f"No plot: {error}", ""
            continue
        if figure is not None:
            yield title, text, plots.svg(figure, f"{title}. {text}", f"p{number}-")
            plots.give_up(figure)
    bins = plots.reliability_bins(sets)
    if bins is not None:
        yield "Reliability", _RELIABILITY, _reliability_svg(bins)


@lru_cache(maxsize=64)  # one network classifies alike in the runs of all its methods
def _reliability_svg(bins: plots.ReliabilityBins) -> str:
    return plots.svg(plots.reliability_of(bins), f"Reliability. {_RELIABILITY}", "reliability-")


def _per_class(sets: Sequence[SetScores], classes: Sequence[str]) -> Table | None:
    """Images, share flagged at the threshold that accepts 95 % of ID, and accuracy of each ID class."""
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
    return Table("ID test by class, at the threshold that accepts 95 % of all ID images", columns, tuple(rows))
