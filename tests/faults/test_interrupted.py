"""Ctrl-C while a network computes: the command stops where it stands, and not one more layer is computed."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from openbench.cli.process import take_signals

from .conftest import RUN, Ending, Place
from .waiting import Waiting


def press_at(note: Path, last: int) -> None:
    """Have this process note each layer that it computes, and be sent Ctrl-C at one of them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background ignore it
    take_signals()
    stream = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    count = 0

    def begins(module: nn.Module, inputs: object) -> None:
        nonlocal count
        count += 1
        os.write(stream, b".")
        if count == last:
            signal.raise_signal(signal.SIGINT)

    nn.modules.module.register_module_forward_pre_hook(begins)


def pressed(place: Place, waiting: Waiting, last: int) -> tuple[Ending, int]:
    """How a run on nothing ends that is interrupted at a layer, and how many layers it has computed by then."""
    place.reset({})
    note = place.folder / "layers"
    ending = waiting.run(partial(press_at, note, last))
    return ending, note.stat().st_size


@pytest.mark.slow
def test_no_layer_is_computed_after_an_interrupt(place: Place, waiting: Waiting):
    _, every = pressed(place, waiting, 0)
    assert every > 300
    # The first one, in the middle of the training, and in the last set that is extracted.
    for last in (1, every // 3, every):
        ending, computed = pressed(place, waiting, last)
        assert (ending.code, computed) == (130, last), ending.text
        assert ("interrupted" in ending.text, "Traceback" in ending.text) == (True, False)


@pytest.mark.slow
def test_no_job_of_a_sweep_begins_after_an_interrupt(place: Place):
    place.reset({})
    note = place.folder / "layers"
    words = [word for word in RUN if not word.startswith(("method", "tune"))]
    command = (*words[:1], "-m", *words[1:], "method=msp,energy,mls")
    ending = place.run(partial(press_at, note, 100), command)
    assert (ending.code, note.stat().st_size) == (130, 100), ending.text
    last = [line for line in ending.text.splitlines() if line.startswith("sweep: ")]
    assert [line.split(";")[0] for line in last] == ["sweep: 3 jobs, 0 done, 0 failed, 1 not ended, 2 not run"]
