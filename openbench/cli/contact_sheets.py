"""The images that a run got most wrong, for its report: opened from the benchmark, if its images are here."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openbench.api.result import names_of, opened
from openbench.core.record import ResultRecord
from openbench.core.scores import SetScores
from openbench.report.run_page import Picture, Sheet

_SIDE = 192  # pixels of a picture's longer side, at most
_OOD = ("near", "far")


def contact_sheets(
    record: ResultRecord, sets: Sequence[SetScores], most: int
) -> tuple[list[Sheet], tuple[str, ...], str]:
    """Return contact sheets, the names of the ID classes, and why there are none, empty if there are.

    The ID test images with the largest scores, and those of each OOD set with the smallest. Code that a record names
    and openbench does not ship is not run.

    Args:
        record: of the run.
        sets: its scores.
        most: images on each sheet.
    """
    if not sets or most < 1:
        return [], (), ""
    benchmark, why = opened(record)
    if benchmark is None:
        return [], (), f"no images: {why}"
    splits = {(str(split.role), split.name): split for split in benchmark.splits() if not split.unread}
    sheets = []
    for s in sets:
        split = splits.get((str(s.role), s.name))
        if split is None or len(split.keys) != len(s.scores) or str(s.role) not in ("id_test", *_OOD):
            continue
        flagged = str(s.role) == "id_test"
        order = np.argsort(-s.scores if flagged else s.scores, kind="stable")[:most]
        title = "ID test flagged first" if flagged else f"{s.name} ({s.role}) accepted first"
        pictures = [
            Picture(_png(split.items[int(at)]), str(split.keys[at]), float(s.scores[at]), _class(s, int(at), benchmark))
            for at in order
        ]
        sheets.append(Sheet(title, tuple(pictures)))
    return sheets, tuple(benchmark.classes), ""


def keys_of(record: ResultRecord) -> Mapping[tuple[str, str], Sequence[str]]:
    """Return the names of a run's images by role and set; nothing where the images are not here."""
    return names_of(record)[0]


def _class(s: SetScores, at: int, benchmark: Any) -> str:
    """The predicted class, and the true one where it is another."""
    names = benchmark.classes
    predicted = None if s.predictions is None or s.predictions[at] < 0 else names[s.predictions[at]]
    true = None if s.labels is None or s.labels[at] < 0 else names[s.labels[at]]
    if predicted is None:
        return str(true or "")
    return f"{predicted} (is {true})" if true not in (None, predicted) else str(predicted)


def _png(item: Any) -> str:
    """An image as a data URI, its longer side at most `_SIDE` pixels."""
    from PIL import Image

    image = item if isinstance(item, Image.Image) else Image.fromarray(np.asarray(item))
    image = image.convert("RGB")
    image.thumbnail((_SIDE, _SIDE))
    stream = io.BytesIO()
    image.save(stream, format="png")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
