"""Devices, and the arithmetic of a precision."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import torch
from torch import Tensor

from openbench.errors import ConfigError, did_you_mean

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_KINDS = ("auto", "cpu", "cuda", "mps")


def resolve_device(name: str = "auto") -> torch.device:
    """Return the device that `name` stands for: `auto` is CUDA if present, else MPS, else the CPU.

    Args:
        name: `auto`, `cpu`, `mps`, `cuda` or `cuda:<index>`.

    Raises:
        ConfigError: an unknown name, or a device that this machine or this build of torch lacks.
    """
    mps = int(torch.backends.mps.is_available())
    # NVML counts GPUs that torch cannot use, with a driver that is too old.
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    count = {"cuda": cuda, "mps": mps, "cpu": 1}
    try:
        device = torch.device(next(kind for kind in count if count[kind]) if name == "auto" else name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or (device.index or 0) >= count.get(device.type, 0):
        raise ConfigError(
            f"device {name!r} is not on this machine (torch {torch.__version__} finds {cuda} CUDA devices and {mps} of "
            f"Metal){did_you_mean(str(name), _KINDS)} — allowed: auto, cpu, cuda, cuda:<index>, mps"
        )
    return device


def check_precision(precision: str, device: torch.device, key: str = "backbone.precision") -> None:
    """Check that a device has products of a precision, which the config says at `key`.

    Raises:
        ConfigError: `fp16` on a CPU.
    """
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError(f"{key}=fp16 needs a GPU — choose fp32, tf32 or bf16 on a CPU, or runtime.device=cuda")


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """Run the body with float32 products rounded as `precision` says, whatever the process had set before.

    cuDNN rounds convolution inputs to TF32 by default; a score must not depend on that. With `bf16` and `fp16` products
    and convolutions are made in 16 bits (autocast) while weights, normalisation and softmax stay float32.

    Raises:
        ConfigError: `fp16` on a CPU, which has no products of that kind.
    """
    check_precision(precision, device)
    with ExitStack() as stack:
        if precision in HALVES:
            stack.enter_context(torch.autocast(device.type, HALVES[precision]))
        if device.type == "cuda":
            matmul, tf32 = torch.backends.cuda.matmul, precision == "tf32"
            stack.callback(setattr, matmul, "allow_tf32", matmul.allow_tf32)
            matmul.allow_tf32 = tf32
            stack.enter_context(torch.backends.cudnn.flags(True, benchmark=False, deterministic=True, allow_tf32=tf32))
        yield


def as_input(images: Tensor, device: torch.device) -> Tensor:
    """Return images as a network's input: float32, channels last, on `device`.

    On their way to a GPU they pass through page-locked memory, so that copying and computing overlap.
    """
    if device.type == "cuda" and images.device.type == "cpu":
        images = images.pin_memory()
    return images.to(device, torch.float32, non_blocking=True, memory_format=torch.channels_last)
