"""A disk that is full under any command: exit 2 and a message; with room, the files of an undisturbed command."""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import pytest

from openbench.cli.app import COMMANDS

from .conftest import COUNTS, Ending, Place, Written, sampled
from .test_full_disk import PAGE, disk, up_to
from .waiting import Waiting

STRIDE = int(os.environ.get("OPENBENCH_FAULTS_STRIDE", "97"))

PETS = ("+benchmark=pets", "backbone=resnet8_digits", "training.recipe.epochs=2", "runtime.progress=false")
SWEEP = ("run", "-m", *PETS, "method=mls,msp", "tune=none", "metrics.replicates=20")
TRAIN = ("train", *PETS)
EXTRACT = ("extract", *PETS, "method=vim")  # wants features and logits
WRITERS = [
    pytest.param(TRAIN, id="train"),
    pytest.param(EXTRACT, id="extract"),
    pytest.param(SWEEP, id="sweep"),
]


@dataclass(frozen=True)
class Writer:
    """A command that writes.

    Args:
        run: gives it, after something was called in its process.
        files: those that it leaves undisturbed, as `kept` has them.
        numbers: those of its records.
        written: all that it leaves.
    """

    run: Callable[..., Ending]
    files: dict[str, bytes]
    numbers: dict[str, object]
    written: dict[str, Written]


def kept(place: Place) -> dict[str, bytes]:
    """Every file but the folders of sweeps, which are named after the time, and what tells how long it took."""
    files = {name: file.content for name, file in place.written.items() if not name.startswith("cache/sweeps/")}
    return {name: b"" if re.search(r"curve|finished|results/", name) else content for name, content in files.items()}


def numbers(place: Place) -> dict[str, object]:
    return {p.name: json.loads(p.read_text())["metrics"] for p in (place.folder / "results").rglob("*.json")}


def told(ending) -> bool:
    """Exit code 2 and no traceback; a sweep tells of every job, and once more at its end."""
    return ending.code == 2 and "error: " in ending.text and "Traceback" not in ending.text


def left_by(place: Place, run: Callable[..., Ending]) -> Writer:
    """A command, and what it leaves undisturbed."""
    place.reset({})
    ending = run()
    assert ending.code == 0, ending.text
    return Writer(run, kept(place), numbers(place), place.written)


@pytest.fixture(scope="module")
def sweep(place: Place) -> Writer:
    return left_by(place, partial(place.run, command=SWEEP))


@pytest.fixture(params=WRITERS, scope="module")
def writer(request, place: Place, sweep: Writer, standing: Callable[[Sequence[str]], Waiting]) -> Writer:
    return sweep if request.param == SWEEP else left_by(place, standing(request.param).run)


def wrong_after(place: Place, writer: Writer) -> list[object]:
    again = writer.run()
    if again.code != 0:
        return [again]
    if numbers(place) != writer.numbers:
        return ["other numbers"]
    return sorted(set(kept(place)) ^ set(writer.files))


@pytest.mark.slow_cases
def test_files_that_may_not_grow(place: Place, writer: Writer):
    contents = [f.content for f in writer.written.values() if f.content]
    lengths = sorted({size for content in contents for size in (len(content) - 1, len(content) // 2)})
    wrong = []
    for size in [0, *sampled(lengths, STRIDE)]:
        COUNTS["disks filled"] += 1
        place.reset({})
        ending = writer.run(partial(up_to, size))
        if not told(ending):
            wrong.append((size, ending))
        if after := wrong_after(place, writer):
            wrong.append((size, "afterwards", after))
    assert wrong == []


@pytest.mark.slow
def test_a_full_cache(place: Place, writer: Writer):
    pages = sum(-(-len(f.content) // PAGE) for name, f in writer.written.items() if name.startswith("cache"))
    wrong = []
    for size in sampled(range(1, pages), STRIDE):
        place.reset({})
        with disk(place.folder / "cache", size * PAGE):
            ending = writer.run()
            left = place.written
        if not told(ending):
            wrong.append((size, ending))
        place.reset(left)
        if after := wrong_after(place, writer):
            wrong.append((size, "afterwards", after))
    assert wrong == []


JOBLIB = ("runtime=joblib", "hydra.launcher.n_jobs=2")
PAGES = [int(n) for n in os.environ.get("OPENBENCH_FAULTS_PAGES", "5").split(",")]  # 1 … some 80


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("hydra_plugins.hydra_joblib_launcher") is None, reason="the extra joblib is not installed"
)
@pytest.mark.parametrize("pages", PAGES)
def test_a_full_cache_under_joblib(place: Place, sweep: Writer, pages: int):
    """Its processes end with the sweep, and each job is told of; with room, the same sweep goes on from there."""
    place.reset({})
    with disk(place.folder / "cache", pages * PAGE):
        ending = place.run(command=[*SWEEP, *JOBLIB])
        left = place.written
    assert told(ending), ending
    place.reset(left)
    assert wrong_after(place, sweep) == []


def full() -> None:
    """Everything that is written to stdout meets a full disk."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def speakers(place: Place) -> list[list[str]]:
    """Every command, as it prints its help and as it prints something else."""
    (record,) = (place.folder / "results").rglob("*.json")
    place.folder.joinpath("scores.csv").write_text("set,role,score\na,id_test,0\na,id_test,1\nb,near,2\nb,near,0.5\n")
    typed = [
        *("list method", "show method knn", f"show record {record.stem}", "completion", "leaderboard", "data list"),
        *("leaderboard --check", "evaluate scores.csv", "thresholds pets", "risk pets", f"verify {record.stem}"),
        *(f"{command} --json /dev/stdout" for command in ("evaluate scores.csv", "thresholds pets", "risk pets")),
        *("data new pets3 --id photos --near birds=birds --to third", "--version", "--help"),
    ]
    others = [["check", *PETS[:3]], [*TRAIN], [*EXTRACT]]
    return [
        *(command.split() for command in typed),
        *others,
        *([name, "--help"] for name in COMMANDS),
    ]


@pytest.mark.slow
def test_every_command_tells_of_a_full_disk_behind_its_output(place: Place, undisturbed: dict[str, Written]):
    place.reset(undisturbed)
    wrong = []
    for command in speakers(place):
        ending = place.run(full, command)
        if not ending.refused:
            wrong.append((command, ending))
    assert wrong == []


@pytest.mark.slow
def test_a_sweep_whose_table_cannot_be_printed_still_says_how_its_jobs_ended(place: Place, undisturbed):
    place.reset(undisturbed)
    ending = place.run(full, SWEEP)
    assert told(ending), ending
    assert "sweep: 2 jobs, 0 done, 2 failed" in ending.text
