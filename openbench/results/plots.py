"""Pictures of runs, and the style of every picture: lines differ in print and for the colour-blind."""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, cycle
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.errors import MetricError
from openbench.metrics.calibration import BINS, equal_width
from openbench.metrics.conformal.corrections import correction_table
from openbench.metrics.conformal.p_values import conformal_fpr
from openbench.metrics.curve import PooledCurve
from openbench.metrics.options import MetricOptions
from openbench.metrics.rank_ranges import bars, mean_ranks
from openbench.metrics.selective.risk import SelectiveCurve, oscr, risk_coverage
from openbench.metrics.suite import fixed_thresholds
from openbench.metrics.threshold import Scale, choose_scale, threshold_areas
from openbench.results.escape import plot as plain
from openbench.results.tables.views import GROUPS

# Okabe and Ito's colours without black and yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
MOST = 24  # lines that no other one looks like
PANEL = (4.2, 3.4)  # inches
_DPI = 150
# How a figure can be saved → metadata that is left out: dates and versions.
FORMS: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
# What a page colours itself, in light and in dark: colour in the file → variable of the page.
INK, GRID, GROUND = "#1b1f24", "#d0d7de", "#fffffe"
_VARIABLES = {INK: "var(--text)", GRID: "var(--line)", GROUND: "var(--ground)"}
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud and searched
    "svg.hashsalt": "openbench",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.grid": True,  # here, not by calls on axes, which would change tick after tick
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    **{f"{axis}tick.{which}.size": 0 for axis in "xy" for which in ("major", "minor")},  # the grid has them
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.labelcolor": INK,
}
# What a page does not need of an SVG, and the digits beyond a tenth of a point.
_NEEDLESS = re.compile(
    r"<metadata>.*?</metadata>|<!--.*?-->|(?<=<g) id=\"[^\"]*\"| transform=\"rotate\(-0 [^\"]*\"", re.DOTALL
)
_PLACES = re.compile(r" (?:d|x|y|transform)=\"[^\"]*\"")
_DIGITS = re.compile(r"(?<=\.\d)\d+")
Floats = NDArray[Any]
Sets = Sequence[SetScores]
Runs = Mapping[str, Sets]
ReliabilityBins = tuple[tuple[int, int, float, float], ...]  # bin, images, mean confidence, accuracy


class Picture(Figure):
    """A figure that a notebook shows, though not pyplot's, which would keep it and show it twice."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=100)
        return stream.getvalue()


_grounds: dict[tuple[Any, ...], str] = {}  # what an axis looks like → its SVG
_given_up: dict[tuple[str, int], Figure] = {}  # kind and number of panels → a figure whose axes can be used again


def give_up(figure: Figure) -> None:
    """Leave a run's picture, which nobody looks at any more, to the next of its kind: new ticks take half the time."""
    _given_up[str(figure.get_label()), len(figure.axes)] = figure


@contextmanager
def look() -> Iterator[None]:
    """Set how pictures look, for a block that draws; within another such block there is nothing to set."""
    if all(mpl.rcParams[key] == value for key, value in _SETTINGS.items()):
        yield
    else:
        with mpl.rc_context(_SETTINGS):
            yield


def panels(
    count: int,
    size: tuple[float, float] = PANEL,
    across: int = 3,
    layout: Literal["constrained"] | None = "constrained",
) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels and their axes."""
    columns = max(1, min(count, across))
    rows = -(-count // columns)
    with look():
        figure = Picture(figsize=(columns * size[0], rows * size[1]), layout=layout)
        figure.patch.set_alpha(0.0)
        FigureCanvasAgg(figure)
        return figure, [figure.add_subplot(rows, columns, at + 1) for at in range(count)]


def lines() -> Iterator[dict[str, Any]]:
    """Yield colour and dashes of one line after another; no two of the first 24 are alike."""
    # Six colours and four kinds of dashes; the shift after twelve lines keeps pairs from coming again before 24.
    pairs = [(COLOURS[at % 6], DASHES[(at + at // 12) % 4]) for at in range(MOST)]
    return cycle({"color": colour, "linestyle": dashes, "linewidth": 1.5} for colour, dashes in pairs)


def finish(axes: Axes, place: str | None = "best", title: str | None = None) -> None:
    """Place the legend in a corner of the axes."""
    if place is not None:
        look: Any = {"loc": place, "fontsize": 7.5, "title_fontsize": 7.5, "edgecolor": "none", "framealpha": 0.8}
        look |= {"alignment": "left", "facecolor": GROUND, "labelcolor": INK}
        legend = axes.legend(title=title, **look)
        legend.get_title().set_color(INK)


def thinned(x: Floats, y: Floats, most: int = 600) -> tuple[Floats, Floats]:
    """Return the points of a curve, in equal steps along it if there are more than a picture shows.

    Args:
        x: (k,) positions.
        y: (k,) heights.
        most: points that are shown.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.size <= most:
        return x, y
    along = np.append(0.0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    points = np.unique(np.searchsorted(along, np.linspace(0.0, along[-1], most)))
    return x[points], y[points]


def svg(figure: Figure, label: str, prefix: str = "") -> str:
    """Return a figure as an SVG element for a page whose CSS has the variables text, line and ground.

    Equal figures give equal text.

    Args:
        figure: made by `panels`.
        label: a description for screen readers; plain text.
        prefix: of the ids in it, so that several can stand on one page.
    """
    # Of pictures whose layout does not depend on what is in them.
    every = [axis for axes in figure.axes if figure.get_label() for axis in (axes.xaxis, axes.yaxis)]
    common = [axis for axis in every if _ENDS.issuperset(axis.get_view_interval())]
    grounds = [_ground(figure, axis) for axis in common]
    for axis in common:
        axis.set_visible(False)
    text = _svg(figure).replace("<g>", "".join(["<g>", *grounds]), 1)
    for axis in common:
        axis.set_visible(True)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", text)
    for colour, variable in _VARIABLES.items():
        text = re.sub(re.escape(colour), variable, text, flags=re.IGNORECASE)
    attribute = re.sub(r"[&<>\"']", lambda match: f"&#{ord(match.group())};", label)
    return text.replace("<svg ", f'<svg role="img" aria-label="{attribute}" ', 1)


def _svg(figure: Figure) -> str:
    """A figure as an SVG element without what pages do not need."""
    stream = io.StringIO()
    with look():
        figure.savefig(stream, format="svg", metadata=FORMS["svg"])
    text = stream.getvalue()
    text = re.sub(r"\s*\n\s*", " ", _NEEDLESS.sub("", text[text.index("<svg") :]))
    return _PLACES.sub(lambda match: _DIGITS.sub("", match.group()), text)


def _ground(figure: Figure, axis: Axis) -> str:
    """Grid, numbers and label of an axis as SVG; they take longest to draw, and many are alike in all runs.

    Something must be drawn on its axes, since the path that clips the grid is not in here.
    """
    place, label = axis.axes.get_position().bounds, axis.get_label_text()
    key = (*figure.get_size_inches(), *place, type(axis).__name__, *axis.get_view_interval(), label)
    if key not in _grounds:
        parts = [part for axes in figure.axes for part in axes.get_children() if part is not axis]
        hidden = [part for part in (*figure.artists, *parts) if part.get_visible()]
        for part in hidden:
            part.set_visible(False)
        text = _svg(figure)
        for part in hidden:
            part.set_visible(True)
        _grounds[key] = text[text.index("<g>") : text.rindex("</g>") + 4]
    return _grounds[key]


def saved(figure: Figure, form: str) -> bytes:
    """Return a figure on white as a file; equal figures give equal bytes.

    Args:
        figure: made by `panels`.
        form: one of FORMS.
    """
    figure.patch.set_alpha(1.0)
    figure.patch.set_facecolor("white")
    stream = io.BytesIO()
    with look():
        figure.savefig(stream, format=form, dpi=_DPI, metadata=FORMS[form])
    if form == "png":  # with 256 colours it has a third of the size
        colours = Image.open(stream).convert("RGB").quantize(256, dither=Image.Dither.NONE)
        stream = io.BytesIO()
        colours.save(stream, "PNG", optimize=True)
    return stream.getvalue()


# Pictures of runs, from their scores.

_POINTS = 120  # of a drawn curve
_BINS = 60
_FEW = 1000  # images of a set, below which densities have a third of the bins
_LEFT, _RIGHT, _BELOW, _ABOVE = 0.7, 2.25, 0.5, 0.3  # inches around the axes of a run's picture; legends stand right
_GROUPS_OF_ID = 10  # of equal size, by score
_LEAST_FPR = 1e-3
_ENDS = {0, 1, 1.005, 1.01, 1.02, _LEAST_FPR}  # of axes that the pictures of all runs have alike
_MARKS: dict[str, tuple[str, Any]] = {
    "95tnr": ("accepts 95 % of ID test", "-"),
    "val": ("FPR = FNR on validation", (0, (1, 2))),
}


def roc(runs: Runs) -> Figure:
    """Return TPR, OOD flagged, over FPR, ID flagged: larger scores are flagged.

    Of one run there is a line per OOD set; of several a panel per OOD set with a line per run.

    Args:
        runs: name → scores of its sets.
    """

    def line(curve: PooledCurve) -> tuple[Floats, Floats, float]:
        return 1 - curve.id_accepted / curve.n, 1 - curve.ood_accepted / curve.m, curve.auroc()

    figure = _curves(runs, line, "AUROC in %", "FPR (ID flagged)", "TPR (OOD flagged)")
    for axes in figure.axes:
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, zorder=1)
    return figure


def precision_recall(runs: Runs) -> Figure:
    """Return precision over recall, OOD counting as positive; panels and lines as in `roc`."""

    def line(curve: PooledCurve) -> tuple[Floats, Floats, float]:
        hits = curve.m - curve.ood_accepted[:-1]
        # Where nothing is flagged, precision is 1, as in AUPR.
        precision = np.append(hits / (hits + curve.n - curve.id_accepted[:-1]), 1.0)
        return np.append(hits / curve.m, 0.0), precision, curve.aupr_out[0]

    return _curves(runs, line, "AUPR-out in %", "recall (OOD flagged)", "precision")


def _curves(
    runs: Runs, points: Callable[[PooledCurve], tuple[Floats, Floats, float]], title: str, xlabel: str, ylabel: str
) -> Figure:
    """Panels of lines, of each of which `points` gives x, y and the area below."""
    by_panel: dict[str, list[tuple[str, PooledCurve]]] = {}
    for name, sets in runs.items():
        ids, oods = sides(sets)
        for ood in oods:
            panel, line = (_called(ood), name) if len(runs) > 1 else (name, _called(ood))
            by_panel.setdefault(panel, []).append((line, PooledCurve.of(ids.scores, ood.scores)))
    figure, every = _beside_legends(title, len(by_panel))
    for axes, (panel, curves) in zip(every, by_panel.items(), strict=True):
        for (name, curve), style in zip(curves, lines(), strict=False):
            x, y, area = points(curve)
            axes.plot(*thinned(x, y, _POINTS), **style, label=plain(f"{name} {100 * area:.1f}"))
        axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(0, 1), ylim=(0, 1.005))
        _name(axes, panel, title)
    return figure


def histograms(runs: Runs) -> Figure:
    """Return the densities of the scores of ID test and of OOD sets; tails are gathered at the ends.

    Of one run there is a panel for near sets and one for far sets; of several a panel per run.

    Args:
        runs: name → scores of its sets.
    """
    by_panel: dict[str, list[SetScores]] = {}
    for name, sets in runs.items():
        ids, oods = sides(sets)
        for ood in oods:
            panel = name if len(runs) > 1 else " · ".join(part for part in (name, ood.role) if part)
            by_panel.setdefault(panel, [ids]).append(ood)
    figure, every = _beside_legends("histograms", len(by_panel))
    for axes, (panel, drawn) in zip(every, by_panel.items(), strict=True):
        groups = [np.asarray(s.scores, float) for s in drawn]
        edges = _bins(groups)[:: 1 if min(values.size for values in groups) >= _FEW else 3]
        for at, (part, values, style) in enumerate(zip(drawn, groups, lines(), strict=False)):
            density = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] / (values.size * np.diff(edges))
            if at == 0:
                axes.stairs(density, edges, fill=True, alpha=0.2, color=style["color"], linewidth=0)
            called = "ID test" if at == 0 else _called(part)
            label = plain(f"{called}, n = {values.size:,}")
            axes.plot(edges, np.append(density, 0.0), **style, drawstyle="steps-post", label=label)
        axes.set_yscale("function", functions=(np.sqrt, np.square))  # a peak does not hide the rest
        axes.set(xlabel="score (larger = more OOD)", ylabel="density (root scale)", xlim=(edges[0], edges[-1]))
        axes.locator_params(axis="y", nbins=5)  # of the new scale
        _name(axes, panel)
    return figure


def error_rates(runs: Runs, options: MetricOptions | None = None) -> Figure:
    """Return FPR and the FNR of every OOD set over the threshold, a panel per run: AUTC's picture.

    The axis spans the scores that AUTC brings to [0, 1], so that areas are AUFPR and AUFNR as shares of the panel;
    where no scale can be found, or each pair has its own, it spans what is finite, and areas are not named. Thresholds
    that can be chosen without OOD test data are marked.

    Args:
        runs: name → scores of its sets.
        options: how AUTC is scaled and weighted.

    Reference: Humblot-Renaux, Escalera, Moeslund, CVPR Workshops 2023, arXiv 2306.14658, figure 1.
    """
    figure, every = _beside_legends("error_rates", len(runs))
    for axes, (name, sets) in zip(every, runs.items(), strict=True):
        _draw_error_rates(axes, sets, options or MetricOptions())
        _name(axes, name)
    return figure


def _draw_error_rates(axes: Axes, sets: Sets, options: MetricOptions) -> None:
    ids, oods = sides(sets)
    first, *others = [np.asarray(s.scores, float) for s in (ids, *oods)]
    validation = [np.asarray(s.scores, float) for s in sets if s.role in (Role.ID_VAL, Role.OOD_VAL)]
    try:
        scales = [choose_scale(options.autc_scaling, (first, s), (first, *others), validation) for s in others]
    except MetricError:
        scales = []
    bulk = _bins([first, *others])
    common = scales[0] if len(set(scales)) == 1 else Scale(bulk[0], bulk[-1])
    at = np.linspace(common.low, common.high, _POINTS)
    areas = [threshold_areas(first, s, scale, options.autc_weight) for s, scale in zip(others, scales, strict=False)]
    styles = lines()
    fpr, style = _share_above(first, at), next(styles)
    named = f", AUFPR {100 * areas[0].aufpr:.1f}" if len(set(scales)) == 1 else ""
    axes.plot(at, fpr, **style, label=f"FPR: ID flagged{named}")
    axes.fill_between(at, fpr, alpha=0.15, color=style["color"], linewidth=0)
    for place, (ood, values) in enumerate(zip(oods, others, strict=True)):
        named = f", AUTC {100 * areas[place].autc:.1f}" if areas else ""
        axes.plot(at, 1 - _share_above(values, at), **next(styles), label=plain(f"FNR: {_called(ood)}{named}"))
    for name, value in fixed_thresholds(sets).items():
        if np.isfinite(value):
            label, dashes = _MARKS[name]
            axes.axvline(value, color="0.45", linewidth=1.0, linestyle=dashes, label=label)
    axes.set(xlabel="threshold (scores above it are flagged)", ylabel="rate", xlim=(at[0], at[-1]), ylim=(0, 1.005))


def selective(sets: Sets) -> Figure | None:
    """Return the risk–coverage curve of ID test, and CCR over FPR of every OOD set; None if nothing is classified.

    Reference: Geifman, El-Yaniv, NeurIPS 2017, arXiv 1705.08500; Dhamija et al., NeurIPS 2018, arXiv 1811.04110.
    """
    ids, oods = sides(sets)
    if ids.correct is None:
        return None
    losses = 1.0 - np.asarray(ids.correct, float)
    figure, (first, second) = _beside_legends("selective", 2)
    curves = [SelectiveCurve.of(ids.scores, losses, ood.scores) for ood in oods]
    first.plot(*thinned(*risk_coverage(curves[0]), _POINTS), **next(lines()))
    first.set(xlabel="coverage (ID accepted)", ylabel="risk (wrong among the accepted ID)", xlim=(0, 1))
    first.set_ylim(bottom=0)
    for ood, curve, style in zip(oods, curves, lines(), strict=False):
        points = thinned(curve.pair.ood_accepted / curve.pair.m, right_share(curve), _POINTS)
        second.plot(*points, **style, label=plain(f"{_called(ood)} {100 * oscr(curve):.1f}"))
    second.set_xscale("symlog", linthresh=1e-2)
    _decades(second, [0, 0.01, 0.1, 1])
    second.set(xlabel="OOD accepted", ylabel="CCR (ID accepted and right)", xlim=(0, 1), ylim=(0, 1.005))
    _legend(second, "OSCR in %")
    return figure


def right_share(curve: SelectiveCurve) -> Floats:
    """Return CCR, the share of ID inputs that are accepted and right, at every threshold."""
    return np.asarray((curve.pair.id_accepted - curve.cumulated[curve.pair.id_accepted]) / curve.pair.n)


def conformal(sets: Sets, options: MetricOptions | None = None) -> Figure:
    """Return the ROC of every OOD set over the FPR that holds with probability 1 − δ over the draw of ID test images.

    A faint line beside each is the ROC over the measured FPR.

    Args:
        sets: of a run.
        options: δ and the correction.

    Reference: Bates et al., Annals of Statistics 51 (2023), arXiv 2104.08279; Magesh et al., 2022, arXiv 2206.09522.
    """
    options = options or MetricOptions()
    ids, oods = sides(sets)
    table = correction_table(len(ids.scores), options.delta, options.correction)
    figure, (axes,) = _beside_legends("conformal", 1)
    for ood, style in zip(oods, lines(), strict=False):
        curve = PooledCurve.of(ids.scores, ood.scores)
        flagged = curve.n - curve.id_accepted
        tpr = 1 - curve.ood_accepted / curve.m
        sure, measured = (np.maximum(fpr, _LEAST_FPR) for fpr in (conformal_fpr(flagged, table), flagged / curve.n))
        axes.plot(*thinned(sure, tpr, _POINTS), **style, label=plain(_called(ood)))
        axes.plot(*thinned(measured, tpr, _POINTS), **{**style, "linewidth": 0.8, "alpha": 0.5})
    axes.set_xscale("log")
    _decades(axes, [_LEAST_FPR, 0.01, 0.1, 1])
    axes.set(xlabel="FPR", ylabel="TPR", xlim=(_LEAST_FPR, 1), ylim=(0, 1.005))
    _legend(axes, "over the guaranteed FPR;", "faint: over the measured")
    return figure


def accuracy_by_score(sets: Sets) -> Figure | None:
    """Return the accuracy in ten groups of equal size of the ID test images, from the lowest scores to the highest."""
    ids, _ = sides(sets)
    if ids.correct is None:
        return None
    order = np.argsort(ids.scores, kind="stable")
    parts = [part for part in np.array_split(np.asarray(ids.correct, float)[order], _GROUPS_OF_ID) if part.size]
    means = np.array([part.mean() for part in parts])
    error = 1.96 * np.sqrt(means * (1 - means) / [part.size for part in parts])
    figure, (axes,) = _beside_legends("accuracy_by_score", 1)
    edges = np.linspace(0, 1, len(parts) + 1)
    axes.stairs(means, edges, fill=True, color=COLOURS[0], alpha=0.8, linewidth=0)
    axes.errorbar((edges[1:] + edges[:-1]) / 2, means, error, fmt="none", ecolor=INK)
    axes.set(xlabel="ID test images by score, lowest first (share)", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    return figure


def reliability_bins(sets: Sets) -> ReliabilityBins | None:
    """Return the bins of ID test that have images, equal for all methods on one network.

    The confidence is the largest probability; None without class probabilities.

    Reference: Guo, Pleiss, Sun, Weinberger, ICML 2017, arXiv 1706.04599, figure 1, with 15 bins as there.
    """
    ids, _ = sides(sets)
    if ids.correct is None or ids.probabilities is None:
        return None
    confidence, right = np.asarray(ids.probabilities, float).max(axis=1), np.asarray(ids.correct, float)
    bins = equal_width(confidence)
    counts = np.bincount(bins, minlength=BINS)
    sums = [np.bincount(bins, weights, BINS) for weights in (confidence, right)]
    filled = np.flatnonzero(counts)
    return tuple((int(at), int(counts[at]), *(float(total[at] / counts[at]) for total in sums)) for at in filled)  # type: ignore[misc]


def reliability_of(bins: ReliabilityBins) -> Figure:
    """Return the picture of `reliability_bins`; ECE is the mean over images of |accuracy − confidence| of their bin."""
    filled, counts, mean, accuracy = map(np.array, zip(*bins, strict=True))
    ece = float((counts * np.abs(accuracy - mean)).sum() / counts.sum())
    figure, (first, second) = _beside_legends("reliability_of", 2)
    first.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    first.plot(mean, accuracy, marker="o", markersize=4, **next(lines()), label=f"ECE {100 * ece:.2f}")
    first.set(xlabel="confidence (mean of the bin)", ylabel="accuracy", xlim=(0, 1.01), ylim=(0, 1.01))
    _legend(first)
    second.bar((filled + 0.5) / BINS, counts / counts.sum(), 0.9 / BINS, color=COLOURS[0])
    second.set(xlabel="confidence", ylabel="share of the ID test images", xlim=(0, 1.01))
    return figure


# What `Result.plot` calls the pictures that one run or several have.
KINDS: Mapping[str, Callable[[Runs], Figure]] = {
    "roc": roc,
    "pr": precision_recall,
    "scores": histograms,
    "threshold": error_rates,
}


def sides(sets: Sets) -> tuple[SetScores, list[SetScores]]:
    """Return the scores of ID test, and of near and far sets in the order of tables.

    Raises:
        MetricError: there is no ID test set or no OOD set, or more than one ID test set.
    """
    ids = [s for s in sets if s.role == Role.ID_TEST]
    oods = sorted((s for s in sets if s.role in GROUPS), key=lambda s: (GROUPS.index(s.role), s.name))
    if len(ids) != 1 or not oods:
        raise MetricError(f"a picture of {len(ids)} ID test sets and {len(oods)} OOD sets — give the scores of one run")
    return ids[0], oods


def _beside_legends(kind: str, count: int) -> tuple[Figure, list[Axes]]:
    """Panels with room for a legend at the right of each; fixed margins take half the time of a layout by content."""
    if used := _given_up.pop((kind, count), None):
        inside = [(*axes.lines, *axes.patches, *axes.collections, *axes.texts) for axes in used.axes]
        for artist in (*used.artists, *chain(*inside)):
            artist.remove()
        for axes in used.axes:
            axes.relim()
            axes.autoscale()
        return used, used.axes
    width, height = PANEL[0] + _RIGHT, PANEL[1]
    figure, every = panels(count, (width, height), 2, layout=None)
    figure.set_label(kind)
    whole, high = figure.get_size_inches()
    inner, upper = width - _LEFT - _RIGHT, height - _BELOW - _ABOVE
    figure.subplots_adjust(
        left=_LEFT / whole,
        right=1 - _RIGHT / whole,
        bottom=_BELOW / high,
        top=1 - _ABOVE / high,
        wspace=(_LEFT + _RIGHT) / inner,
        hspace=(_BELOW + _ABOVE) / upper,
    )
    for axes in every:  # few ticks, and labels and titles at fixed places, take a quarter of the time less
        axes.locator_params(axis="x", nbins=4)
        axes.locator_params(axis="y", nbins=5)
        axes.xaxis.set_label_coords(0.5, -0.28 / upper)
        axes.yaxis.set_label_coords(-0.52 / inner, 0.5)
    return figure, every


def _name(axes: Axes, panel: str, *titles: str) -> None:
    """Write the title of a panel, and its legend."""
    axes.set_title(plain(panel), fontsize=9, y=1.0)
    _legend(axes, *titles)


def _legend(axes: Axes, *titles: str) -> None:
    """Write titles, and names of lines with their looks, at the right: in half the time of matplotlib's legend."""
    named = zip(*axes.get_legend_handles_labels(), strict=True)
    for row, (line, text) in enumerate([*((None, title) for title in titles), *named]):
        y = 0.985 - 0.058 * row
        if line is not None:
            sample = Line2D([1.03, 1.09], [y, y])
            sample.update_from(line)
            sample.set(transform=axes.transAxes, clip_on=False)
            axes.figure.add_artist(sample)
        place = 1.115 if line is not None else 1.03
        axes.text(place, y, text, fontsize=7.5, color=INK, va="center", transform=axes.transAxes)


def _decades(axes: Axes, places: Sequence[float]) -> None:
    """Few ticks, as plain numbers: powers of ten and marks between them take longer than the rest of a picture."""
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.minorticks_off()


def _called(ood: SetScores) -> str:
    return f"{ood.name} ({ood.role})"


def _share_above(values: Floats, at: Floats) -> Floats:
    return np.asarray(1 - np.searchsorted(np.sort(values), at, side="right") / values.size)


def _bins(groups: Sequence[Floats]) -> Floats:
    """Edges of bins that hold the bulk of every group, so that a few extreme scores do not squeeze the rest."""
    finite = [values[np.isfinite(values)] for values in groups]
    low = min((float(np.quantile(values, 0.002)) for values in finite if values.size), default=0.0)
    high = max((float(np.quantile(values, 0.998)) for values in finite if values.size), default=0.0)
    if not high > low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, _BINS + 1)


_LABEL = 48  # characters
_RANKS = 30  # methods in a picture of mean ranks


def critical_difference(
    names: Sequence[str], values: ArrayLike, of: str, over: str = "sets", level: float = 0.95
) -> Figure:
    """Return a picture of mean ranks, best on top; a bar joins methods within the critical difference.

    Of many methods the best thirty are drawn; ranks and the difference are computed over all.

    Args:
        names: of the methods.
        values: (k, N) larger = better, a column per set or network.
        of: what is ranked, e.g. `AUROC`.
        over: what the columns are.
        level: one minus the family-wise error rate.

    Raises:
        MetricError: fewer than two methods or sets.

    Reference: Demšar, Journal of Machine Learning Research 7 (2006), figure 1, turned by 90 degrees.
    """
    ranking = mean_ranks(values, level)
    best = [int(at) for at in np.argsort(ranking.ranks, kind="stable")][:_RANKS]
    figure, (axes,) = panels(1, (6.4, 1.3 + 0.22 * len(best)))
    ranks = ranking.ranks[best]
    axes.plot(ranks, range(len(best)), "o", color=COLOURS[0], markersize=4)
    right = float(ranks.max()) + 0.5
    step = 0.03 * (float(ranks.max() - ranks.min()) + 1)
    for number, group in enumerate(bars(ranking._replace(ranks=ranks))):
        axes.plot([right + step * number] * 2, [group[0] - 0.2, group[-1] + 0.2], color=COLOURS[1], linewidth=2.5)
    most = "" if len(best) == len(ranking.ranks) else f", the best {len(best)} of {len(ranking.ranks)}"
    friedman = f"Friedman p = {ranking.p:.2g}" if ranking.p >= 1e-4 else "Friedman p < 0.0001"
    axes.set_title(
        plain(f"{of} over {ranking.sets} {over}{most}: critical difference {ranking.critical:.2f}, {friedman}"),
        fontsize=8.5,
    )
    axes.set_yticks(range(len(best)), [shortened(names[at]) for at in best], fontsize=7.5, color=INK)
    axes.set(xlabel="mean rank (1 = best)", ylim=(len(best) - 0.5, -0.5))
    return figure


def shortened(label: str) -> str:
    """Return the name of a row as a picture writes it."""
    return plain(label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…")
