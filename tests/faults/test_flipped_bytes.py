"""A changed byte in any file that a run writes: the same numbers, computed again, or an error; never other numbers."""

import os
from dataclasses import replace

import numpy as np
import pytest

from .conftest import Place, Written

# Every byte of small files is too many for each run of the tests; this many positions of each file are drawn.
POSITIONS = int(os.environ.get("OPENBENCH_FAULTS_POSITIONS", "1"))
SEED = int(os.environ.get("OPENBENCH_TEST_SEED", "0"))


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


@pytest.mark.parametrize("keep", [all_but_the_record, only_its_room], ids=lambda f: f.__name__)
def test_no_flipped_byte_gives_another_number(place: Place, undisturbed: dict[str, Written], keep):
    place.reset(undisturbed)
    expected = place.metrics
    rng = np.random.default_rng(SEED)
    silent = []
    for name, file in undisturbed.items():
        for position in rng.integers(0, len(file.content), POSITIONS):
            place.reset({**keep(name, undisturbed), name: flipped(file, int(position))})
            ending = place.run()
            if ending.code == 0 and place.metrics != expected:
                silent.append((name, int(position), "other numbers"))
            elif ending.code not in (0, 2):
                silent.append((name, int(position), f"exit {ending.code}", ending.text[-500:]))
    assert silent == []
