"""Values as JSON for people to read: nothing is refused, and every number is what it was."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from openbench.core.request import Field
from openbench.storage.plain_json import dumps, readable
from openbench.training.augment.augmentations import Cutout


@dataclass
class Held:
    """A user's own class."""

    values: tuple = (1, 0.5, None, True)
    at: Path = Path("a/b")
    inner: object = field(default_factory=lambda: Cutout(holes=2))


def test_a_dataclass_names_its_class_and_what_it_holds():
    inner = {"_target_": "Cutout", "holes": 2, "side": Cutout().side, "grey": Cutout().grey}
    name = f"{Held.__module__}.Held"
    assert readable(Held()) == {"_target_": name, "values": [1, 0.5, None, True], "at": "a/b", "inner": inner}


def test_numbers_that_json_does_not_have_become_text():
    values = {"low": -math.inf, "high": np.float64(math.inf), "none": np.float32("nan"), 3: 1.5}
    assert json.loads(dumps(readable(values))) == {"low": "-inf", "high": "inf", "none": "nan", "3": 1.5}


def test_scalars_of_arrays_and_enums_are_what_they_stand_for():
    found = readable([np.int64(7), np.float32(0.5), np.bool_(True), Field.LOGITS])
    assert found == [7, 0.5, True, "logits"]
    assert [type(value) for value in found] == [int, float, bool, str]
