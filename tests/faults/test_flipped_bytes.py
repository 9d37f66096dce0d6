"""A changed byte in any file that a run writes: the same numbers, computed again, or an error; never other numbers."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from .conftest import COUNTS, DEEP, SEED, Place, Written, of_each_kind, sampled
from .states import State, States
from .waiting import Waiting

# Every byte of small files is too many for each run of the tests; this many positions are drawn of each file, or where
# several are written and read alike, of one of them.
POSITIONS = int(os.environ.get("OPENBENCH_FAULTS_POSITIONS", "4" if DEEP else "1"))
# Files that only an interrupted run leaves: every how-manieth of their versions is harmed.
STRIDE = int(os.environ.get("OPENBENCH_FAULTS_STRIDE", "1" if DEEP else "5"))


def flipped(file: Written, position: int) -> Written:
    """One bit of one byte is another; the time stamp is as it was."""
    content = file.content
    return replace(file, content=content[:position] + bytes([content[position] ^ 0x04]) + content[position + 1 :])


def room(name: str) -> str:
    """The part of cache or results that a file belongs to, e.g. `cache/features`."""
    return "/".join(name.split("/")[:2])


def all_but_the_record(name: str, written: dict[str, Written]) -> dict[str, Written]:
    """The numbers are made again from what is stored."""
    return {other: file for other, file in written.items() if other == name or not other.startswith("results/")}


def only_its_room(name: str, written: dict[str, Written]) -> dict[str, Written]:
    """What was made from the file is gone, so the file itself is read."""
    return {other: file for other, file in written.items() if room(other) == room(name)}


def wrong_with(
    place: Place, waiting: Waiting, expected: object, state: Mapping[str, Written | None], name: str
) -> list:
    """What a run on harmed files does otherwise than it should; nothing if all is well.

    It ends with the expected numbers, and so does the same command after it; or it ends in one message that names the
    harmed file, and the same command ends with the expected numbers once that, or its folder, is deleted as told.
    """
    COUNTS["bytes flipped"] += 1
    place.reset(state)
    ending = waiting.run()
    if ending.code != 0:
        if not ending.refused or name not in ending.text:
            return [f"exit {ending.code}", ending.text[-700:]]
        path = place.folder / name
        shutil.rmtree(path.parent) if "delete its folder" in ending.text else path.unlink()
    elif place.metrics != expected:
        return ["other numbers"]
    again = waiting.run()
    if again.code != 0:
        return ["the second time", again.code, again.text[-700:]]
    return [] if place.metrics == expected else ["other numbers the second time"]


@pytest.mark.slow
@pytest.mark.parametrize("keep", [all_but_the_record, only_its_room], ids=lambda f: f.__name__)
def test_no_flipped_byte_gives_another_number(place: Place, waiting: Waiting, undisturbed: dict[str, Written], keep):
    place.reset(undisturbed)
    expected = place.metrics
    rng = np.random.default_rng(SEED)
    silent = []
    for name in of_each_kind(undisturbed):
        file = undisturbed[name]
        for position in map(int, rng.integers(0, len(file.content), POSITIONS)):
            state = {**keep(name, undisturbed), name: flipped(file, position)}
            if found := wrong_with(place, waiting, expected, state, name):
                silent.append((name, position, *found))
    assert silent == []


def passing(states: Mapping[int, State], undisturbed: dict[str, Written]) -> list[tuple[str, State]]:
    """Each version of a file that a run replaces or deletes before its end, in the last state that has it."""
    last = {}
    for n, state in states.items():
        for name, file in state.items():
            if file and file.content and (name not in undisturbed or undisturbed[name].content != file.content):
                last[name, file.content] = n
    return [(name, states[n]) for (name, _), n in last.items()]


@pytest.mark.slow
def test_no_flipped_byte_in_what_a_killed_run_left_gives_another_number(
    place: Place, waiting: Waiting, undisturbed: dict[str, Written], states: States
):
    place.reset(undisturbed)
    expected = place.metrics
    rng = np.random.default_rng(SEED)
    found = passing(states.distinct, undisturbed)
    assert {"state.pt", "progress.json", "features.npy.part"} <= {name.rpartition("/")[2] for name, _ in found}
    silent = []
    for name, state in sampled(found, STRIDE):
        for position in map(int, rng.integers(0, len(state[name].content), POSITIONS)):
            if wrong := wrong_with(place, waiting, expected, {**state, name: flipped(state[name], position)}, name):
                silent.append((name, position, *wrong))
    assert silent == []
