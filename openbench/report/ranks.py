"""The critical-difference picture: mean ranks of methods over sets, and which of them are not separable."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from openbench.metrics.rank_ranges import bars, mean_ranks
from openbench.report.style import COLOURS, INK, finish, panels
from openbench.results.escape import plot as plain

_MOST = 30  # methods in a picture
_LINE = 0.22  # inches
_LABEL = 48  # characters


def critical_difference(names: Sequence[str], values: ArrayLike, of: str, level: float = 0.95) -> Figure:
    """Return a picture of mean ranks, best on top; a bar joins methods within the critical difference of one another.

    Of many methods the best thirty are drawn; ranks and the difference are those of all.

    Args:
        names: of the methods.
        values: (k, N) larger = better, a column per set.
        of: what is ranked, e.g. `AUROC`.
        level: one minus the family-wise error rate.

    Raises:
        MetricError: fewer than two methods or sets.

    Reference: Demšar, Journal of Machine Learning Research 7 (2006), figure 1, with the methods below one another.
    """
    found = mean_ranks(values, level)
    shown = [int(at) for at in np.argsort(found.ranks, kind="stable")][:_MOST]
    places = {method: place for place, method in enumerate(shown)}
    figure, (axes,) = panels(1, (6.4, 1.3 + _LINE * len(shown)))
    ranks = found.ranks[shown]
    axes.plot(ranks, range(len(shown)), "o", color=COLOURS[0], markersize=4)
    joined: list[list[int]] = []
    for group in bars(found):
        inside = [places[method] for method in group if method in places]
        if len(inside) > 1 and not (joined and set(inside) <= set(joined[-1])):
            joined.append(inside)
    right = float(ranks.max()) + 0.5
    step = 0.03 * (float(ranks.max() - ranks.min()) + 1)
    for number, group in enumerate(joined):
        axes.plot([right + step * number] * 2, [group[0] - 0.2, group[-1] + 0.2], color=COLOURS[1], linewidth=2.5)
    most = "" if len(shown) == len(found.ranks) else f", the best {len(shown)} of {len(found.ranks)}"
    friedman = f"Friedman p = {found.p:.2g}" if found.p >= 1e-4 else "Friedman p < 0.0001"
    axes.set_title(
        plain(f"{of} over {found.sets} sets{most}: critical difference {found.critical:.2f}, {friedman}"), fontsize=8.5
    )
    short = [f"{name[: _LABEL - 1]}…" if len(name) > _LABEL else name for name in names]
    axes.set_yticks(range(len(shown)), [plain(short[method]) for method in shown], fontsize=7.5, color=INK)
    axes.set(xlabel="mean rank (1 = best)", ylim=(len(shown) - 0.5, -0.5))
    finish(axes, None)
    return figure
