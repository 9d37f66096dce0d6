"""Write how far the methods' numbers are from the independent references in their tests, and print it.

    python scripts/reference_differences.py results/claims/differences.csv
    python scripts/reference_differences.py /tmp/some.csv tests/methods/test_geometry.py

A line per test that compares arrays: how many comparisons it made, and the largest difference of a value in any of
them, relative to the largest value expected there. What is expected is a formula written out in float64, another
library, or, as the test's name says, the method itself on data that must not matter. Tests that fail end the script.
"""

import argparse
import csv
import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
METHODS = {
    name.lower()
    for file in (ROOT / "openbench" / "methods").glob("*.py")
    for name in re.findall(r"^class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
}
HEADER = ("file", "test", "comparisons", "largest difference")


class Comparisons:
    """What the comparing functions of NumPy and torch were given, by the test that called them."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], list[float]] = {}
        self._at = ("", "")

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """Note which test of which method runs."""
        words = item.name.split("[")[0].removeprefix("test_").split("_")
        count = max((k for k in range(1, len(words)) if "".join(words[:k]) in METHODS), default=0)
        self._at = "_".join(words[:count]) or item.path.stem.removeprefix("test_"), "_".join(words[count:])

    def counted(self, compare: Callable[..., None]) -> Callable[..., None]:
        """Return a comparing function that notes what it is given."""

        @wraps(compare)
        def noted(actual: Any, expected: Any, *args: Any, **rest: Any) -> None:
            compare(actual, expected, *args, **rest)
            if (apart := difference(actual, expected)) is not None:
                self.found.setdefault(self._at, []).append(apart)

        return noted

    def rows(self) -> list[tuple[str, str, int, str]]:
        """A line per test, in the order of names."""
        return [(*test, len(apart), f"{max(apart):.1e}") for test, apart in sorted(self.found.items())]


def of_methods() -> list[str]:
    """Return the test files that are named after a module of methods."""
    modules = (file.stem for file in (ROOT / "openbench" / "methods").glob("[a-z]*.py"))
    return [str(file) for name in modules if (file := ROOT / "tests" / "methods" / f"test_{name}.py").exists()]


def difference(actual: Any, expected: Any) -> float | None:
    """Return the largest difference of finite values, relative to the largest expected; None where that is zero."""
    given = (values.detach() if isinstance(values, torch.Tensor) else values for values in (actual, expected))
    a, b = np.broadcast_arrays(*(np.asarray(values, dtype=np.float64) for values in given))
    finite = np.isfinite(a) & np.isfinite(b)
    largest = np.abs(b[finite]).max(initial=0)
    return float(np.abs(a - b)[finite].max() / largest) if largest else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, help="the file to write")
    parser.add_argument("tests", nargs="*", help="files; those of a method each by default")
    options = parser.parse_args()
    comparisons = Comparisons()
    np.testing.assert_allclose = comparisons.counted(np.testing.assert_allclose)
    torch.testing.assert_close = comparisons.counted(torch.testing.assert_close)
    if failed := pytest.main(["-q", "-p", "no:cacheprovider", *(options.tests or of_methods())], plugins=[comparisons]):
        return int(failed)
    rows = comparisons.rows()
    with options.csv.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])
    for name, test, count, apart in rows:
        print(f"{apart:>8} {count:>4}  {name}: {test}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
