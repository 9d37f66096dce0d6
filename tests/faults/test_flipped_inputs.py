"""A changed byte in what a command other than `run` reads: the same result, made again, or an error that names it."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from .conftest import COUNTS, DEEP, SEED, Ending, Place, Written, sampled
from .test_flipped_bytes import flipped
from .test_full_disk_everywhere import EXTRACT, TRAIN
from .waiting import Waiting

POSITIONS = int(os.environ.get("OPENBENCH_FAULTS_POSITIONS", "4" if DEEP else "1"))
# Of what is trained and extracted, every how-manieth file is harmed.
STRIDE = int(os.environ.get("OPENBENCH_FAULTS_STRIDE", "1" if DEEP else "11"))


@dataclass(frozen=True)
class Command:
    """A command that can be given again and again.

    Args:
        files: those that it leaves or finds.
        run: gives it.
        result: what it is given for.
    """

    files: dict[str, Written]
    run: Callable[[], Ending]
    result: Callable[[], object]


def stored(place: Place) -> dict[str, bytes]:
    """All weights and columns of features; decoded images are no result, and read only where one is computed."""
    exact = (".safetensors", ".npy")
    results = {name: file for name, file in place.written.items() if not name.startswith("cache/images/")}
    return {name: file.content for name, file in results.items() if Path(name).suffix in exact}


@pytest.fixture(scope="module", params=[TRAIN, EXTRACT], ids=["train", "extract"])
def storing(request: pytest.FixtureRequest, place: Place, standing: Callable[[Sequence[str]], Waiting]) -> Command:
    """A command that computes what others read."""
    waiting = standing(request.param)
    return Command(waiting.undisturbed, waiting.run, lambda: stored(place))


READERS = ("thresholds pets", "risk pets", "evaluate {scores}")


@pytest.fixture(params=READERS, ids=lambda text: text.partition(" ")[0])
def reading(request: pytest.FixtureRequest, place: Place, undisturbed: dict[str, Written]) -> Command:
    """A command that makes numbers of records and kept scores."""
    kept = [name for name in undisturbed if name.startswith("cache/scores/") and name.endswith(".parquet")]
    (scores,) = (name for name in kept if "by_class" not in name)
    command: Sequence[str] = [*request.param.format(scores=scores).split(), "--json", "found.json"]
    files = {name: file for name, file in undisturbed.items() if name.startswith(("results/", "cache/scores/"))}
    found = place.folder / "found.json"

    def run() -> Ending:
        found.unlink(missing_ok=True)  # what an earlier run wrote is no answer of this one
        return place.run(command=command)

    return Command(files, run, lambda: found.exists() and found.read_bytes())


def silent(place: Place, command: Command, stride: int = 1) -> list[object]:
    """The files of which a changed byte gives another result, a traceback or an error that names another file."""
    place.reset(command.files)
    assert command.run().code == 0
    expected, rng, wrong = command.result(), np.random.default_rng(SEED), []
    for name, file in sampled(list(command.files.items()), stride):
        for position in map(int, rng.integers(0, len(file.content), POSITIONS)):
            COUNTS["bytes flipped"] += 1
            place.reset({**command.files, name: flipped(file, position)})
            ending = command.run()
            if ending.code == 0 and command.result() != expected:
                wrong.append((name, position, "another result", ending.text[-500:]))
            elif ending.code and (Path(name).name not in ending.text or "Traceback" in ending.text):
                wrong.append((name, position, ending.code, ending.text[-500:]))
    return wrong


@pytest.mark.slow
def test_no_flipped_byte_in_what_is_stored_stays_unnoticed(place: Place, storing: Command):
    assert silent(place, storing, STRIDE) == []


@pytest.mark.slow
def test_no_flipped_byte_in_a_record_or_its_scores_gives_another_table(place: Place, reading: Command):
    assert silent(place, reading) == []
