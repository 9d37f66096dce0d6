import base64
import gc
import os
import pickle
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

# One thread per worker: the suite runs in parallel, and results must not depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What the processor says of its instructions is taken for true: torch's compiler would otherwise build a program for
# each kind of them, to see whether it runs, before it compiles anything.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# PyOD's functions are compiled when they are first called, which takes six seconds of each process; as Python they are
# fast enough for what a test has.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")

# What a test writes need not outlast a power cut, and waiting for the disk at every write leaves processors idle.
os.fsync = os.fstat  # type: ignore[assignment]  # which fails as it does where a file is closed

# The suite gives the same result every time. Tests that hold only by luck are found by another seed, from which
# they draw other numbers and hypothesis other examples: OPENBENCH_TEST_SEED=7 pytest.
SEED = int(os.environ.get("OPENBENCH_TEST_SEED", "0"))
hypothesis.settings.register_profile("openbench", derandomize=SEED == 0, deadline=None, max_examples=40)
# Some minutes of generated input, after a change to what reads it.
hypothesis.settings.register_profile("deep", hypothesis.settings.get_profile("openbench"), max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("OPENBENCH_HYPOTHESIS", "openbench"))


CONFIGS = Path(__file__).parents[1] / "configs"

# A PNG of one pixel.
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Spare trainings the drawing of their curve, and Hydra to read and compose the same configs again.

    A curve takes ten times as long as four epochs of a toy network; a training leaves a picture all the same. A
    composition takes a fifth of a second, a quarter of it for reading the same YAML again. Before all fixtures, since
    those of a module train and compose.
    """
    if loop := sys.modules.get("openbench.training.loop._loop"):
        loop.as_png = lambda *_: PICTURE
    config = sys.modules.get("openbench.compose.config")
    if config is not None and config.hydra_compose is not composed_once:
        COMPOSING.append(config.hydra_compose)
        config.hydra_compose = composed_once
        config.OmegaConf.load = staticmethod(read_once(config.OmegaConf.load))


def read_once(load: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`OmegaConf.load`, which remembers what it read of open files by their text."""
    read: dict[str, bytes] = {}

    def again(file: Any) -> Any:
        if not hasattr(file, "read"):
            return load(file)
        text = file.read()
        if text not in read:
            file.seek(0)
            read[text] = pickle.dumps(load(file))
        return pickle.loads(read[text])

    return again


COMPOSING: list[Callable[..., Any]] = []
COMPOSED: dict[tuple[str | bytes, ...], bytes] = {}


def composed_once(command: str, overrides: list[str], **options: Any) -> Any:
    """What Hydra composes of these words and of these files, which is remembered."""
    from openbench import paths

    own = [] if paths.config_dir() == CONFIGS else [paths.config_dir()]
    typed = [word for word in overrides if not word.startswith("hydra.searchpath=")]
    own += [Path(found) for word in overrides if word not in typed for found in re.findall(r"file://([^\]',]+)", word)]
    files = [file for folder in own for file in sorted(folder.rglob("*.yaml"))]
    key = (command, *typed, *(part for file in files for part in (file.name, file.read_bytes())))
    if key not in COMPOSED:
        COMPOSED[key] = pickle.dumps(COMPOSING[0](command, overrides, **options))
    return pickle.loads(COMPOSED[key])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Look for garbage only among what the tests make, not among the modules and the tests themselves."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # And not at every 700 objects: a sixteenth of what Python code costs. What is loaded later is looked at rarely.
        gc.set_threshold(50_000, 20, 50)
        gc.enable()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Each test starts from the same random state, whichever ran before it."""
    seed_all()


def seed_all() -> None:
    """Start the global generators anew."""
    random.seed(SEED)
    # The global state: libraries draw from it.
    np.random.seed(SEED)  # noqa: NPY002
    if "torch" in sys.modules:  # the metrics need no torch, nor do their tests
        # torch.manual_seed keeps a stack trace per call for each kind of device that is not in use.
        sys.modules["torch"].default_generator.manual_seed(SEED)


def pytest_sessionfinish() -> None:
    """Look for garbage for the last time: pytest looks five times at its end, among all that the tests imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def real_data() -> Path:
    """The folder of real images, or a skip that says what is missing."""
    folder = os.environ.get("OPENBENCH_DATA")
    if not folder:
        pytest.skip("real images: OPENBENCH_DATA is not set")
    return Path(folder.split(os.pathsep)[0])
