"""The lowest versions that pyproject.toml allows of dependencies and of some extras, as constraints for pip.

A lower bound is a promise; this is how it is tried:

    python scripts/lowest_versions.py --extras test docs > lowest.txt
    python -m venv lowest && lowest/bin/pip install -c lowest.txt -e ".[test,docs]"
    lowest/bin/python -m pytest -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning \
        -W ignore::FutureWarning

pip refuses to install where two of the bounds cannot hold together. Old versions are warned by newer ones of what they
stand on, so that such warnings are no errors here. `--without torch torchvision` leaves packages at the newest, where
an old one cannot be had.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(\[(?P<extras>[\w,.-]+)\])?\s*((>=|==|~=)\s*(?P<lowest>[\w.+!-]+))?")


def lowest(project: dict, extras: tuple[str, ...]) -> dict[str, str]:
    """Return {distribution: lowest version} of the dependencies and of some extras, those without a bound left out."""
    found = {}
    for requirement in _requirements(project, project["dependencies"], extras):
        match = REQUIREMENT.match(requirement)
        if match and match["lowest"]:
            found[match["name"]] = match["lowest"]
    return found


def _requirements(project: dict, listed: list[str], extras: tuple[str, ...]) -> Iterator[str]:
    """Yield requirements; the project's own name with extras stands for these."""
    optional = project["optional-dependencies"]
    for requirement in [*listed, *(one for extra in extras for one in optional[extra])]:
        match = REQUIREMENT.match(requirement)
        if match and match["name"] == project["name"]:
            yield from _requirements(project, [], tuple((match["extras"] or "").split(",")))
        else:
            yield requirement


def main() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", nargs="*", default=["test"], choices=sorted(project["optional-dependencies"]))
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="packages that stay at the newest")
    asked = parser.parse_args()
    found = lowest(project, tuple(asked.extras))
    if unknown := set(asked.without) - set(found):
        parser.error(f"--without names {', '.join(sorted(unknown))} — allowed: {', '.join(sorted(found))}")
    sys.stdout.writelines(f"{name}=={version}\n" for name, version in found.items() if name not in asked.without)


if __name__ == "__main__":
    main()
