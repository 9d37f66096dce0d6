"""The order of lessons in the part "Learn"."""

from sphinx_gallery.sorting import ExplicitOrder

LESSONS = (
    "first_table.py",
    "own_model.py",
    "own_images.py",
    "own_features.py",
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
