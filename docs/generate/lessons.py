"""The lessons of the part "Learn": their order, and what they find when they begin."""

import os
import shutil
from pathlib import Path

from sphinx_gallery.sorting import ExplicitOrder

PLACES = Path(__file__).parents[1] / "_build" / "lessons"
LESSONS = (
    "first_table.py",
    "own_model.py",
    "own_images.py",
    "own_features.py",
    "texts.py",
    "time_series.py",
    "own_method.py",
    "comparing_two_methods.py",
    "papers_table.py",
    "detector.py",
    "on_a_cluster.py",
    "foundation_model.py",
)


class Ordered(ExplicitOrder):
    """Lessons as listed, others after them."""

    def __init__(self, *_: object) -> None:
        super().__init__([*LESSONS, "*"])


def apart(_: object, file: str) -> None:
    """Give a lesson a cache and a results folder of its own, both empty, as they are for who begins with it.

    Args:
        file: the lesson; its folders are in `PLACES`.
    """
    place = PLACES / Path(file).stem
    shutil.rmtree(place, ignore_errors=True)
    os.environ |= {"OPENBENCH_CACHE": str(place / "cache"), "OPENBENCH_RESULTS": str(place / "results")}
