"""State of fitted methods as JSON and named tensors, and back; only classes of openbench are built."""

import dataclasses
import importlib
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from openbench.api.methods import as_node
from openbench.config.build import build
from openbench.core.composite import leaves
from openbench.core.features import Head
from openbench.core.method import Method
from openbench.core.streaming import StreamingMethod
from openbench.errors import CheckpointError, NotApplicableError
from openbench.public import TARGET, name_of, public

Tensors = dict[str, Tensor]
_IS = "is"  # key of a JSON object in place of a tensor, a method or a dataclass: its kind
_SHARED = "openbench.methods._bank"  # module of dataclasses that several methods have
_ALLOWED = "detectors on disk have numbers and tensors, never pickled objects; choose e.g. knn, mds or vim"


def refuse_unsavable(method: Method) -> None:
    """Refuse a method that scores streams, or learns objects which cannot be written, before it does.

    Args:
        method: unfitted.

    Raises:
        NotApplicableError: the method or a part of it does.
    """
    for leaf in leaves(method):
        streams = "scores streams of images, a detector each image by itself" * isinstance(leaf, StreamingMethod)
        if why := streams or (leaf.learns_objects and f"learns {leaf.learns_objects}"):
            raise NotApplicableError(f"method {type(leaf).__name__} cannot be saved: it {why} — {_ALLOWED}")


def packed_method(method: Method, tensors: Tensors, where: str = "method") -> dict[str, Any]:
    """Return class, hyper-parameters and state of a fitted method as JSON; its tensors are added to `tensors` by path.

    Args:
        method: fitted.
        tensors: name → tensor.
        where: the path to the method.

    Raises:
        NotApplicableError: its state is not made of numbers.
    """
    state = {name: value for name, value in vars(method).items() if name not in method.params()}
    packed = {name: _packed(value, tensors, f"{where}.{name}", method) for name, value in state.items()}
    return {"version": type(method).version, "node": public(as_node(method)), "state": packed}


def _packed(value: Any, tensors: Tensors, where: str, method: Method) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        # Products with a transposed matrix sum in another order on some processors: equal scores need the same layout.
        transposed = value.dim() == 2 and not value.is_contiguous() and value.T.is_contiguous()
        tensors[where] = (value.T if transposed else value).detach().cpu().contiguous().clone()
        return {_IS: "transposed" if transposed else "tensor"}
    if isinstance(value, list | tuple):
        return [_packed(part, tensors, f"{where}.{place}", method) for place, part in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) and key != _IS for key in value):
        return {key: _packed(part, tensors, f"{where}.{key}", method) for key, part in value.items()}
    if isinstance(value, Method):
        return {_IS: "method", **packed_method(value, tensors, where)}
    if type(value) in _dataclasses(method).values():
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {_IS: type(value).__name__, **_packed(fields, tensors, where, method)}
    if where.endswith(".faiss_"):
        import faiss

        tensors[where] = torch.from_numpy(faiss.serialize_index(value))
        return {_IS: "faiss"}
    raise NotApplicableError(
        f"method {type(method).__name__} cannot be saved: '{where}' is a {type(value).__module__}."
        f"{type(value).__qualname__} — {_ALLOWED}"
    )


def unpacked_method(
    packed: Mapping[str, Any], tensors: Mapping[str, Tensor], own: Method | None = None, where: str = "method"
) -> Method:
    """Return the fitted method of `packed_method`.

    Args:
        packed: as JSON.
        tensors: by path.
        own: unfitted, if its class is not of openbench.
        where: the path to the method.

    Raises:
        CheckpointError: another version of the method, or content that does not fit it.
        Exception: of any kind, for JSON of another form.
    """
    node, target = packed["node"], packed["node"][TARGET]
    if own is None and "." in target:
        raise CheckpointError(
            f"method '{target}' is not of openbench, and no code is loaded from a detector — pass it: "
            "load_detector(path, method=MyMethod(…))"
        )
    method: Method = build(node, f"method '{target}'", Method) if own is None else type(own)(**own.params())
    actual, saved = {**public(as_node(method)), "version": type(method).version}, {**node, "version": packed["version"]}
    if actual != saved:
        raise CheckpointError(
            f"method {name_of(type(method))} is {actual}, and was {saved} when the detector was saved — pass a method "
            "with these, or fit the detector again"
        )
    for name, value in packed["state"].items():
        if not name.endswith("_") or name.startswith("__"):
            raise CheckpointError(f"method {target} has no state '{name}'")
        setattr(method, name, _unpacked(value, tensors, f"{where}.{name}", method))
    return method


def _unpacked(value: Any, tensors: Mapping[str, Tensor], where: str, method: Method) -> Any:
    if isinstance(value, list):
        return [_unpacked(part, tensors, f"{where}.{place}", method) for place, part in enumerate(value)]
    if not isinstance(value, dict):
        return value
    kind = value.get(_IS)
    if kind == "method":
        return unpacked_method(value, tensors, where=where)
    if kind in ("tensor", "transposed"):
        return tensors[where].T if kind == "transposed" else tensors[where]
    if kind == "faiss":
        import faiss

        return faiss.deserialize_index(tensors[where].numpy())
    parts = {key: _unpacked(part, tensors, f"{where}.{key}", method) for key, part in value.items() if key != _IS}
    if kind is None:
        return parts
    if kind not in (known := _dataclasses(method)):
        raise CheckpointError(f"method {type(method).__name__}: '{where}' is of an unknown kind '{kind}'")
    return known[kind](**parts)


def _dataclasses(method: Method) -> dict[str, type]:
    """Return the dataclasses of a method's module and of the shared module, by name."""
    modules = [sys.modules[type(method).__module__], importlib.import_module(_SHARED)]
    kinds = [Head, *(kind for module in modules for kind in vars(module).values() if isinstance(kind, type))]
    return {k.__name__: k for k in kinds if dataclasses.is_dataclass(k) and not issubclass(k, Method)}
