"""Where networks run: device names resolved once, and arithmetic that does not depend on global switches."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
    if not isinstance(name, str):
        raise ConfigError(f"device — found {name!r} — allowed: auto, cpu, cuda, cuda:<index>, mps")
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in _KINDS:
        hint = did_you_mean(name, _KINDS)
        raise ConfigError(f"device '{name}' is unknown{hint} — allowed: auto, cpu, cuda, cuda:<index>, mps")
    _check_present(device, name)
    return device


def _check_present(device: torch.device, name: str) -> None:
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            built = "" if torch.version.cuda else f" (torch {torch.__version__} is built without CUDA)"
            raise ConfigError(
                f"device '{name}' is absent — found {count} CUDA devices{built} — use runtime.device=auto or cpu"
            )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            f"device '{name}' is absent — this torch finds no Metal device — use runtime.device=auto or cpu"
        )


def check_precision(precision: Precision, device: torch.device) -> None:
    """Check that a device has products of a precision.

    Raises:
        ConfigError: `fp16` on a CPU.
    """
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError(
            "backbone.precision=fp16 — the device is 'cpu' — allowed there: fp32, tf32, bf16; "
            "or choose runtime.device=cuda"
        )


def arithmetic(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Run the body with float32 products rounded as `precision` says, whatever the process had set before.

    cuDNN rounds convolution inputs to TF32 by default; a score must not depend on that. With `bf16` and `fp16` products
    and convolutions are made in 16 bits (autocast) while weights, normalisation and softmax stay float32.

    Raises:
        ConfigError: `fp16` on a CPU, which has no products of that kind.
    """
    if precision in HALVES:
        return _halved(precision, device)
    return _rounding(precision == "tf32") if device.type == "cuda" else nullcontext()


@contextmanager
def _halved(precision: Precision, device: torch.device) -> Iterator[None]:
    check_precision(precision, device)
    with torch.autocast(device.type, HALVES[precision]), arithmetic("fp32", device):
        yield


@contextmanager
def _rounding(allow: bool) -> Iterator[None]:
    matmul = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allow
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=allow):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = matmul


def as_input(images: Tensor, device: torch.device) -> Tensor:
    """Return images as a network's input: float32, channels last, on `device`.

    On their way to a GPU they pass through page-locked memory, so that copying and computing overlap.
    """
    if device.type == "cuda" and images.device.type == "cpu":
        images = images.pin_memory()
    return images.to(device, torch.float32, non_blocking=True, memory_format=torch.channels_last)
