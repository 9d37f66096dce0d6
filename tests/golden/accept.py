"""Accept what openbench computes now as its golden values: of new classes, and of those whose version was raised.

    python tests/golden/accept.py                 every class
    python tests/golden/accept.py methods/KNN …   these
    python tests/golden/accept.py --lowest methods/DAGMM …   these, as the lowest versions of libraries compute them

A class whose values moved while its version did not is refused, with what to do. Values that hold stay as they are.
Exit code 0: everything holds or was accepted; 2: something was refused.
"""

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]


def main(words: list[str]) -> int:
    """Accept, and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="KIND/CLASS")
    parser.add_argument("--lowest", action="store_true")
    given = parser.parse_args(words)
    names = given.names
    if given.lowest and not names:
        parser.error("--lowest needs names: only numbers that are other libraries' have values of their own there")
    # Seconds to import; --help needs none of it.
    import golden_values as golden

    if given.lowest and not golden.on_lowest():
        parser.error(
            f"--lowest takes values with torch {golden.lowest_torch()}, the lowest that pyproject.toml allows, and "
            f"torch {golden.made_with()['torch']} is installed — scripts/lowest_versions.py tells how to get the others"
        )
    found = golden.entries()
    unknown = [name for name in names if name not in found]
    if unknown:
        parser.error(f"{', '.join(unknown)} have no golden values — known: {', '.join(found)}")
    refused = False
    for name in names or found:
        folder = golden.LOWEST if given.lowest else golden.FOLDER
        path, stored = folder / f"{name}.json", golden.read(name, folder)
        try:
            new = golden.accepted(found[name], stored, anyway=name in names)
        except ValueError as error:
            refused = True
            print(f"refused: {name}: {error}", file=sys.stderr)
            continue
        if stored is None or new["cases"] != stored["cases"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(golden.text(new), encoding="utf-8")
            print(f"accepted: {name}")
    for path in [] if names else sorted(golden.FOLDER.rglob("*.json")):
        if path.relative_to(golden.FOLDER).with_suffix("").as_posix() not in found:
            path.unlink()
            print(f"removed: {path.name}, of a class that is gone")
    return 2 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
