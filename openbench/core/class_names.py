"""Lists of class names: one label for each class."""

from collections import Counter
from collections.abc import Sequence

from openbench.core.benchmark import canonical
from openbench.errors import DataError


def check_distinct(classes: Sequence[str], where: str) -> None:
    """Check that no class is named twice: two labels would stand for the same images.

    Names that differ only in case, spaces or punctuation are the same, as where ID and OOD classes are compared.

    Raises:
        DataError: a class is named twice.
    """
    count = Counter(map(canonical, classes))
    twice = sorted({name for name in classes if count[canonical(name)] > 1 and canonical(name)})
    if twice:
        raise DataError(
            f"{where}: two classes have the same name — found {', '.join(map(repr, twice[:5]))} among {len(classes)} "
            "class names — one name for each class — rename one of the two, or merge them"
        )
