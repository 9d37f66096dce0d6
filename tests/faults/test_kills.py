"""A run that is killed at any of its file operations: the same command then ends with the same numbers and files."""

import os
import re
import signal
from functools import partial

from .conftest import COUNTS, DEEP, ROOMS, Place, Written, sampled
from .states import State, States, at_each_change, kill_at
from .waiting import Waiting

# Every how-manieth state is one that a run goes on from; 1 = each of them.
STRIDE = int(os.environ.get("OPENBENCH_FAULTS_STRIDE", "1" if DEEP else "11"))


def test_some_seed_reaches_every_state():
    reached = [n for seed in range(68) for n in sampled(range(200), 68, seed)]
    assert sorted(reached) == list(range(200))


def names(found: dict[str, object]) -> set[str]:
    """Names of files, those of temporary files without what is drawn."""
    return {re.sub(r"\.[0-9a-f]{12}(?=\.|$)", ".*", name) for name, file in found.items() if file is not None}


def sizes(found: dict[str, Written]) -> dict[str, int]:
    """How many lines each table has; all else has none."""
    return {name: file.content.count(b"\n") if name.endswith(".csv") else 0 for name, file in found.items()}


def test_the_states_are_what_a_kill_leaves(place: Place, waiting: Waiting, states: States):
    assert states.changes > 100
    chosen = sampled(sorted(states.distinct), 29)
    wrong = []
    for n in chosen:
        place.reset({})
        assert waiting.run(partial(at_each_change, place.folder, partial(kill_at, n))).code == -signal.SIGKILL
        left = {str(p.relative_to(place.folder)) for r in ROOMS for p in (place.folder / r).rglob("*") if p.is_file()}
        if names(dict.fromkeys(left, "")) != names(states.distinct[n]):
            wrong.append((n, left ^ set(states.distinct[n])))
    assert wrong == []


def wrong_in(
    place: Place, waiting: Waiting, undisturbed: dict[str, Written], expected: object, n: int, state: State
) -> list[tuple]:
    """What a run that goes on from the state before change `n` does wrong; nothing if all is well."""
    COUNTS["operations stopped"] += 1
    place.reset(state)
    ending = waiting.run()
    if ending.code != 0:
        return [(n, ending.code, ending.text[-500:])]
    if place.metrics != expected:
        return [(n, "other numbers")]
    return [(n, *found) for found in sorted(sizes(place.written).items() ^ sizes(undisturbed).items())]


def test_a_run_killed_at_any_change_ends_as_if_nothing_had_happened(
    place: Place, waiting: Waiting, undisturbed: dict[str, Written], states: States
):
    place.reset(undisturbed)
    expected = place.metrics
    wrong = []
    for n in sampled(sorted(states.distinct), STRIDE):
        wrong += wrong_in(place, waiting, undisturbed, expected, n, states.distinct[n])
    assert wrong == []
