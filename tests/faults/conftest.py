"""A benchmark of some tiny images that goes all the way in a second, run here or in a process that can be harmed."""

import contextlib
import io
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from openbench.__main__ import main

PETS = ("+benchmark=pets", "backbone=resnet8_digits", "training.recipe.epochs=2", "runtime.progress=false")
RUN = ("run", *PETS, "method=knn", "method.k=1", "tune=none", "metrics.replicates=20", "runtime.batch_size=8")
ROOMS = ("cache", "results")


@dataclass(frozen=True)
class Ending:
    """How a command ended.

    Args:
        code: its exit code; negative for a signal.
        text: what it printed, on both streams.
    """

    code: int
    text: str

    @property
    def refused(self) -> bool:
        """Whether it ended in exit code 2 and one message."""
        return self.code == 2 and self.text.count("error: ") == 1 and "Traceback" not in self.text


@dataclass(frozen=True)
class Place:
    """Where commands find images and leave files.

    Args:
        folder: holds `cache`, `results`, the images and the config folder `pets`.
    """

    folder: Path

    @property
    def files(self) -> dict[str, bytes]:
        """Every file below cache and results that is not a lock."""
        found = [path for room in ROOMS for path in sorted((self.folder / room).rglob("*")) if path.is_file()]
        return {str(p.relative_to(self.folder)): p.read_bytes() for p in found if p.suffix != ".lock"}

    @property
    def numbers(self) -> dict[str, object]:
        """Those of each record."""
        found = (self.folder / "results").rglob("*.json")
        return {path.name: json.loads(path.read_text())["metrics"] for path in found}

    def reset(self, files: Mapping[str, bytes]) -> None:
        """Make cache and results hold these files and nothing else."""
        for room in ROOMS:
            shutil.rmtree(self.folder / room, ignore_errors=True)
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def run(self, command: Sequence[str] = RUN) -> Ending:
        """Give a command in this process."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = main(_with_pets(command))
        return Ending(code, said.getvalue())

    def ended(self, command: Sequence[str] = RUN, before: Callable[[], object] | None = None) -> Ending:
        """Give a command in a process of its own."""
        return Job(command, before).ended()


class Job:
    """A command in a copy of this process, which need not import everything as a new one would.

    Args:
        command: its words.
        before: what the copy calls first.
    """

    def __init__(self, command: Sequence[str], before: Callable[[], object] | None = None) -> None:
        self._output, output = os.pipe()  # not a file: those may be limited there
        self._pid = os.fork()
        if self._pid == 0:
            code = 99
            try:
                for number in (1, 2):
                    os.dup2(output, number)
                sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
                if before is not None:
                    before()
                code = main(_with_pets(command))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        os.close(output)

    def ended(self) -> Ending:
        """Wait for its end."""
        with open(self._output, errors="replace") as stream:
            text = stream.read()
        _, status = os.waitpid(self._pid, 0)
        return Ending(os.waitstatus_to_exitcode(status), text)


def _with_pets(command: Sequence[str]) -> list[str]:
    return [*command, "--config-dir", "pets"] if "+benchmark=pets" in command else list(command)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Images, lists and a config folder; nothing has been run."""
    folder = tmp_path_factory.mktemp("faults")
    rng = np.random.default_rng(0)
    for name, count, low in (("photos/cat", 20, 0), ("photos/dog", 20, 60), ("birds", 12, 30), ("fish", 12, 30)):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = rng.integers(0, 120, (8, 8, 3)) + low
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{index:02d}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        new = "data new pets --id photos --near birds=birds --ood-val fish --side 8"
        assert main(new.split()) == 0
    return Place(folder)


@pytest.fixture(autouse=True)
def _there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test gives its commands there."""
    monkeypatch.chdir(place.folder)
    for room in ROOMS:
        monkeypatch.setenv(f"OPENBENCH_{room.upper()}", str(place.folder / room))


@pytest.fixture(scope="session")
def undisturbed(place: Place) -> dict[str, bytes]:
    """The files of a run that nothing happened to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place.folder)
        for room in ROOMS:
            patch.setenv(f"OPENBENCH_{room.upper()}", str(place.folder / room))
        place.reset({})
        ending = place.run()
    assert ending.code == 0, ending.text
    return place.files
