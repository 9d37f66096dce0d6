"""A benchmark of forty tiny images that goes all the way in a second, run in processes that can be harmed."""

import contextlib
import gc
import importlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import numpy as np
import pytest
import torch
from PIL import Image

from openbench import checkout
from openbench.__main__ import main
from openbench.compose.config import compose
from openbench.engine.provenance import Clock, provenance
from openbench.training.loop import loop

from ..forked import small  # noqa: TID252 — the tests are no package

if TYPE_CHECKING:
    from .states import States
    from .waiting import Waiting

HERE = Path(__file__).parent
SEED = int(os.environ.get("OPENBENCH_TEST_SEED", "0"))
# Some minutes, with more states and bytes than each run of all tests has time for; the profile of tests/conftest.py.
DEEP = os.environ.get("OPENBENCH_HYPOTHESIS") == "deep"
COUNTS: Counter[str] = Counter()  # of faults, printed at the end
# Others that write other files: "method=react tune=validation", "method=odin tune=none", "method=gradnorm tune=none".
METHOD = os.environ.get("OPENBENCH_FAULTS_METHOD", "method=knn method.k=1 tune=none")
RUN = (
    *("run", "+benchmark=pets", "backbone=resnet8_digits", *METHOD.split()),
    *("training.recipe.epochs=2", "metrics.replicates=20", "runtime.progress=false", "runtime.batch_size=8"),
)
ROOMS = ("cache", "results")
T = TypeVar("T")


def nothing() -> None:
    """What is done before a run that is left alone."""


def sampled(every: Sequence[T], stride: int, seed: int = SEED) -> list[T]:
    """Every how-manieth of a sequence; where to begin depends on the seed, so that each is reached by some seed."""
    return list(every[seed % stride :: stride])


def of_each_kind(names: Iterable[str], seed: int = SEED) -> list[str]:
    """One of the files that have the same name but for digests, e.g. the features of a set; all in the deep mode.

    Which of them depends on the seed, so that each is chosen by some seed.
    """
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(name if DEEP else re.sub(r"[0-9a-f]{12,}", "*", name), []).append(name)
    return [alike[seed % len(alike)] for alike in kinds.values()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how much was harmed."""
    if COUNTS:
        terminalreporter.write_line("faults: " + ", ".join(f"{n} {what}" for what, n in sorted(COUNTS.items())))


@dataclass(frozen=True)
class Ending:
    """How a process ended.

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
class Written:
    """A file as a run left it.

    Args:
        content: all bytes.
        mtime_ns: when it was written to last.
    """

    content: bytes
    mtime_ns: int


@dataclass(frozen=True)
class Place:
    """Where a run finds its images and leaves its files.

    Args:
        folder: holds `cache`, `results`, the images and the config folder `pets`.
    """

    folder: Path

    @property
    def written(self) -> dict[str, Written]:
        """Every file below cache and results that is not a lock."""
        files = [p for name in ROOMS for p in (self.folder / name).rglob("*") if p.is_file()]
        kept = [p for p in sorted(files) if not p.name.endswith(".lock")]
        return {str(p.relative_to(self.folder)): Written(p.read_bytes(), p.stat().st_mtime_ns) for p in kept}

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The numbers of the only record."""
        (path,) = (self.folder / "results").rglob("*.json")
        return json.loads(path.read_text())["metrics"]

    def reset(self, written: Mapping[str, Written | None]) -> None:
        """Make cache and results hold these files, with their time stamps, and nothing else; None is a folder."""
        for name in ROOMS:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name, file in written.items():
            path = self.folder / name
            (path if file is None else path.parent).mkdir(parents=True, exist_ok=True)
            if file is None:
                continue
            path.write_bytes(file.content)
            os.utime(path, ns=(file.mtime_ns, file.mtime_ns))

    def run(self, before: Callable[[], object] = nothing, command: Sequence[str] = RUN) -> Ending:
        """Run a command in a process of its own, after `before` was called there."""
        copy = small().copy(partial(self.be, before, command))
        text = copy.text()
        return Ending(copy.ended(), text)

    def be(self, before: Callable[[], object], command: Sequence[str]) -> NoReturn:
        """Become the process that runs a command, after `before` was called."""
        code = 99
        try:
            os.chdir(self.folder)
            os.environ["OPENBENCH_CACHE"] = str(self.folder / "cache")
            os.environ["OPENBENCH_RESULTS"] = str(self.folder / "results")
            before()
            code = main([*command, "--config-dir", "pets"] if "+benchmark=pets" in command else command)
            sys.stdout.flush()
        finally:
            loky = sys.modules.get("joblib.externals.loky.process_executor")
            if loky is not None:
                loky._python_exit()  # as Python does at its end; joblib's idle processes would wait for minutes
            os._exit(code)


# What a run imports when it gets there; else the first copy imports it, and then the process that it was copied from.
IMPORTED = (
    *("openbench.cli.commands.jobs", "openbench.cli.hydra.app", "openbench.engine.run", "openbench.backbones.cifar"),
    *("openbench.methods.knn", "openbench.training.methods.cross_entropy", "openbench.results.records.schema"),
    *("openbench.results.records.schema", "pandas", "pyarrow.parquet", "scipy.stats", "torch._dynamo"),
)


def quick() -> None:
    """What spares time in all processes that are copied from this one."""
    os.fsync = os.fstat  # type: ignore[assignment]  # as in tests/conftest.py
    for name in IMPORTED:
        importlib.import_module(name)
    loop.as_png = lambda *_: b"a curve"  # a file like others, and not three quarters of a training's time
    checkout.uncommitted()  # asks git here, once …
    checkout.made_now()  # … and for what records name
    provenance(Clock(), torch.device("cpu"), 0)  # parses what is known of nine libraries
    compose("run", ["+benchmark=digits"])  # finds Hydra's plug-ins and parses the files that most commands begin with


def rehearse(folder: Path) -> None:
    """Run once here, on files of its own: what is found out, compiled or filled at its first use, copies then have.

    Args:
        folder: of a place.
    """
    theirs = dict(os.environ), os.getcwd()
    with tempfile.TemporaryDirectory() as own, contextlib.redirect_stdout(io.StringIO()) as said:
        os.environ |= {"OPENBENCH_CACHE": f"{own}/cache", "OPENBENCH_RESULTS": f"{own}/results"}
        os.chdir(folder)
        code = main([*RUN, "--config-dir", "pets"])
    os.environ.clear()
    os.environ.update(theirs[0])
    os.chdir(theirs[1])
    assert code == 0, said.getvalue()
    gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs something slow: the place and the first run take ten seconds, whichever test asks for them."""
    for item in items:
        if item.path.parent == HERE and "place" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


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
    small().once(quick)
    return Place(folder)


@pytest.fixture(scope="session")
def cold(place: Place) -> Iterator["Waiting"]:
    """The run before its job, in a process where nothing has been run."""
    from .waiting import Waiting

    found = Waiting(place)
    yield found
    found.close()


@pytest.fixture(scope="session")
def standing(place: Place, cold: "Waiting") -> Iterator[Callable[[Sequence[str]], "Waiting"]]:
    """Commands before their job, each to be continued by all tests as often as is needed; after a rehearsal."""
    from .waiting import Waiting

    if not torch.accelerator.is_available():  # a process that has used one cannot be copied
        small().once(partial(rehearse, place.folder))
    with contextlib.ExitStack() as stack:

        @cache
        def before_its_job(command: Sequence[str]) -> Waiting:
            found = Waiting(place, command, cold.undisturbed if command == RUN else None)
            stack.callback(found.close)
            return found

        yield before_its_job


@pytest.fixture(scope="session")
def waiting(standing: Callable[[Sequence[str]], "Waiting"]) -> "Waiting":
    """The run before its job."""
    return standing(RUN)


@pytest.fixture(scope="session")
def undisturbed(waiting: "Waiting") -> dict[str, Written]:
    """The files of a run that nothing happened to."""
    return waiting.undisturbed


@pytest.fixture(scope="session")
def states(place: Place, waiting: "Waiting", undisturbed: dict[str, Written]) -> "States":
    """Those that the files of a run go through that nothing happens to."""
    from .states import states_of

    return states_of(place, waiting, {})
