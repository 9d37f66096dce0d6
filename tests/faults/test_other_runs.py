"""Runs that write other files than KNN's: killed at any change, and a byte of any file changed; the same numbers.

By default one run that is most of them at once, and few states and bytes; all with OPENBENCH_HYPOTHESIS=deep.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from .conftest import DEEP, RUN, SEED, Place, Written, sampled
from .states import states_of
from .test_flipped_bytes import all_but_the_record, flipped, only_its_room, passing, room, wrong_with
from .test_kills import wrong_in
from .waiting import Waiting

# Every how-manieth file is harmed; of states and of what only an interrupted run leaves, of which there are more, a
# fourth as many, but all in the deep mode.
STRIDE = int(os.environ.get("OPENBENCH_FAULTS_STRIDE", "1" if DEEP else "17"))
RARE = STRIDE if DEEP else 4 * STRIDE
POSITIONS = int(os.environ.get("OPENBENCH_FAULTS_POSITIONS", "4" if DEEP else "1"))
OWN = '''
"""A method of somebody's own that goes through the network."""

from dataclasses import dataclass
from typing import ClassVar

from openbench.core.live import LiveMethod
from shaken_step import moved


@dataclass
class Shaken(LiveMethod):
    """How much the logits change when the image does.

    Reference: Somebody, 2026, arXiv 2601.00000.
    """

    reference: ClassVar[str] = "Somebody, 2026, arXiv 2601.00000"

    step: float = 0.1

    def score_images(self, images, backbone):
        with backbone.frozen() as network:
            return (network(moved(images, self.step)) - network(images)).abs().sum(dim=1).detach()
'''
BASE = RUN[:2]
MEMBERS = ("backbone=ensemble", "backbone@backbone.member=resnet8_digits", "backbone.members=2")
REST = RUN[RUN.index("training.recipe.epochs=2") :]
RUNS = {
    "own method on an ensemble": (*BASE, *MEMBERS, "method=shaken", "tune=none", *REST),
    "input gradients": (*RUN[:3], "method=odin", "tune=none", *REST),
    "live": (*RUN[:3], "method=pro", "tune=none", *REST),
    "ensemble": (*BASE, *MEMBERS, "method=ensemble", "tune=none", *REST),
    "own method": (*RUN[:3], "method=shaken", "tune=validation", *REST),
}


@dataclass(frozen=True)
class Case:
    """A run, its files where nothing happens to it, and its numbers."""

    waiting: Waiting
    written: dict[str, Written]
    metrics: dict[str, dict[str, float]]


@pytest.fixture(scope="module")
def own(place: Place) -> Iterator[None]:
    """A method in a module and another one beside it, and its config file in the folder of config files."""
    files = {
        "shaken.py": OWN,
        "shaken_step.py": "def moved(images, step):\n    return images + step\n",
        "pets/method/shaken.yaml": "_target_: shaken.Shaken\nstep: 0.1\n_space_:\n  step: [0.1, 0.2]\n",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place.folder)
        for name, text in files.items():
            (place.folder / name).parent.mkdir(exist_ok=True)
            (place.folder / name).write_text(text)
        yield
        for name in files:
            (place.folder / name).unlink()


@pytest.fixture(scope="module", params=list(RUNS) if DEEP else list(RUNS)[:1])
def case(request: pytest.FixtureRequest, place: Place, own: None) -> Iterator[Case]:
    """A run that was left alone."""
    waiting = Waiting(place, RUNS[request.param])
    yield Case(waiting, waiting.undisturbed, place.metrics)
    waiting.close()


@pytest.mark.slow
@pytest.mark.parametrize("keep", [all_but_the_record, only_its_room], ids=lambda f: f.__name__)
def test_no_flipped_byte_gives_another_number(place: Place, case: Case, keep):
    rng, silent = np.random.default_rng(SEED), []
    by_room = sorted(case.written, key=lambda name: (room(name), name))
    for name in sampled(by_room, STRIDE):
        file = case.written[name]
        for position in map(int, rng.integers(0, len(file.content), POSITIONS)):
            state = {**keep(name, case.written), name: flipped(file, position)}
            if found := wrong_with(place, case.waiting, case.metrics, state, name):
                silent.append((name, position, *found))
    assert silent == []


@pytest.mark.slow
def test_a_kill_at_any_change_and_then_a_flipped_byte_give_no_other_number(place: Place, case: Case):
    rng, wrong = np.random.default_rng(SEED), []
    states = states_of(place, case.waiting, {}).distinct
    for n in sampled(sorted(states), RARE):
        wrong += wrong_in(place, case.waiting, case.written, case.metrics, n, states[n])
    found = passing(states, case.written)
    assert len(found) > 10
    for name, state in sampled(found, RARE):
        for position in map(int, rng.integers(0, len(state[name].content), POSITIONS)):
            harmed = {**state, name: flipped(state[name], position)}
            if silent := wrong_with(place, case.waiting, case.metrics, harmed, name):
                wrong.append((name, position, *silent))
    assert wrong == []
