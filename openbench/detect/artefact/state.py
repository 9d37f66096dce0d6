"""A fitted method as plain values and named tensors, and back; only classes that openbench ships are made."""

import dataclasses
import importlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openbench.api.methods import as_node
from openbench.config.build import build
from openbench.core.composite import leaves
from openbench.core.features import Head
from openbench.core.method import Method
from openbench.errors import CheckpointError, ConfigError, NotApplicableError
from openbench.public import TARGET, name_of, public

Tensors = dict[str, Tensor]
_SHARED = ("openbench.methods._bank", "openbench.methods._tails")  # whose dataclasses several methods hold
_FAISS = "faiss_"
_ALLOWED = (
    "a detector on disk holds numbers and tensors, never pickled objects — choose a method of openbench's own that "
    "learns arrays, e.g. knn, mds or vim"
)


def packed_method(method: Method, node: Mapping[str, Any]) -> tuple[dict[str, Any], Tensors]:
    """Return what a fitted method is and learnt: plain values, and the tensors that they name.

    Args:
        method: fitted.
        node: its config.

    Raises:
        NotApplicableError: it holds something that is neither numbers nor made of them.
    """
    tensors: Tensors = {}
    return _packed(method, node, tensors, "state"), tensors


def refuse_unsavable(method: Method) -> None:
    """Refuse a method that will learn objects which cannot be written, before it learns them.

    Args:
        method: unfitted.

    Raises:
        NotApplicableError: it, or a part that it is made of, is one.
    """
    for leaf in leaves(method):
        if leaf.learns_objects:
            raise NotApplicableError(
                f"method {type(leaf).__name__} cannot be saved: it learns {leaf.learns_objects} — {_ALLOWED}"
            )


def unpacked_method(packed: Mapping[str, Any], tensors: Mapping[str, Tensor], given: Method | None = None) -> Method:
    """Return the fitted method that `packed_method` packed.

    Args:
        packed: plain values.
        tensors: by name.
        given: unfitted, of a class that openbench does not ship.

    Raises:
        CheckpointError: another version of the method, or content that does not fit it.
    """
    node = dict(packed["node"])
    if given is None:
        if "." in str(node.get(TARGET, ".")):
            raise CheckpointError(
                f"method '{node.get(TARGET)}' is not openbench's, and no code is loaded from a detector — make it, and "
                "pass it: load_detector(path, method=MyMethod(…))"
            )
        try:
            method: Method = build(node, f"method '{node[TARGET]}'", Method)
        except ConfigError as error:
            raise CheckpointError(f"the method of this detector cannot be made — {error}") from error
    else:
        method = type(given)(**given.params())
    if (name_of(type(method)), type(method).version) != (packed["class"], packed["version"]):
        raise CheckpointError(
            f"method {name_of(type(method))} has version {type(method).version} here — the detector was made with "
            f"{packed['class']}, version {packed['version']}, whose scores differ — fit and calibrate it again"
        )
    saved = {key: value for key, value in node.items() if key != TARGET}
    if given is not None and (params := public(as_node(given))) | {TARGET: ""} != saved | {TARGET: ""}:
        raise CheckpointError(
            f"method {packed['class']}: its parameters are {params} — the detector was made with {saved} — pass a "
            "method with these"
        )
    for name, value in packed["state"].items():
        if not name.endswith("_") or name.startswith("__"):
            raise CheckpointError(f"method {packed['class']} has no state '{name}'")
        setattr(method, name, _unpacked(value, tensors, method, name))
    return method


def _packed(method: Method, node: Mapping[str, Any], tensors: Tensors, where: str) -> dict[str, Any]:
    params = method.params()
    state = {name: value for name, value in vars(method).items() if name not in params}
    return {
        "class": name_of(type(method)),
        "version": type(method).version,
        "node": public({key: value for key, value in node.items() if key == TARGET or not key.startswith("_")}),
        "state": {name: _value(value, tensors, f"{where}.{name}", method) for name, value in state.items()},
    }


def _value(value: Any, tensors: Tensors, where: str, method: Method) -> Any:
    """A value as JSON; a mapping with one key that says what it is, where JSON has no such type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | np.ndarray):
        tensor = torch.as_tensor(value).detach().to("cpu")
        tensors[where] = tensor.contiguous().clone()
        order = _order(tensor)
        return {"array" if isinstance(value, np.ndarray) else "tensor": [where, order] if order else where}
    if isinstance(value, list | tuple):
        parts = [_value(part, tensors, f"{where}.{place}", method) for place, part in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": parts}
    if isinstance(value, Mapping):
        pairs = [[key, _value(part, tensors, f"{where}.{key}", method)] for key, part in value.items()]
        if all(isinstance(key, str | int) for key, _ in pairs):
            return {"mapping": pairs}
    if isinstance(value, Method):
        return {"method": _packed(value, as_node(value), tensors, where)}
    if type(value) in _made_of(method).values():
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        held = {name: _value(part, tensors, f"{where}.{name}", method) for name, part in fields.items()}
        return {"value": [type(value).__name__, held]}
    if where.endswith(f".{_FAISS}"):
        import faiss

        tensors[where] = torch.from_numpy(faiss.serialize_index(value))
        return {"faiss": where}
    raise NotApplicableError(
        f"method {type(method).__name__} cannot be saved: '{where}' is a {type(value).__module__}."
        f"{type(value).__qualname__} — {_ALLOWED}"
    )


def _unpacked(value: Any, tensors: Mapping[str, Tensor], method: Method, where: str) -> Any:
    if not isinstance(value, dict):
        return value
    kind = next(iter(value)) if len(value) == 1 else ""
    held: Any = value.get(kind)
    if kind in ("tensor", "array", "faiss"):
        held, order = held if isinstance(held, list) else (held, [])
        if held not in tensors:
            raise CheckpointError(f"method {type(method).__name__}: the tensor '{held}' of '{where}' is missing")
        if kind == "faiss":
            import faiss

            return faiss.deserialize_index(tensors[held].numpy())
        tensor = _laid(tensors[held], order)
        return tensor if kind == "tensor" else tensor.numpy()
    if kind in ("list", "tuple"):
        parts = [_unpacked(part, tensors, method, where) for part in held]
        return tuple(parts) if kind == "tuple" else parts
    if kind == "mapping":
        return {key: _unpacked(part, tensors, method, where) for key, part in held}
    if kind == "method":
        return unpacked_method(held, tensors)
    if kind == "value" and held[0] in (known := _made_of(method)):
        return known[held[0]](**{key: _unpacked(part, tensors, method, where) for key, part in held[1].items()})
    raise CheckpointError(f"method {type(method).__name__}: '{where}' is of an unknown kind '{kind}'")


def _order(tensor: Tensor) -> list[int]:
    """The dimensions as they lie in memory, the slowest first; empty where that is as they are counted.

    Products add up in another order over a transposed matrix, on some processors: scores to the bit need this too.
    """
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return [] if tensor.is_contiguous() or not tensor.permute(order).is_contiguous() else order


def _laid(tensor: Tensor, order: list[int]) -> Tensor:
    """The same values, with the dimensions in memory as `_order` found them."""
    if not order:
        return tensor
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])


def _made_of(method: Method) -> dict[str, type]:
    """The dataclasses that a method may hold: those of its own module and of those that methods share."""
    modules = [sys.modules[type(method).__module__], *(importlib.import_module(name) for name in _SHARED)]
    found: list[Any] = [Head, *(kind for module in modules for kind in vars(module).values())]
    return {kind.__name__: kind for kind in found if _is_value(kind)}


def _is_value(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind) and not issubclass(kind, Method)
