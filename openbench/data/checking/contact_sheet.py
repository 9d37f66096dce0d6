"""Contact sheets of splits: some of the images with their labels, and numbers that reveal mistakes."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from openbench.core.benchmark import Image, Split
from openbench.data.loading import channel_statistics
from openbench.data.own.images import NO_CLASS
from openbench.data.sources.base import spaced

_COLUMNS, _ROWS = 12, 6
_TILE = 0.78  # of a square's side, for the longer side of an image
_SAMPLE = 500
_NAMED = 40  # classes below the bars


def class_of_each(split: Split, names: tuple[str, ...]) -> list[str]:
    """Return a class per image: the ID class where there is one, else the set's only class, else the key's folder.

    Args:
        split: any.
        names: the ID classes in label order.
    """
    if split.role.is_id:
        return [names[label] for label in split.labels]
    if len(split.classes) == 1:
        return list(split.classes) * len(split)
    folders = [key.rpartition("/")[0].rpartition("/")[2] for key in split.keys]
    # A folder of all images is a part of the data set, such as `test`.
    return folders if len(set(folders)) > 1 else [NO_CLASS] * len(folders)


def stats_of(split: Split, names: tuple[str, ...]) -> str:
    """Return the statistics of a split as text; sizes and colours are those of up to 500 evenly spaced images.

    Args:
        split: any.
        names: the ID classes in label order.

    Raises:
        DataError: one of its images cannot be read.
    """
    shapes, grey = list[tuple[int, int]](), list[bool]()

    def images() -> Iterator[Image]:  # one at a time: photographs are large
        for index in spaced(len(split), _SAMPLE):
            image = split.items[int(index)]
            shapes.append((image.shape[0], image.shape[1]))
            grey.append(image.ndim == 2 or not np.ptp(image, axis=2).any())
            yield image

    mean, std = channel_statistics(images())
    sizes, classes = Counter(shapes).most_common(), Counter(class_of_each(split, names))
    height, width = sizes[0][0]
    size = f"{height}×{width}" if len(sizes) == 1 else f"{len(sizes)} sizes, mostly {height}×{width}"
    colour = f"mean {_numbers(mean)}, std {_numbers(std)}" + (f", {np.mean(grey):.0%} grey" if any(grey) else "")
    few, many = min(classes.values()), max(classes.values())
    told = f"{len(classes)} classes of {few} to {many}" if len(classes) > 1 else f"1 class of {many}"
    told = "classes not named" if set(classes) == {NO_CLASS} else told
    return f"{split.role}/{split.name}: {len(split)} images, {size}, {colour}; {told}"


def table_line(split: Split) -> str:
    """Return the statistics of up to 10,000 evenly spaced rows (d,) of a split as text."""
    rows = np.stack([np.asarray(split.items[int(index)]) for index in spaced(len(split), 10_000)])
    constant = int((np.ptp(rows, axis=0) == 0).sum())
    columns = f"{rows.shape[1]} columns in [{rows.min():.4g}, {rows.max():.4g}]"
    return f"{split.role}/{split.name}: {len(split)} rows, {columns}" + (f", {constant} constant" if constant else "")


def draw(split: Split, names: tuple[str, ...], stats: str, path: Path) -> None:
    """Write the contact sheet of a split as PNG: evenly spaced images, labels and sizes above, and images per class.

    The images are squares of side 1 on one pair of axes; axes of their own would take five times as long.

    Args:
        split: any.
        names: the ID classes in label order.
        stats: of the split, for the title.
        path: where to; its folder exists.
    """
    figure = Figure(figsize=(15, 10.5), layout="constrained")
    figure.suptitle(stats, fontsize=11, wrap=True)
    classes = class_of_each(split, names)
    axis, bars = figure.subplots(2, height_ratios=(8, 2))
    for place, index in enumerate(spaced(len(split), _ROWS * _COLUMNS)):
        row, column = divmod(place, _COLUMNS)
        image = split.items[int(index)]
        height, width = _TILE * np.array(image.shape[:2]) / max(image.shape[:2])
        middle, low = column + 0.5, row + 1
        extent = (middle - width / 2, middle + width / 2, low, low - height)
        axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest", extent=extent)
        label = f"{_short(classes[index])}\n{image.shape[0]}×{image.shape[1]}"
        axis.text(middle, low - height - 0.02, label, fontsize=7, ha="center", va="bottom")
    axis.set(xlim=(0, _COLUMNS), ylim=(_ROWS, 0), aspect="equal")
    axis.axis("off")
    counts = Counter(classes).most_common()
    bars.bar(range(len(counts)), [n for _, n in counts], width=0.8 if len(counts) <= _NAMED else 1.0)
    named = counts if len(counts) <= _NAMED else []
    bars.set_xticks(range(len(named)), [_short(name) for name, _ in named], rotation=45 if len(named) > 12 else 0)
    bars.set(xlabel=f"{len(counts)} classes, most frequent first", ylabel="images")
    figure.savefig(path, dpi=100)


def _numbers(values: NDArray[np.float64]) -> str:
    return "[" + ", ".join(f"{value:.3f}" for value in values) + "]"


def _short(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"
