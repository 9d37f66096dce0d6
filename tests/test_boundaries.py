"""Every parameter takes its smallest and largest legal value and refuses the next one: in Python and in a config.

`boundaries.csv` was written by hand, from the papers and from the checks that classes had before ranges were declared:
class, field, a legal value at the end of its range, the nearest illegal one, and what else must be given beside it.
"""

import csv
import importlib
import inspect
import json
import pkgutil
import types
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import openbench
from openbench.config.build import build, target_of
from openbench.config.constraints import Checked, hints_of
from openbench.data.sources.embedded import SklearnDigits
from openbench.errors import NotApplicableError, OpenbenchError
from openbench.methods.msp import MSP

with (Path(__file__).parent / "boundaries.csv").open(encoding="utf-8") as stream:
    ROWS = list(csv.DictReader(stream, delimiter=";", quoting=csv.QUOTE_NONE))

_SET = {"name": "x", "manifest": "x", "sources": {}}
NEEDED = {
    "SetConfig": _SET,
    "Collection": {"id": 1, "ood": 1, "declared": ["a", "b", "c"], "sets": {}},
    "CommonCorruptions": {"of": {}},
    "Corrupted": {"of": SklearnDigits(), "kind": "brightness", "amount": 0},
    "RemoteFile": {"url": "x", "gives": "x"},
    "Preprocess": {"resize": 1, "crop": 1},
    "OwnPreprocess": {"resize": 1, "crop": 1},
    "TableFile": {"table": "1_ALOI"},
    "DoubleScore": {"risk": MSP(), "ood": MSP()},
    "CoVer": {"base": MSP()},
    "OnCorrupted": {"base": MSP(), "corruption": "fog", "severity": 1},
    "SteppedLayerMDS": {"layer": "stage1", "among": ["stage1"], "epsilon": 0.1},
}
# Numbers that may be any finite one.
FREE = {
    ("MCD", "margin"),
    ("Perturb", "epsilon"),
    ("EnergyBounded", "m_in"),
    ("EnergyBounded", "m_out"),
    *(("ReweightOOD", name) for name in ("m_b", "c_b", "m_w", "c_w")),
}


def of(row: dict[str, str]) -> type:
    return target_of({"_target_": f"openbench.{row['class']}"})


def refusal(make: Callable[[], object]) -> str | None:
    """What is said where a value is refused."""
    try:
        make()
    except NotApplicableError:  # an optional package that is not installed, after the values were checked
        return None
    except OpenbenchError as error:
        return str(error)
    return None


def test_the_last_legal_value_is_taken_and_the_next_is_refused_in_python_and_in_a_config():
    wrong = []
    for row in ROWS:
        cls, field, beside = of(row), row["field"], json.loads(row["beside"])
        more, node = NEEDED.get(cls.__name__, {}), {"_target_": f"openbench.{row['class']}", **beside}
        for which in ("legal", "illegal"):
            value = {field: json.loads(row[which])}
            said = refusal(partial(cls, **{**more, **beside, **value}))
            built = refusal(partial(build, {**node, **value}, "it", **more))
            named = said is not None and field in said.lower() and "found" in said
            if (said is None, built is None, named) != ((which == "legal",) * 2 + (which == "illegal",)):
                wrong.append((row["class"], value, said, built))
    assert wrong == []


def checked_classes() -> list[type]:
    """Every class of the package whose fields are checked, and that can be made."""
    for module in pkgutil.walk_packages(openbench.__path__, "openbench."):
        if module.name != "openbench.__main__" and not module.name.startswith("openbench.cli"):
            importlib.import_module(module.name)
    found, waiting = [], [Checked]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        ours = [cls for cls in below if cls.__module__.startswith("openbench.") and is_dataclass(cls)]
        found += [cls for cls in ours if not inspect.isabstract(cls)]
    return sorted(set(found), key=lambda cls: (cls.__module__, cls.__name__))


def parts(annotation: Any) -> Iterator[Any]:
    """The kinds that a value may be of as a whole: a union's parts, else the annotation itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from parts(part)
    else:
        yield annotation


def test_every_number_that_a_class_takes_has_a_range():
    bare = {
        (cls.__name__, field.name)
        for cls in checked_classes()
        for field in fields(cls)
        for part in parts(hints_of(cls)[field.name])
        if field.init and part in (int, float)
    }
    assert bare <= FREE


def test_the_annotations_of_every_checked_class_can_be_read():
    unread = [cls.__name__ for cls in checked_classes() if set(hints_of(cls)) < {f.name for f in fields(cls) if f.init}]
    assert unread == []
