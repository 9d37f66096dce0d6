"""The processes that train one network together: one alone, or those that `torchrun` started."""

import atexit
import os
import time
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from openbench.errors import ConfigError
from openbench.installation import pip_install

T = TypeVar("T")


class Team:
    """One process alone; each of these methods then has a trivial answer.

    Attributes:
        rank: which process this is, from 0; the first one writes files and speaks.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes files and speaks."""
        return self.rank == 0

    def device(self, asked: torch.device) -> torch.device:
        """Return the device on which this process computes, where `asked` was asked for."""
        return asked

    def share(self, count: int) -> slice:
        """Return which of `count` things, in order, are this process's; shares differ by at most one."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return a module whose backward pass leaves the mean of all processes' gradients."""
        return module

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over the processes, elementwise."""
        return values

    def told(self, value: T) -> T:
        """Return what the first process passed; the others may pass anything."""
        return value


class Torchrun(Team):
    """The processes of `torchrun`, joined by accelerate: NCCL between GPUs, gloo between CPUs.

    Args:
        cpu: whether to compute on the CPU although there are GPUs.
    """

    def __init__(self, cpu: bool) -> None:
        # Imported here, since it takes half a second and nothing else needs it.
        from accelerate import Accelerator

        self._accelerator = Accelerator(cpu=cpu)
        atexit.register(_leave)
        self.rank, self.size = self._accelerator.process_index, self._accelerator.num_processes
        if self.size != int(os.environ["WORLD_SIZE"]):
            raise RuntimeError(f"accelerate joined {self.size} processes of {os.environ['WORLD_SIZE']}")

    def device(self, asked: torch.device) -> torch.device:
        """Return this process's own GPU, or the CPU."""
        own: torch.device = self._accelerator.device
        return own

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module in DistributedDataParallel."""
        wrapped: nn.Module = self._accelerator.prepare_model(module)
        return wrapped

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over the processes."""
        summed: Tensor = self._accelerator.reduce(values, reduction="sum")
        return summed

    def told(self, value: T) -> T:
        """Return the first process's value, pickled on the way."""
        from accelerate.utils import broadcast_object_list

        box: list[Any] = [value]
        broadcast_object_list(box, from_process=0)
        told: T = box[0]
        return told


ALONE = Team()

_STILL = 3  # looks in a row
_LOOK_SECONDS = 0.005
_LEAVE_SECONDS = 10.0


def _leave() -> None:
    """Leave the other processes, once gloo's threads have nothing left to do.

    Such a thread lets go of a tensor only some time after the tensor was exchanged. Where that is while Python ends, it
    asks for an interpreter that is no longer given to anyone, which aborts the process with all its work done. To
    destroy the group does not always end the threads: what else holds it need not be free yet.
    """
    torch.distributed.destroy_process_group()
    still, until = 0, time.monotonic() + _LEAVE_SECONDS
    while still < _STILL and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)  # the interpreter is given to whichever thread asks
        still = 0 if _at_work() else still + 1


def _at_work() -> bool:
    """Whether a thread other than this one computes, or waits for a processor; False where the system does not say."""
    own = os.getpid()
    for stat in Path("/proc/self/task").glob("[0-9]*/stat"):
        try:
            state = stat.read_text("ascii", "replace").rpartition(") ")[2][:1]
        except OSError:  # it has ended
            continue
        if state == "R" and int(stat.parent.name) != own:
            return True
    return False


def under_torchrun() -> bool:
    """Return whether `torchrun` started this process as one of several."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


@cache
def team(device: str) -> Team:
    """Return the processes that this one belongs to; they meet at the first call.

    Args:
        device: the runtime's `device`; `cpu` computes there although there are GPUs.

    Raises:
        ConfigError: accelerate is not installed, or a single device is asked for by number.
    """
    if not under_torchrun():
        return ALONE
    if ":" in device:
        raise ConfigError(
            f"runtime.device={device} — torchrun gives each process its own device — allowed: auto, cuda, cpu — "
            "leave the number out, and choose GPUs with CUDA_VISIBLE_DEVICES"
        )
    try:
        # Unless told `cpu`, accelerate joins CPU processes of a machine without GPUs only under its own launcher.
        return Torchrun(cpu=device == "cpu" or not torch.cuda.is_available())
    except ImportError as error:
        raise ConfigError(
            "training in several processes needs accelerate — it cannot be imported: "
            f"{error} — {pip_install('distributed')}, or start without torchrun"
        ) from error


def require_one_process(command: str) -> None:
    """Raise ConfigError under torchrun: only training is divided, everything else would be done once per process."""
    if under_torchrun():
        raise ConfigError(
            f"`{command}` runs in one process — found {os.environ['WORLD_SIZE']}, started by torchrun — first run "
            "`torchrun … -m openbench train` with the same arguments, then this command without torchrun"
        )
