"""Pictures of results, to be shown in a notebook or saved: readable in print and with every common colour blindness."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from openbench.api.result import scores_of
from openbench.core.scores import SetScores
from openbench.errors import ConfigError, DataError, did_you_mean
from openbench.metrics.curve import PooledCurve
from openbench.metrics.suite import fixed_thresholds
from openbench.report.style import lines as lines_apart
from openbench.report.style import thinned
from openbench.results.escape import plot as plain
from openbench.results.leaderboard.plots import bin_edges
from openbench.results.tables.views import GROUPS

if TYPE_CHECKING:
    from openbench.api.result import Result

_PANEL = (4.4, 3.9)  # inches
_WIDE = (5.2, 4.4)
_ROW = 3  # panels beside one another
_MOST = 24
_DPI = 100
_Place = Literal["below", "lower left", "lower right"]
_FEW = 1000  # images of a set, below which its density is drawn with a third of the bins
_POINTS = 2000  # of a drawn curve


@dataclass(frozen=True, eq=False)
class _Line:
    """One curve of a panel: an ID side, an OOD set, and what it is called."""

    name: str
    ids: np.ndarray
    ood: np.ndarray


class _Picture(Figure):
    """A figure that a notebook shows, though not pyplot's, which would keep it and show it twice."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=_DPI)
        return stream.getvalue()


def figure(results: "Mapping[str, Result]", kind: str) -> Figure:
    """Return a figure of one or several results; see `Result.plot` and `Results.plot`.

    Args:
        results: by what they are called.
        kind: `roc`, `pr`, `scores` or `threshold`.

    Raises:
        ConfigError: no such kind, or more results than a picture can hold.
        CacheError: the scores of a result were not kept.
        DataError: there are no results, or no OOD set.
    """
    if kind not in KINDS:
        raise ConfigError(f"plot '{kind}' not found{did_you_mean(kind, KINDS)} — available: {', '.join(KINDS)}")
    if not 0 < len(results) <= _MOST:
        raise ConfigError(
            f"plot '{kind}': {len(results)} results — a picture holds 1 to {_MOST} — choose some of them: "
            "Results({name: results[name] for name in …})"
        )
    return KINDS[kind](results)


def _roc(results: "Mapping[str, Result]") -> Figure:
    return _curves(results, _draw_roc)


def _pr(results: "Mapping[str, Result]") -> Figure:
    return _curves(results, _draw_pr)


def _curves(results: "Mapping[str, Result]", draw: Callable[[Axes, Sequence[_Line]], None]) -> Figure:
    """A panel with a line per OOD set for one result; for several, a panel per OOD set with a line per result."""
    lines: dict[str, list[_Line]] = {}
    for name, result in results.items():
        ids, oods = _sides(result)
        for ood in oods:
            panel, label = (_called(ood), name) if len(results) > 1 else (_title(result), _called(ood))
            lines.setdefault(panel, []).append(_Line(label, np.asarray(ids.scores), np.asarray(ood.scores)))
    made, panels = _panels(len(lines), _PANEL)
    for axes, (title, drawn) in zip(panels, lines.items(), strict=True):
        draw(axes, drawn)
        axes.set_title(plain(title), fontsize=10)
    return made


def _draw_roc(axes: Axes, lines: Sequence[_Line]) -> None:
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8)
    for line, style in zip(lines, lines_apart(), strict=False):
        curve = PooledCurve.of(line.ids, line.ood)
        fpr, tpr = 1 - curve.id_accepted / curve.n, 1 - curve.ood_accepted / curve.m
        axes.plot(*thinned(fpr, tpr), **style, label=plain(f"{line.name} {100 * curve.auroc():.1f}"))
    axes.set(xlabel="FPR (ID flagged)", ylabel="TPR (OOD flagged)", xlim=(0, 1), ylim=(0, 1.005))
    _finish(axes, "AUROC in %", "lower right")


def _draw_pr(axes: Axes, lines: Sequence[_Line]) -> None:
    for line, style in zip(lines, lines_apart(), strict=False):
        curve = PooledCurve.of(line.ids, line.ood)
        hits = curve.m - curve.ood_accepted[:-1]
        precision = hits / (hits + curve.n - curve.id_accepted[:-1])
        # Where nothing is flagged, precision is 1, as in AUPR.
        recall, precision = np.append(hits / curve.m, 0.0), np.append(precision, 1.0)
        axes.plot(*thinned(recall, precision), **style, label=plain(f"{line.name} {100 * curve.aupr_out()[0]:.1f}"))
    axes.set(xlabel="recall (OOD flagged)", ylabel="precision", xlim=(0, 1), ylim=(0, 1.005))
    _finish(axes, "AUPR-out in %", "lower left")


def _scores(results: "Mapping[str, Result]") -> Figure:
    made, panels = _panels(len(results), _WIDE)
    for axes, (name, result) in zip(panels, results.items(), strict=True):
        ids, oods = _sides(result)
        groups = [("ID test", ids.scores), *((_called(ood), ood.scores) for ood in oods)]
        finite = [values[np.isfinite(values)] for _, values in groups]
        kept = [values for values in finite if values.size]
        if not kept:
            raise DataError(f"plot 'scores': '{name}' has no finite score — fix the method that produced them")
        bins = bin_edges(kept)[:: 1 if min(values.size for values in kept) >= _FEW else 3]
        for (label, values), style in zip(groups, lines_apart(), strict=False):
            clipped = np.clip(np.asarray(values, np.float64), bins[0], bins[-1])
            density = np.histogram(clipped, bins)[0] / (clipped.size * np.diff(bins))
            axes.stairs(density, bins, fill=label == "ID test", alpha=0.2, color=style["color"], linewidth=0)
            axes.stairs(density, bins, **style, label=plain(f"{label} (n = {len(values):,})"))
        axes.set(xlabel="score (larger = more OOD)", ylabel="density", xlim=(bins[0], bins[-1]))
        axes.set_title(plain(_panel_title(results, name)), fontsize=10)
        _finish(axes, None, "below")
    return made


def _threshold(results: "Mapping[str, Result]") -> Figure:
    made, panels = _panels(len(results), _WIDE)
    for axes, (name, result) in zip(panels, results.items(), strict=True):
        ids, oods = _sides(result)
        scores = [np.asarray(s.scores, np.float64) for s in (ids, *oods)]
        kept = [values[np.isfinite(values)] for values in scores]
        if not any(values.size for values in kept):
            raise DataError(f"plot 'threshold': '{name}' has no finite score — fix the method that produced them")
        ends = bin_edges([values for values in kept if values.size])
        at = np.linspace(ends[0], ends[-1], _POINTS // 2)
        styles = lines_apart()
        flagged = 1 - np.searchsorted(np.sort(scores[0]), at, side="right") / scores[0].size
        axes.plot(at, flagged, **next(styles), label="FPR: ID flagged")
        for ood, values in zip(oods, scores[1:], strict=True):
            accepted = np.searchsorted(np.sort(values), at, side="right") / values.size
            axes.plot(at, accepted, **next(styles), label=plain(f"FNR: {_called(ood)} accepted"))
        _mark(axes, fixed_thresholds(result.scores))
        axes.set(xlabel="threshold (scores above it are flagged)", ylabel="rate", xlim=(at[0], at[-1]), ylim=(0, 1.005))
        axes.set_title(plain(_panel_title(results, name)), fontsize=10)
        _finish(axes, None, "below")
    return made


def _mark(axes: Axes, thresholds: Mapping[str, float]) -> None:
    """Thresholds that can be chosen without OOD test data, as upright lines."""
    shown: dict[str, tuple[str, Any]] = {
        "95tnr": ("accepts 95 % of ID test", "-"),
        "val": ("FPR = FNR on validation", (0, (1, 2))),
    }
    for name, value in thresholds.items():
        if np.isfinite(value):
            label, dashes = shown[name]
            axes.axvline(value, color="0.35", linewidth=1.0, linestyle=dashes, label=label)


KINDS: "dict[str, Callable[[Mapping[str, Result]], Figure]]" = {
    "roc": _roc,
    "pr": _pr,
    "scores": _scores,
    "threshold": _threshold,
}


def _sides(result: "Result") -> tuple[SetScores, list[SetScores]]:
    """The ID test scores, and those of near and far sets in the order of tables."""
    scores = scores_of(result)
    ids = next(s for s in scores if s.role == "id_test")
    return ids, sorted((s for s in scores if s.role in GROUPS), key=lambda s: (GROUPS.index(s.role), s.name))


def _called(ood: SetScores) -> str:
    return f"{ood.name} ({ood.role})"


def _title(result: "Result") -> str:
    record = result.record
    parts = [record.benchmark.get("name"), record.backbone.get("name"), record.method.get("name")]
    return " · ".join(dict.fromkeys(str(part) for part in parts if part))


def _panel_title(results: "Mapping[str, Result]", name: str) -> str:
    return name if len(results) > 1 else _title(results[name])


def _panels(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, at most three in a row."""
    columns = min(count, _ROW)
    rows = -(-count // columns)
    made = _Picture(figsize=(columns * size[0], rows * size[1]), layout="constrained")
    FigureCanvasAgg(made)
    return made, [made.add_subplot(rows, columns, at + 1) for at in range(count)]


def _finish(axes: Axes, title: str | None, place: _Place) -> None:
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    look: dict[str, Any] = {"fontsize": 8, "edgecolor": "none", "handlelength": 3}
    if place == "below":
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, framealpha=0, **look)
    else:
        axes.legend(title=title, loc=place, title_fontsize=8, framealpha=0.85, **look)
