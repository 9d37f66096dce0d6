"""Parts of a network whose forward passes torch's compiler has made faster, while a body runs."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from types import MethodType
from typing import Any

import torch
from torch import nn

from openbench.backbones.anatomy import Anatomy
from openbench.errors import ConfigError

Compiled = Sequence[tuple[nn.Module, Callable[..., Any]]]  # parts and the forward passes that stand in for theirs
_CALLED_BY_NOBODY = (nn.ModuleList, nn.ModuleDict)  # their children are called, they are not
_TURN = RLock()  # of the thread whose compiled passes run


def compiled_parts(parts: Sequence[nn.Module], **how: Any) -> Compiled:
    """Return parts with forward passes that are compiled when they are first called.

    Args:
        parts: none inside another.
        how: arguments of `torch.compile`.
    """
    return [(part, torch.compile(_own(part), **how)) for part in parts]


def installed(compiled: Compiled) -> AbstractContextManager[None]:
    """Let parts run compiled while the body does; afterwards they are as before. Other threads wait for their turn.

    A part with a forward pass of its own, in place of its class's, keeps it.

    Raises:
        ConfigError: torch's compiler failed.
    """
    return _installed(compiled) if compiled else nullcontext()


@contextmanager
def _installed(compiled: Compiled) -> Iterator[None]:
    with _TURN:
        free = [(part, forward) for part, forward in compiled if "forward" not in vars(part)]
        for part, forward in free:
            part.forward = forward
        try:
            yield
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().split("\n")[0]
            raise ConfigError(
                f"torch.compile failed: {reason} — leave backbone.compile and runtime.compile out"
            ) from error
        finally:
            for part, _ in free:
                del part.forward


def whole_parts(module: nn.Module, anatomy: Anatomy) -> list[nn.Module]:
    """Return the largest parts of a network that have weights and whose inside nobody reads, each once.

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
        if inside or isinstance(child, _CALLED_BY_NOBODY):
            yield from _whole(child, head, read)
        elif child is not head and any(True for _ in child.parameters()):
            yield child


def _own(part: nn.Module) -> MethodType:
    """A part's forward with its own code object, since torch keeps a limited number of compiled versions for each.

    Parts that share a code object, as all Sequentials do, would exceed the limit, and the last would not be compiled.
    """

    def forward(self: nn.Module, *arguments: Any, **named: Any) -> Any:
        return type(self).forward(self, *arguments, **named)

    forward.__code__ = forward.__code__.replace()
    return MethodType(forward, part)


def check_compiler(device: torch.device) -> None:
    """Check that torch's compiler has what it needs for a device: a C++ compiler, or Triton.

    Raises:
        ConfigError: that is not installed, or the device is neither a CPU nor CUDA.
    """
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"backbone.compile=true — the device is '{device}' — allowed: cpu, cuda — choose one of them by "
            "runtime.device, or leave backbone.compile out"
        )
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        raise ConfigError(
            "backbone.compile=true — Triton, which compiles for CUDA, is not installed — pip install triton, or leave "
            "backbone.compile out"
        )
    wanted = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # as torch looks for it
    if device.type == "cpu" and not shutil.which(wanted):
        raise ConfigError(
            f"backbone.compile=true — no C++ compiler found — needed on a CPU: {wanted} — install it (apt install g++) "
            "or name another by the environment variable CXX, or leave backbone.compile out"
        )
