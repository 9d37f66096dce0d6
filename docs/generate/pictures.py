"""The manual's pictures: drawn ones, and curves of committed runs, as SVG that takes the page's colours."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from generate.rows import ROOT, shown_rows
from openbench.core.scores import SetScores
from openbench.metrics import auroc
from openbench.metrics.threshold import Scale, threshold_areas
from openbench.results import plots
from openbench.results.plots import COLOURS, GRID, INK, finish, panels, svg
from openbench.results.scores.stored import ScoreStore

RUNS = {"energy": "a36bca8a2f40c82f", "knn": "0f1eafcfb5ce08fb", "mds": "fcbeaf92f0c5d428"}
STAGES = (
    ("image", "from a list of\nfiles, digested"),
    ("network", "one pass for\nall methods"),
    ("columns", "features, logits\nin a checked cache"),
    ("method", "fit on ID train,\ntuned on validation"),
    ("scores", "one number\nper image"),
    ("metrics", "with their\nuncertainty"),
    ("record", "written once,\nnamed by content"),
)
SPLITS = (
    ("ID train", "the network learns", 0),
    ("ID validation", "tuning, calibration", 1),
    ("ID test", "the numbers", 2),
    ("covariate-shifted ID", "full-spectrum numbers", 2),
    ("outliers", "some trainings learn", 0),
    ("validation OOD", "tuning", 1),
    ("near OOD", "the numbers", 2),
    ("far OOD", "the numbers", 2),
)


def written(folder: Path) -> None:
    """Write every picture below a folder as a file to include."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (draw, label, caption) in PICTURES.items():
        text = f"```{{raw}} html\n<figure class='picture'>{svg(draw(), label)}</figure>\n```\n\n*{caption}*\n"
        _put(folder / f"{name}.md", text)
    _put(folder / "first_table.md", shown_rows("digits", ("mds_pp", "knn", "vim", "energy", "msp")))


def way_of_an_image() -> Figure:
    """Seven stages from an image to a record."""
    figure, (axes,) = panels(1, (9.6, 1.9))
    axes.set(xlim=(0, len(STAGES) * 1.4), ylim=(0, 1))
    axes.axis("off")
    for at, (name, text) in enumerate(STAGES):
        _box(axes, (at * 1.4 + 0.05, 0.1), (1.14, 0.8), COLOURS[0] if at < 3 else COLOURS[1] if at < 5 else COLOURS[2])
        axes.text(at * 1.4 + 0.62, 0.68, name, ha="center", va="center", fontsize=10, weight="bold", color=INK)
        axes.text(at * 1.4 + 0.62, 0.36, text, ha="center", va="center", fontsize=7.2, color=INK)
        if at:
            tip = {"arrowstyle": "-|>", "color": INK, "linewidth": 1}
            axes.annotate("", (at * 1.4 + 0.05, 0.5), (at * 1.4 - 0.2, 0.5), arrowprops=tip)
    return figure


def splits() -> Figure:
    """Which images are used for what: rows are stages, and no arrow leads back."""
    figure, (axes,) = panels(1, (9.0, 3.1))
    axes.set(xlim=(-1.3, 4 * 2 + 0.1), ylim=(-0.2, 3.15))
    axes.axis("off")
    used = [0.0, 0.0, 0.0]
    for row, title in enumerate(("training", "validation", "test")):
        axes.text(-1.25, 2.55 - row, title, va="center", fontsize=10, weight="bold", color=INK)
    for name, text, row in SPLITS:
        out = "OOD" in name or name == "outliers"
        left, low = used[row], 2.2 - row
        _box(axes, (left, low), (1.85, 0.7), COLOURS[1] if out else COLOURS[0])
        axes.text(left + 0.92, low + 0.46, name, ha="center", va="center", fontsize=9, color=INK)
        axes.text(left + 0.92, low + 0.2, text, ha="center", va="center", fontsize=7.5, color=INK)
        used[row] += 2.0
    for row in (1, 2):
        axes.axhline(3.05 - row, color=GRID, linewidth=1)
    return figure


def histograms() -> Figure:
    """KNN's scores on CIFAR-10."""
    return plots.histograms({"": _scores("knn")})


def curves() -> Figure:
    """ROC of three methods on the near sets."""
    return plots.roc({name: _near(name) for name in RUNS})


def threshold_curves() -> Figure:
    """FPR and FNR over the threshold."""
    return plots.error_rates({"": _near("knn")})


def band() -> Figure:
    """The conformal band around the ROC."""
    return plots.conformal(_near("knn"))


def same_area() -> Figure:
    """Two detectors with one AUROC, of which one has a threshold that hardly matters."""
    rng = np.random.default_rng(0)
    ids, oods = rng.normal(0.25, 0.08, 4000), rng.normal(0.60, 0.12, 4000)
    figure, axes = panels(2, (4.2, 3.0))
    for place, (name, bend) in zip(axes, (("spread out", 1.0), ("crowded", 6.0)), strict=True):
        a, b = (np.clip(values, 0, 1) ** bend for values in (ids, oods))
        scale = Scale(0.0, 1.0)
        areas = threshold_areas(a, b, scale)
        t = np.linspace(0, 1, 400)
        for colour, label, rate in (
            (COLOURS[0], "FPR", (a[None] > t[:, None]).mean(1)),
            (COLOURS[1], "FNR", (b[None] <= t[:, None]).mean(1)),
        ):
            place.plot(t, rate, color=colour, label=label)
            place.fill_between(t, rate, color=colour, alpha=0.15, linewidth=0)
        place.set_title(f"{name}: AUROC {100 * auroc(a, b):.1f}, AUTC {100 * areas.autc:.1f}", fontsize=9, color=INK)
        place.set(xlabel="threshold", ylabel="rate", xlim=(0, 1), ylim=(0, 1.005))
        finish(place, "center right")
    return figure


Drawing = Callable[[], Figure]
# Name → what draws it, what it shows in a few words for those who cannot see it, and the line below it.
PICTURES: dict[str, tuple[Drawing, str, str]] = {
    "way": (way_of_an_image, "Stages from an image to a record", "The way of an image through the tool."),
    "splits": (
        splits,
        "Which images are used for what",
        "Blue: in-distribution. Orange: out. Nothing leads from a lower row to one above.",
    ),
    "histograms": (
        histograms,
        "Histograms of KNN scores",
        "KNN on CIFAR-10 with a released ResNet-20: scores of ID test and of each OOD set.",
    ),
    "roc": (curves, "ROC of three methods", "Three methods on the near sets of CIFAR-10."),
    "thresholds": (
        threshold_curves,
        "FPR and FNR over the threshold",
        "KNN on the near sets of CIFAR-10: the area below FPR is AUFPR, that below FNR AUFNR; AUTC is their mean.",
    ),
    "band": (
        band,
        "ROC with its conformal band",
        "KNN on the near sets of CIFAR-10: with probability 1 − δ the true FPR is not above the corrected one.",
    ),
    "same_area": (
        same_area,
        "Two detectors with equal AUROC",
        "The same ranking, and so the same AUROC; on the right a small error in the threshold costs much more.",
    ),
}


def _put(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], colour: str) -> None:
    axes.add_patch(
        FancyBboxPatch(
            corner, *size, boxstyle="round,pad=0,rounding_size=0.08", facecolor=colour + "2e", edgecolor=colour
        )
    )


@cache
def _scores(method: str) -> tuple[SetScores, ...]:
    return tuple(ScoreStore(ROOT / "results" / "scores").read(RUNS[method]))


def _near(method: str) -> list[SetScores]:
    return [one for one in _scores(method) if str(one.role) != "far"]
