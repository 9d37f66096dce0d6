"""Trainings, extractions and sweeps killed at any change: the same command ends the same, and no more stays."""

import os
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from .conftest import COUNTS, Place, Written, sampled
from .states import at_each_change, kill_at, write_down
from .test_full_disk_everywhere import EXTRACT, SWEEP, TRAIN, kept, numbers
from .waiting import Waiting

# Every how-manieth operation is the last one; 1 = each of them.
STRIDE = int(os.environ.get("OPENBENCH_FAULTS_STRIDE", "53"))


def state(place: Place) -> tuple[object, ...]:
    """All that is to come out: names of files, weights and features to the byte, numbers; sweeps keep a folder each."""
    files = kept(place)
    exact = {name: content for name, content in files.items() if Path(name).suffix in (".safetensors", ".npy")}
    return sorted(files), exact, numbers(place)


def trained(undisturbed: dict[str, Written]) -> dict[str, Written]:
    """What a training leaves; how it is killed shows where nothing but a training is asked for."""
    parts = ("cache/checkpoints/", "cache/images/", "cache/contents/")
    return {name: file for name, file in undisturbed.items() if name.startswith(parts)}


@pytest.mark.slow
@pytest.mark.parametrize("command", [TRAIN, EXTRACT, SWEEP], ids=["train", "extract", "sweep"])
def test_a_killed_command_ends_as_if_nothing_had_happened(
    place: Place, standing: Callable[[Sequence[str]], Waiting], undisturbed: dict[str, Written], command
):
    run = partial(place.run, command=command) if command == SWEEP else standing(command).run
    note, start = place.folder / "count", {} if command == TRAIN else trained(undisturbed)
    place.reset(start)
    counting = partial(at_each_change, place.folder, partial(write_down, note))
    assert run(counting).code == 0
    expected, total, wrong = state(place), int(note.read_text()), []
    assert total > STRIDE  # else a seed would try none
    for last in sampled(range(1, total + 1), STRIDE):
        COUNTS["operations stopped"] += 1
        place.reset(start)
        killed = run(partial(at_each_change, place.folder, partial(kill_at, last)))
        assert killed.code == -signal.SIGKILL
        again = run()
        found = state(place)
        if again.code != 0 or found != expected:
            parts = [str(a)[:500] for a, b in zip(found, expected, strict=True) if a != b]
            wrong.append((last, again.code, again.text[-500:], parts))
    assert wrong == []
