"""Batch norm whose statistics are those of the whole batch, though each process sees a share of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from openbench.training.loop.distributed import Team


@contextmanager
def whole_batch_statistics(module: nn.Module, team: Team) -> Iterator[None]:
    """Let every batch norm in a module take mean and variance over all processes while the body runs.

    torch's SyncBatchNorm does so only on GPUs; this one needs only a sum over processes, and works on any device.
    """
    parts = [part for part in module.modules() if isinstance(part, _BatchNorm)] if team.size > 1 else []
    for part in parts:
        part.forward = partial(_normalised, part, team)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def _normalised(norm: _BatchNorm, team: Team, x: Tensor) -> Tensor:
    """Return γ(x − μ)/√(σ² + ε) + β with μ and σ² over the batches of all processes; in eval mode, as usual."""
    if not norm.training:
        return functional.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
    axes = [axis for axis in range(x.ndim) if axis != 1]
    shape = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    values = x.float()
    count = team.total(torch.tensor(float(x.numel() // x.shape[1]), device=x.device))
    # The mean first, then squares about it: E[x²] − E[x]² would cancel in float32.
    mean: Tensor = _Sum.apply(values.sum(axes), team) / count  # type: ignore[no-untyped-call]
    centred = values - mean.view(shape)
    variance: Tensor = _Sum.apply(centred.square().sum(axes), team) / count  # type: ignore[no-untyped-call]
    _follow(norm, mean.detach(), variance.detach() * count / (count - 1))
    y = centred * torch.rsqrt(variance + norm.eps).view(shape)
    if norm.affine:
        y = y * norm.weight.view(shape) + norm.bias.view(shape)
    return y.to(x.dtype)


def _follow(norm: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
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
        return team.total(values.contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.team.total(gradient.contiguous()), None
