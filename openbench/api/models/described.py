"""What an object of the user's own is made of, as one digest: classes, plain attributes, tensors, code of functions."""

import functools
import inspect
import logging
import re
import secrets
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openbench.digest import array_sha256, bytes_sha256, digest
from openbench.source import Code, foreign_sources, unknown_sources

_TORCH_OWN = frozenset(vars(nn.Module())) | {"training"}
_OF_TIMM = frozenset({"_model_args", "default_cfg", "pretrained_cfg"})  # how a network was asked for
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GRADIENT_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SHOWN = 600  # characters of a repr that a record keeps


@dataclass(frozen=True)
class Description:
    """What an object computes with, besides a network's weights.

    Args:
        digest: equal digests, equal computation; random where part of the object cannot be told apart from others.
        code: the classes and functions in it.
        unknown: names of what cannot be told apart; empty = all is known.
    """

    digest: str
    code: tuple[Code, ...]
    unknown: tuple[str, ...]

    @property
    def sources(self) -> dict[str, str]:
        """{module: SHA-256} of the code in it that openbench does not ship; a random word for code without a file."""
        return foreign_sources(_Holder(self.code))

    @property
    def nameless(self) -> tuple[str, ...]:
        """Classes and functions that were typed into a session, and what else cannot be told apart."""
        return (*unknown_sources(self.sources), *self.unknown)


@dataclass(eq=False)
class _Holder:
    """Carries code, so that a random word for code without a file is noted here and not on the user's object."""

    made_of: tuple[Code, ...]


def described(value: object, weights: bool = True) -> Description:
    """Return what an object is made of.

    Args:
        value: a transform, a network, a function, or any object.
        weights: whether the parameters and saved buffers of networks count; their content has a digest of its own.
    """
    visit = _Visit(weights)
    found = digest(visit.plain(value, type(value).__name__), 64)
    if visit.unknown:
        found = digest([found, secrets.token_hex(8)], 64)
    return Description(found, tuple(visit.code), tuple(visit.unknown))


def gradient_hooks(module: nn.Module) -> list[object]:
    """Return the hooks of a module, without its parts, through which gradients pass on their way back."""
    return [hook for name in _GRADIENT_HOOKS for hook in getattr(module, name, {}).values()]


def shown(value: object) -> str:
    """Return how an object presents itself in a record: its source if it is a function, else its repr, shortened."""
    text = repr(value)
    if inspect.isfunction(value):
        with suppress(OSError, TypeError):
            text = inspect.getsource(value)
    text = _ADDRESS.sub("", text.strip())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class _Visit:
    """One walk through an object; whatever was met before is named by its number."""

    def __init__(self, weights: bool) -> None:
        self.weights = weights
        self.code: dict[Code, None] = {}
        self.unknown: list[str] = []
        self._seen: dict[int, tuple[int, object]] = {}

    def plain(self, value: Any, where: str) -> Any:
        """The value as something that `digest` takes."""
        if value is None or isinstance(value, bool | int | float | str):
            return _enumerated(value) if isinstance(value, Enum) else value
        simple = _simple(value)
        if simple is not None:
            return simple
        if id(value) in self._seen:
            return f"again {self._seen[id(value)][0]}"
        self._seen[id(value)] = (len(self._seen), value)
        if isinstance(value, Mapping):
            items = [(self.plain(k, where), self.plain(v, f"{where}.{k}")) for k, v in value.items()]
            return ["mapping", *([k, v] for k, v in items)]
        if isinstance(value, list | tuple):
            return [self.plain(item, where) for item in value]
        if isinstance(value, set | frozenset):
            return ["set", *sorted((self.plain(item, where) for item in value), key=str)]
        if isinstance(value, type) or callable(getattr(value, "__code__", None)) or inspect.isroutine(value):
            return self._code(value, where)
        if isinstance(value, functools.partial):
            return ["partial", *(self.plain(part, where) for part in (value.func, value.args, value.keywords))]
        return self._module(value, where) if isinstance(value, nn.Module) else self._object(value, where)

    def _code(self, value: Any, where: str) -> Any:
        if inspect.ismethod(value):
            return ["method", self.plain(value.__func__, where), self.plain(value.__self__, where)]
        name = f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value)}"
        if isinstance(value, type):
            self.code[value] = None
            return ["class", name]
        if not inspect.isfunction(value):
            return ["builtin", _ADDRESS.sub("", name)]
        self.code[value] = None
        cells = [self._cell(cell, where) for cell in value.__closure__ or ()]
        defaults = [self.plain(part, where) for part in (value.__defaults__, value.__kwdefaults__)]
        return ["function", name, list(_instructions(value.__code__)), cells, defaults]

    def _cell(self, cell: Any, where: str) -> Any:
        try:
            return self.plain(cell.cell_contents, where)
        except ValueError:  # not yet filled
            return "empty"

    def _module(self, module: nn.Module, where: str) -> Any:
        kind = type(module)
        self.code[kind] = None
        if isinstance(module, torch.jit.ScriptModule):
            return ["script", str(module.inlined_graph), self._state(module)]
        attributes = {name: value for name, value in vars(module).items() if name not in _TORCH_OWN | _OF_TIMM}
        if isinstance(module, torch.fx.GraphModule):
            attributes = {"code": module.code}
        parts = {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "attributes": self.plain(dict(sorted(attributes.items())), where),
            "hooks": [self.plain(list(getattr(module, name).values()), f"{where} hooks") for name in _HOOKS],
            "state": self._state(module),
        }
        if changing := gradient_hooks(module):
            parts["gradient hooks"] = self.plain(changing, f"{where} gradient hooks")
        children = [[name, self.plain(child, f"{where}.{name}")] for name, child in module.named_children()]
        return [parts, children]

    def _state(self, module: nn.Module) -> dict[str, Any]:
        """The tensors of this module alone: those that a state dict leaves out, and the others if weights count."""
        unsaved: set[str] = getattr(module, "_non_persistent_buffers_set", set())
        kept = {n: t for n, t in module.named_buffers(recurse=False) if n in unsaved or self.weights}
        if self.weights:
            kept |= dict(module.named_parameters(recurse=False))
        return {name: _tensor(tensor) for name, tensor in kept.items()}

    def _object(self, value: Any, where: str) -> Any:
        kind = type(value)
        self.code[kind] = None
        name = f"{kind.__module__}.{kind.__qualname__}"
        attributes = dict(_attributes(value))
        if attributes or hasattr(value, "__dict__"):
            return [name, self.plain(dict(sorted(attributes.items())), where)]
        text = repr(value)
        if _ADDRESS.search(text):
            self.unknown.append(f"{where} ({name})")
        return [name, _ADDRESS.sub("", text)]


def _simple(value: Any) -> Any:
    """Values of the libraries as plain ones; None for anything else."""
    if isinstance(value, bytes | bytearray):
        return ["bytes", bytes_sha256(bytes(value))]
    if isinstance(value, Enum):
        return _enumerated(value)
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return ["array", array_sha256(value)]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.device):
        return "device"  # where a number is computed is in the provenance
    if isinstance(value, torch.dtype | Path | range | slice | complex):
        return str(value)
    if isinstance(value, types.ModuleType | logging.Logger):
        return ["named", getattr(value, "__name__", None) or getattr(value, "name", "")]
    return None


def _enumerated(value: Enum) -> str:
    return f"{type(value).__qualname__}.{value.name}"


def _tensor(tensor: Tensor) -> list[str]:
    """A tensor by dtype and content; numpy has no bfloat16, so float kinds are compared as float32 or float64."""
    values = tensor.detach().cpu()
    if values.is_floating_point() and values.dtype != torch.float64:
        values = values.float()
    return ["tensor", str(tensor.dtype), array_sha256(np.asarray(values))]


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                yield slot, getattr(value, slot)


def _instructions(code: types.CodeType) -> Iterator[Any]:
    """What a function does, without file and line: two lambdas of one file are two."""
    yield bytes_sha256(code.co_code)
    yield list(code.co_names)
    yield from (list(_instructions(c)) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
