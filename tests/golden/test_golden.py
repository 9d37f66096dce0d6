"""What every method, training, augmentation and corruption computes on small fixed inputs, held to its version.

Two tests stand for the rule "a change that moves results raises `version`": numbers that moved under the same version
fail and say what to do; a class without golden values fails, too. How inputs, tolerances and files are made is told in
golden_inputs, golden_rounding and golden_values.
"""

import json
import re
from pathlib import Path

import golden_images
import golden_methods
import golden_trainings
import golden_values as golden
import numpy as np
import pytest
from golden_cases import Case, Entry
from packaging.version import Version

from openbench.errors import MethodError

ENTRIES = golden.entries()
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ENTRIES)
def test_values_are_those_accepted_for_the_version(name):
    stored = golden.read_for_here(name)
    found = list(golden.differences(ENTRIES[name], stored))
    assert not found, golden.story(ENTRIES[name], found, stored)


@pytest.mark.parametrize("kinds", [golden_methods, golden_trainings, golden_images], ids=lambda m: m.__name__)
def test_every_class_has_golden_values(kinds):
    having = {entry.name.rpartition("/")[2] for entry in kinds.entries() if entry.cases}
    lacking = [cls.__qualname__ for cls in kinds.classes() if cls.__qualname__ not in having]
    assert lacking == [], f"add cases in {Path(kinds.__file__).name}, then run: {golden.COMMAND}"


def test_every_class_says_its_version():
    classes = [cls for kinds in (golden_methods, golden_trainings, golden_images) for cls in kinds.classes()]
    assert [cls.__qualname__ for cls in classes if not isinstance(getattr(cls, "version", None), int)] == []


def test_no_values_of_classes_that_are_gone_are_kept():
    kept = {path.relative_to(golden.FOLDER).with_suffix("").as_posix() for path in golden.FOLDER.rglob("*.json")}
    assert kept - ENTRIES.keys() == set(), f"run: {golden.COMMAND}"


def test_values_for_the_lowest_versions_are_of_the_version_that_the_others_are_of():
    folder = golden.LOWEST
    of = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.json")}

    def versions(name, folder):
        return {case: was["version"] for case, was in golden.read(name, folder)["cases"].items()}

    made = {golden.read(name, folder)["made_with"]["torch"] for name in of}
    assert {Version(torch) for torch in made} == {golden.lowest_torch()}
    differ = [name for name in sorted(of) if versions(name, folder) != versions(name, golden.FOLDER)]
    assert differ == [], f"with the lowest versions installed run: {golden.COMMAND} --lowest {' '.join(differ)}"


@pytest.mark.parametrize(("torch", "lowest"), [(f"{golden.lowest_torch()}.0", True), ("2.99.0", False)])
def test_values_for_the_lowest_versions_are_read_with_these_alone(torch, lowest, monkeypatch, tmp_path):
    here = {**golden.made_with(), "torch": torch}
    stored = {"made_with": here, "cases": {}}
    monkeypatch.setattr(golden, "made_with", lambda: here)
    monkeypatch.setattr(golden, "LOWEST", tmp_path)
    (tmp_path / "Mine.json").write_text(json.dumps(stored))
    assert golden.read_for_here("Mine") == (stored if lowest else None)


def test_a_change_beyond_the_tolerance_of_its_number_is_noticed():
    was = {"version": 1, "values": [1.0, 2.0, 3.0], "tolerances": [0.1, 0.1, 0.5]}
    assert not golden.difference(np.array([1.09, 1.91, 3.4]), was)
    assert golden.difference(np.array([1.0, 2.2, 3.4]), was).startswith("1 of 3 numbers moved; number 1 is 2.2, was 2")
    assert golden.difference(np.array([0.8, 2.0, 4.5]), was).startswith("2 of 3 numbers moved; number 2 is 4.5")
    assert golden.difference(np.array([1.0, 2.0]), was) == "gives 2 numbers, where there were 3"


# Results that jump where rounding puts a sample into another bin or a grey level below, and a discriminator after two
# epochs of Adam: held to 3 % of their size, all others to a thousandth.
JUMPING = ("OpenGAN opengan plain", "NAC nac bins=50", "WeiPer weiper bins=20", "JensenShannon 1 weight=2.0")


def test_tolerances_are_small_beside_what_they_hold():
    loose = []
    cases = ((f"{name} {case}", was) for name in ENTRIES for case, was in golden.read(name)["cases"].items())
    for name, was in cases:
        values, tolerances = (golden.numbers(was.get(key, ())) for key in ("values", "tolerances"))
        kept = np.isfinite(values)
        size = float(np.abs(values[kept]).max()) if kept.any() else 0.0
        allowed = 0.03 if name.endswith(JUMPING) else 1e-3
        if size > 0 and float(np.median(tolerances[kept])) > allowed * size:
            loose.append(f"{name}: {float(np.median(tolerances[kept]) / size):.1e}")
    assert loose == []


def test_a_number_that_is_not_finite_has_to_stay_so():
    was = {"version": 1, "values": ["inf", "nan", 1.0], "tolerances": [1, 1, 1]}
    assert not golden.difference(np.array([np.inf, np.nan, 1.5]), was)
    for moved in ([1.0, np.nan, 1.0], [np.inf, 1.0, 1.0], [-np.inf, np.nan, 1.0], [np.inf, np.nan, np.nan]):
        assert golden.difference(np.array(moved), was), moved


def entry(version: int | None, *numbers: float) -> Entry:
    """A method of a file that is there, with one case."""
    return Entry("methods/Mine", "openbench/methods/knn.py", {"plain": Case(version, lambda: numbers)})


STORED = golden.accepted(entry(1, 1.0, 2.0), None)


def test_a_new_class_is_accepted_and_then_holds():
    assert [d.accepted for d in golden.differences(entry(1, 1.0, 2.0), None)] == [True]
    assert list(golden.differences(entry(1, 1.0, 2.0), STORED)) == []


def test_values_that_moved_without_a_version_are_refused_with_both_ways_out():
    with pytest.raises(ValueError, match=re.escape("methods/Mine (openbench/methods/knn.py)")) as refusal:
        golden.accepted(entry(1, 1.0, 2.5), STORED)
    told = str(refusal.value)
    assert "plain: 1 of 2 numbers moved; number 1 is 2.5, was 2, and may be off by" in told
    assert "restore the code" in told
    assert "raise the version of what moved in openbench/methods/knn.py" in told
    assert "run: python tests/golden/accept.py methods/Mine" in told


def test_values_that_moved_with_their_version_are_accepted_when_asked():
    raised = entry(2, 1.0, 2.5)
    found = list(golden.differences(raised, STORED))
    assert [d.accepted for d in found] == [True]
    assert "if that is meant, run: python tests/golden/accept.py methods/Mine" in golden.story(raised, found, STORED)
    assert golden.accepted(raised, STORED)["cases"]["plain"]["values"] == [1, 2.5]


def test_a_version_that_was_raised_for_nothing_or_lowered_is_noticed():
    assert [d.accepted for d in golden.differences(entry(2, 1.0, 2.0), STORED)] == [True]
    later = golden.accepted(entry(2, 1.0, 2.0), STORED)
    assert [d.accepted for d in golden.differences(entry(1, 1.0, 2.0), later)] == [False]


def test_a_draw_has_no_version_and_is_accepted_by_name():
    stored = golden.accepted(entry(None, 1.0), None)
    with pytest.raises(ValueError, match="digests of their own"):
        golden.accepted(entry(None, 2.0), stored)
    assert golden.accepted(entry(None, 2.0), stored, anyway=True)["cases"]["plain"]["values"] == [2]


def test_an_error_is_a_result_like_another():
    def fails() -> None:
        raise MethodError("no")

    failing = Entry("methods/Mine", "openbench/methods/knn.py", {"plain": Case(1, fails)})
    assert [d.accepted for d in golden.differences(failing, STORED)] == [False]
    stored = golden.accepted(failing, None)
    assert stored["cases"]["plain"]["raises"] == "MethodError"
    assert [d.accepted for d in golden.differences(entry(1, 1.0, 2.0), stored)] == [False]
