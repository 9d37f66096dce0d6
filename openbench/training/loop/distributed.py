"""Distributed training: the processes of torchrun, and batch norm over the images of all of them."""

import atexit
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from openbench.backbones.base import resolve_device
from openbench.core.runtime import under_torchrun
from openbench.errors import ConfigError

T = TypeVar("T")
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class Team:
    """The processes that train together, of torch's default group; by default this process alone.

    Args:
        rank: of this process, from 0; the first one writes files and messages.
        size: number of processes.
        own: the device of this process among several.
    """

    def __init__(self, rank: int = 0, size: int = 1, own: torch.device | None = None) -> None:
        self.rank, self.size, self._own = rank, size, own

    @property
    def leads(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def device(self, requested: str) -> torch.device:
        """Return the device on which this process computes."""
        return self._own or resolve_device(requested)

    def share(self, count: int) -> slice:
        """Return this process's part of `count` items; parts differ in size by at most one."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return a module whose backward pass leaves the mean of all processes' gradients."""
        return module if self._own is None else DistributedDataParallel(module)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over the processes, elementwise."""
        if self._own is not None:
            values = values.clone()
            distributed.all_reduce(values)
        return values

    def broadcast(self, value: T) -> T:
        """Return the first process's value, pickled on the way; the others may pass anything."""
        values = [value]
        if self._own is not None:
            distributed.broadcast_object_list(values, src=0)
        return values[0]


ALONE = Team()


def _leave() -> None:
    """Leave the process group, and give gloo's threads a second to end.

    Such a thread frees its last tensor with some delay. If Python is shutting down by then, the process aborts.
    """
    distributed.destroy_process_group()
    time.sleep(1.0)


@cache
def team(device: str) -> Team:
    """Return the processes that train with this one; the first call connects them.

    Args:
        device: the runtime's `device`; `cpu` computes there although there are GPUs.

    Raises:
        ConfigError: a single device is asked for by number.
    """
    if not under_torchrun():
        return ALONE
    if ":" in device:
        raise ConfigError(
            f"runtime.device={device}, but torchrun gives each process its own device — write auto, cuda or cpu, and "
            "choose GPUs with CUDA_VISIBLE_DEVICES"
        )
    own = torch.device("cpu")
    if device != "cpu" and torch.cuda.is_available():
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
    distributed.init_process_group("gloo" if own.type == "cpu" else "nccl")
    atexit.register(_leave)
    return Team(distributed.get_rank(), distributed.get_world_size(), own)


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
    if norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        momentum = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(mean.detach(), momentum)
        norm.running_var.lerp_(variance.detach() * count / (count - 1), momentum)
    y = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.affine:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    return y.to(x.dtype)


class _Sum(torch.autograd.Function):
    """Sum over processes; the gradient of a sum that every process uses is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, team: Team) -> Tensor:
        ctx.team = team
        return team.sum(values.contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.team.sum(gradient.contiguous()), None
