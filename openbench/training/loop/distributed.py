"""Distributed training: the processes of torchrun, and batch norm over the images of all of them."""

import atexit
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from openbench.core.runtime import under_torchrun
from openbench.errors import ConfigError, pip_install

T = TypeVar("T")
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class Team:
    """A single process; the base of several.

    Attributes:
        rank: of this process, from 0; the first one writes files and messages.
        size: number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def device(self, requested: torch.device) -> torch.device:
        """Return the device on which this process computes."""
        return requested

    def share(self, count: int) -> slice:
        """Return this process's part of `count` items; parts differ in size by at most one."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return a module whose backward pass leaves the mean of all processes' gradients."""
        return module

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over the processes, elementwise."""
        return values

    def broadcast(self, value: T) -> T:
        """Return the first process's value; the others may pass anything."""
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

    def device(self, requested: torch.device) -> torch.device:
        """Return this process's GPU, or the CPU."""
        return self._accelerator.device

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module in DistributedDataParallel."""
        return self._accelerator.prepare_model(module)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over the processes."""
        return self._accelerator.reduce(values, reduction="sum")

    def broadcast(self, value: T) -> T:
        """Return the first process's value, pickled on the way."""
        from accelerate.utils import broadcast_object_list

        values = [value]
        broadcast_object_list(values, from_process=0)
        return values[0]


ALONE = Team()


def _leave() -> None:
    """Leave the process group, and give gloo's threads a second to end.

    Such a thread frees its last tensor with some delay. If Python is shutting down by then, the process aborts.
    """
    torch.distributed.destroy_process_group()
    time.sleep(1.0)


@cache
def team(device: str) -> Team:
    """Return the processes that train with this one; the first call connects them.

    Args:
        device: the runtime's `device`; `cpu` computes there although there are GPUs.

    Raises:
        ConfigError: accelerate is not installed, or a single device is asked for by number.
    """
    if not under_torchrun():
        return ALONE
    if ":" in device:
        raise ConfigError(
            f"runtime.device={device}, but torchrun gives each process its own device — write auto, cuda or cpu, and "
            "choose GPUs with CUDA_VISIBLE_DEVICES"
        )
    try:
        # Unless told `cpu`, accelerate joins CPU processes of a machine without GPUs only under its own launcher.
        return Torchrun(cpu=device == "cpu" or not torch.cuda.is_available())
    except ImportError as error:
        raise ConfigError(
            f"training in several processes needs accelerate, which cannot be imported ({error}) — "
            f"{pip_install('distributed')}, or start without torchrun"
        ) from error


def require_one_process(command: str) -> None:
    """Raise ConfigError under torchrun: only training is divided, everything else would be done once per process."""
    if under_torchrun():
        raise ConfigError(
            f"`{command}` runs in one process, and torchrun started {os.environ['WORLD_SIZE']} — first run "
            "`torchrun … -m openbench train` with the same arguments, then this command without torchrun"
        )


@contextmanager
def sync_batch_norm(module: nn.Module, team: Team) -> Iterator[None]:
    """Let every batch norm in a module use mean and variance over all processes while the body runs.

    Unlike torch's SyncBatchNorm, it works on any device.
    """
    parts = [part for part in module.modules() if isinstance(part, BatchNorm)] if team.size > 1 else []
    for part in parts:
        part.forward = partial(_normalised, part, team)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def _normalised(norm: BatchNorm, team: Team, x: Tensor) -> Tensor:
    """Return γ(x − μ)/√(σ² + ε) + β with μ and σ² over the batches of all processes; in eval mode, as usual."""
    if not norm.training:
        return functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    values = x.float()
    count = team.sum(torch.tensor(float(x.numel() // x.shape[1]), device=x.device))
    # The mean first, then squares about it: E[x²] − E[x]² would cancel in float32.
    mean: Tensor = _Sum.apply(values.sum(axes), team) / count  # type: ignore[no-untyped-call]
    centred = values - mean.view(shape)
    variance: Tensor = _Sum.apply(centred.square().sum(axes), team) / count  # type: ignore[no-untyped-call]
    _update_running(norm, mean.detach(), variance.detach() * count / (count - 1))
    y = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.affine:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    return y.to(x.dtype)


def _update_running(norm: BatchNorm, mean: Tensor, variance: Tensor) -> None:
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean, momentum)
    norm.running_var.lerp_(variance, momentum)


class _Sum(torch.autograd.Function):
    """Sum over processes; the gradient of a sum that every process uses is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, team: Team) -> Tensor:
        ctx.team = team
        return team.sum(values.contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.team.sum(gradient.contiguous()), None
