"""Golden values on disk: how they are read, compared, and accepted.

`values/<kind>/<Class>.json` holds, for every case of a class, its version, the numbers, and how far each may be off. A
number is kept to eight digits, one more than float32 carries.

How far a number may be off follows from rounding. When values are accepted, every case is computed a few times more as
other processors would (golden_rounding): the largest difference seen, times MARGIN, is the tolerance, and never less
than FLOOR of the number and of the middle one of its case, which a few roundings of float32 make. So a processor that
adds up in another order passes; a formula that is another one does not. A tolerance is a number of its own for each
value: a score that is ill-conditioned, say of a sample a thousand times as far away, does not hide the others.

A few numbers are other libraries' (how pixels are resized, clusters found, hundreds of steps rounded): those have a
second file in `values_lowest`, held to where the lowest versions that pyproject.toml allows are installed.

What moved is accepted by `python tests/golden/accept.py`, if the version was raised. Where the inputs here were changed
and openbench was not, delete the file of values and accept it like that of a new class.
"""

import json
import platform
import runpy
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path
from typing import Any

import golden_draws
import golden_images
import golden_methods
import golden_prompts
import golden_trainings
import numpy as np
from golden_cases import Case, Entry, Values
from golden_rounding import Rounding
from packaging.version import Version

from openbench.errors import OpenbenchError

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "values"
LOWEST = Path(__file__).parent / "values_lowest"
COMMAND = "python tests/golden/accept.py"
PROCESSORS = 6  # imitated
MARGIN = 6.0
FLOOR = 2.0**-20
LIBRARIES = ("torch", "torchvision", "numpy", "scipy", "scikit-learn", "pillow", "faiss-cpu", "pyod")
Stored = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """What is not as stored.

    Args:
        case: its name.
        what: in words.
        accepted: whether accepting it needs no new version: the case is new or gone, or its version was raised.
    """

    case: str
    what: str
    accepted: bool


def entries() -> dict[str, Entry]:
    """All that has golden values, by name."""
    modules = (golden_methods, golden_trainings, golden_images, golden_draws, golden_prompts)
    return {entry.name: entry for entry in chain(*(module.entries() for module in modules))}


def computed(case: Case) -> Values | str:
    """The numbers of a case, or the name of the error that it raises."""
    try:
        found = np.asarray(case.compute(), dtype=np.float64).reshape(-1)
    except OpenbenchError as error:
        return type(error).__name__
    return found


def read(name: str, folder: Path = FOLDER) -> Stored | None:
    """What is stored of an entry; None if nothing is."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def read_for_here(name: str) -> Stored | None:
    """What is stored of an entry for the libraries that are installed."""
    return (read(name, LOWEST) if on_lowest() else None) or read(name)


def on_lowest() -> bool:
    """Whether the torch that is installed is the lowest that pyproject.toml allows."""
    return Version(made_with()["torch"]) == lowest_torch()


@cache
def lowest_torch() -> Version:
    """What pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = runpy.run_path(str(ROOT / "scripts" / "lowest_versions.py"))["lowest"]
    return Version(lowest(project, ())["torch"])


def differences(entry: Entry, stored: Stored | None) -> Iterator[Difference]:
    """What is not as stored: cases whose numbers or versions are others, that are new, or that are gone."""
    old = {} if stored is None else stored["cases"]
    for name, case in entry.cases.items():
        if name not in old:
            yield Difference(name, "has no golden values yet", True)
            continue
        was, raised = old[name], case.version is not None and case.version > old[name]["version"]
        moved = difference(computed(case), was)
        if moved and raised:
            yield Difference(name, f"{moved}; the version was raised from {was['version']} to {case.version}", True)
        elif moved:
            yield Difference(name, moved, False)
        elif case.version != was["version"]:
            what = f"the version is {case.version}, the stored values are of version {was['version']}"
            yield Difference(name, what, raised)
    for name in old.keys() - entry.cases.keys():
        yield Difference(name, "is stored, and no longer computed", True)


def difference(found: Values | str, was: Mapping[str, Any]) -> str:
    """How a result differs from what is stored, in words; empty if it does not."""
    if isinstance(found, str) or "raises" in was:
        now, before = (f"raises {x}" if isinstance(x, str) else "gives numbers" for x in (found, was.get("raises", 0)))
        return "" if now == before else f"{now}, where it was: {before}"
    values, tolerances = (numbers(was[key]) for key in ("values", "tolerances"))
    if len(found) != len(values):
        return f"gives {len(found)} numbers, where there were {len(values)}"
    # Infinity and what is not a number have to be the same; differences of such are not numbers.
    same = (found == values) | (np.isnan(found) & np.isnan(values))
    with np.errstate(invalid="ignore"):
        off = np.abs(found - values)
    bad = ~same & ~(off <= tolerances)
    if not bad.any():
        return ""
    with np.errstate(invalid="ignore", divide="ignore"):
        i = int(np.argmax(np.where(bad, np.nan_to_num(off / tolerances, nan=np.inf), -1)))
    return (
        f"{int(bad.sum())} of {len(values)} numbers moved; number {i} is {found[i]:.8g}, was {values[i]:.8g}, and may "
        f"be off by {tolerances[i]:.1g}"
    )


def numbers(kept: Sequence[float | str] | Values) -> Values:
    """Numbers as they are kept: JSON has no infinity."""
    return np.asarray(kept, dtype=np.float64)


def story(entry: Entry, found: Iterable[Difference], stored: Stored | None) -> str:
    """What a person needs to know: which class, which cases, how far, and the ways out."""
    listed = list(found)
    shown = [f"  {d.case}: {d.what}" for d in listed[:5]] + [f"  and {len(listed) - 5} more cases"] * (len(listed) > 5)
    lines = [f"golden values of {entry.name} ({entry.file}) do not hold:", *shown]
    if not all(d.accepted for d in listed):
        lines.append(
            f"restore the code — or raise the version of what moved in {entry.file}; a draw has none, and benchmarks "
            "drawn like this are then others, with digests of their own"
        )
    was = {} if stored is None else stored["made_with"]
    others = [
        f"{name} {made_with().get(name)} (was {old})" for name, old in was.items() if made_with().get(name) != old
    ]
    lines += [f"the values were accepted with other libraries — here: {', '.join(others)}"] * bool(others)
    return "\n".join([*lines, f"if that is meant, run: {COMMAND} {entry.name}"])


@cache
def made_with() -> dict[str, str]:
    """Versions of what computes, and the processor."""
    installed = {found.name.lower(): found.version.partition("+")[0] for found in distributions()}
    return {name: installed[name] for name in LIBRARIES if name in installed} | {"processor": platform.machine()}


def accepted(entry: Entry, stored: Stored | None, anyway: bool = False) -> Stored:
    """What is stored from now on: cases that hold stay as they are, to the byte.

    Raises:
        ValueError: values moved and the version did not; the message tells the ways out.
    """
    found = list(differences(entry, stored))
    drawn = all(case.version is None for case in entry.cases.values())
    if not all(d.accepted for d in found) and not (drawn and anyway):
        raise ValueError(story(entry, found, stored))
    old = {} if stored is None else stored["cases"]
    renewed = {d.case for d in found}
    cases = {name: _measured(case) if name in renewed else old[name] for name, case in entry.cases.items()}
    return {"name": entry.name, "made_with": made_with(), "cases": cases}


def _measured(case: Case) -> Stored:
    """A case's numbers, with the tolerances that other processors need."""
    found = computed(case)
    if isinstance(found, str):
        return {"version": case.version, "raises": found}
    spread = np.zeros_like(found)
    for seed in range(PROCESSORS):
        with Rounding(seed) as rounding:
            other = computed(case)
        if rounding.unknown:
            raise ValueError(
                f"how torch's {', '.join(sorted(rounding.unknown))} round is not known — add them to a list in "
                "tests/golden/golden_rounding.py"
            )
        if isinstance(other, str) or len(other) != len(found):
            raise ValueError(
                "rounding alone changes whether it raises, or how many numbers it gives: choose other inputs"
            )
        with np.errstate(invalid="ignore"):
            spread = np.fmax(spread, np.abs(other - found))
    finite = np.abs(found[np.isfinite(found)])
    middle = float(np.median(finite)) if len(finite) else 0.0
    size = np.where(np.isfinite(found), np.abs(found), 0.0) + middle
    tolerances = np.maximum.reduce([MARGIN * spread, FLOOR * size, case.least(found)])
    return {
        "version": case.version,
        "values": [_short(x) for x in found],
        "tolerances": [float(f"{x:.1e}") for x in tolerances],
    }


def _short(x: float) -> float | int | str:
    if not np.isfinite(x):
        return str(x)
    kept = float(f"{x:.8g}")
    return int(kept) if kept.is_integer() and abs(kept) < 1e7 else kept


def text(stored: Stored) -> str:
    """The file: a line per list, so that a change of one case is a change of few lines."""
    lines = []
    for name, case in stored["cases"].items():
        parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in case.items()]
        lines.append(f"    {json.dumps(name)}: {{\n      " + ",\n      ".join(parts) + "\n    }")
    head = "".join(f"  {json.dumps(key)}: {json.dumps(stored[key])},\n" for key in ("name", "made_with"))
    return "{\n" + head + '  "cases": {\n' + ",\n".join(lines) + "\n  }\n}\n"
