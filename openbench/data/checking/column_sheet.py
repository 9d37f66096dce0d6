"""What a split of a table looks like: how the values of each column are spread."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from openbench.core.benchmark import Split
from openbench.data.checking.contact_sheet import spaced

_SAMPLE = 10_000
_PERCENTILES = (0, 5, 25, 50, 75, 95, 100)


@dataclass(frozen=True)
class ColumnStats:
    """Numbers of a split whose items are rows of numbers.

    Args:
        where: `role/name`.
        count: rows.
        percentiles: (7, d), 0, 5, 25, 50, 75, 95 and 100 % of each column, of up to 10,000 evenly spaced rows.
    """

    where: str
    count: int
    percentiles: NDArray[np.float64]

    def __str__(self) -> str:
        low, high = self.percentiles[0], self.percentiles[-1]
        constant = int((low == high).sum())
        told = f", {constant} constant" if constant else ""
        return f"{self.where}: {self.count} rows, {len(low)} columns in [{low.min():.4g}, {high.max():.4g}]{told}"


def column_stats(split: Split) -> ColumnStats:
    """Return the numbers of a split of rows (d,).

    Raises:
        DataError: a row cannot be read.
    """
    rows = np.stack([np.asarray(split.items[int(index)], dtype=np.float64) for index in spaced(len(split), _SAMPLE)])
    return ColumnStats(f"{split.role}/{split.name}", len(split), np.percentile(rows, _PERCENTILES, axis=0))


def draw_columns(stats: ColumnStats, path: Path) -> None:
    """Write the spread of each column as PNG.

    Args:
        stats: of a split.
        path: where to; its folder exists.
    """
    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    columns = np.arange(stats.percentiles.shape[1])
    least, low, below, middle, above, high, most = stats.percentiles
    axis.vlines(columns, least, most, color="0.75", linewidth=1, label="all")
    axis.vlines(columns, low, high, color="tab:blue", alpha=0.5, linewidth=4, label="5 to 95 %")
    axis.vlines(columns, below, above, color="tab:blue", linewidth=4, label="25 to 75 %")
    axis.plot(columns, middle, "o", color="black", markersize=3, label="median")
    axis.set_title(str(stats), fontsize=11, wrap=True)
    axis.set_xlabel("column")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylabel("value")
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=100)
