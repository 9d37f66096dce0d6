"""Devices, the arithmetic of a precision, and torch's compiler."""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from openbench.backbones.anatomy import Anatomy
from openbench.errors import ConfigError, did_you_mean

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_KINDS = ("auto", "cpu", "cuda", "mps")
Compiled = Sequence[tuple[nn.Module, Callable[..., Any]]]  # parts and the forward passes that stand in for theirs
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # their children are called, they are not
_LOCK = RLock()  # held by the thread whose compiled passes run


def resolve_device(name: str = "auto") -> torch.device:
    """Return the device that `name` stands for: `auto` is CUDA if present, else MPS, else the CPU.

    Args:
        name: `auto`, `cpu`, `mps`, `cuda` or `cuda:<index>`.

    Raises:
        ConfigError: an unknown name, or a device that this machine or this build of torch lacks.
    """
    if name == "auto":
        best = "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device("cuda" if torch.cuda.is_available() else best)
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    if device is None or device.type not in _KINDS:
        hint = did_you_mean(str(name), _KINDS)
        raise ConfigError(f"device {name!r} is unknown{hint} — allowed: auto, cpu, cuda, cuda:<index>, mps")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        built = "" if torch.version.cuda else f"; torch {torch.__version__} is built without CUDA"
        raise ConfigError(f"device '{name}' is absent ({count} CUDA devices{built}) — use runtime.device=auto or cpu")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device '{name}' is absent: torch finds no Metal device — use runtime.device=auto or cpu")
    return device


def check_precision(precision: Precision, device: torch.device) -> None:
    """Check that a device has products of a precision.

    Raises:
        ConfigError: `fp16` on a CPU.
    """
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError(
            "backbone.precision=fp16 needs a GPU — choose fp32, tf32 or bf16 on a CPU, or runtime.device=cuda"
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


def compiled_parts(parts: Sequence[nn.Module], **how: Any) -> Compiled:
    """Return parts with forward passes that are compiled when they are first called.

    Args:
        parts: none inside another.
        how: arguments of `torch.compile`.
    """
    return [(part, torch.compile(_with_code_object(part), **how)) for part in parts]


@contextmanager
def installed(compiled: Compiled) -> Iterator[None]:
    """Let parts run compiled while the body does; afterwards they are as before. Other threads wait.

    A part with a forward pass of its own, in place of its class's, keeps it.

    Raises:
        ConfigError: torch's compiler failed.
    """
    if not compiled:
        yield
        return
    with _LOCK:
        free = [(part, forward) for part, forward in compiled if "forward" not in vars(part)]
        for part, forward in free:
            part.forward = forward
        try:
            yield
        except RuntimeError as error:
            if "dynamo" not in type(error).__module__:  # the network's own, such as lack of memory
                raise
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(
                f"torch.compile failed: {reason} — leave backbone.compile and runtime.compile out"
            ) from error
        finally:
            for part, _ in free:
                del part.forward


def whole_parts(module: nn.Module, anatomy: Anatomy) -> list[nn.Module]:
    """Return the largest parts of a network with weights and without a module that is read, each once.

    Features and maps are read by hooks; a part compiled as a whole would not call those inside it.

    Args:
        module: the network.
        anatomy: which of its modules are read.
    """
    head = anatomy.classifier(module)
    return list(dict.fromkeys(_whole(module, head, {head, *map(module.get_submodule, anatomy.stages.values())})))


def _whole(module: nn.Module, head: nn.Module, read: Container[nn.Module]) -> Iterator[nn.Module]:
    for child in module.children():
        inside = any(part in read for part in child.modules() if part is not child)
        if inside or isinstance(child, _CONTAINERS):
            yield from _whole(child, head, read)
        elif child is not head and any(True for _ in child.parameters()):
            yield child


def _with_code_object(part: nn.Module) -> MethodType:
    """A part's forward with its own code object, since torch keeps a limited number of compiled versions for each.

    Parts that share a code object, as all Sequentials do, would exceed the limit, and the last would not be compiled.
    """

    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        return type(self).forward(self, *arguments, **named)

    forward.__code__ = forward.__code__.replace()
    return MethodType(forward, part)
