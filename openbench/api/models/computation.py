"""What a network computes, whoever wrote its class: the tensor operations of its forward pass, as one digest."""

import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from openbench.backbones.network import evaluating
from openbench.digest import array_sha256, digest

_COUNTER = "num_batches_tracked"  # of batch norm; no output depends on it
_SAME_VALUES = ("clone", "contiguous", "detach", "alias", "lift_fresh_copy")
_RESHAPED = ("view", "_unsafe_view", "reshape", "flatten", "squeeze", "unsqueeze")  # in the same order
_MEAN = "mean over all positions"
# Ways in which Python gets at the values of a tensor; those that no tracer sees.
_READ = ("numpy", "__array__", "tolist", "__repr__", "__dlpack__", "data_ptr", "storage", "untyped_storage")


def same_values(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two sets of weights hold the same values, whatever the layers are called.

    A file may keep in 16 bits what a network has in 32.
    """
    mine, theirs = ([value for key, value in state.items() if not key.endswith(_COUNTER)] for state in (one, other))
    if Counter(tuple(value.shape) for value in mine) != Counter(tuple(value.shape) for value in theirs):
        return False
    return Counter(map(_values, mine)) == Counter(map(_values, theirs))


def computation(module: nn.Module, images: Tensor) -> str | None:
    """Return a digest of the operations that lead from images (n, channels, h, w) to what a network returns.

    Two networks with one digest compute the same function with the same weights, on images of this shape: names of
    layers, the order in which independent parts are computed, and ways to write the mean over all positions or another
    shape for the same values do not count. Gradients are not followed: what hooks make of them is not seen.

    Args:
        module: in eval mode or not; it is looked at in eval mode.
        images: of the shape that it is to be used with.

    Returns:
        None if its operations, or their shapes, depend on the values of the images, or cannot be followed.
    """
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def forward(tensors: dict[str, Tensor], x: Tensor) -> Any:
        with _Unread(), _ShapesByShapes():  # type: ignore[no-untyped-call]
            return functional_call(module, tensors, (x,))

    try:
        with evaluating(module), torch.no_grad():
            graph = make_fx(functionalize(forward))(state, images)
        return _Labels(graph, [*map(_content, state.values()), "images"]).output
    except Exception:  # whatever the user's code, or the tracer, raises; or operations that are functions, as of cond
        return None


def same_for_any_number(module: nn.Module, images: Tensor) -> bool:
    """Return whether the operations of a network are the same for two images and for any larger number of them.

    It is run without values on a number of images that is not known: where Python would have to know it, to take a
    branch, to repeat a loop or to look something up, the answer is no. Torch itself assumes that it is not one.

    Args:
        module: in eval mode or not; it is looked at in eval mode.
        images: of the shape that it is to be used with, at least two.
    """
    numbers = ShapeEnv(duck_shape=False)
    values = FakeTensorMode(shape_env=numbers, allow_non_fake_inputs=True)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    unknown: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC] + [DimDynamic.STATIC] * (images.ndim - 1)
    )
    try:
        with warnings.catch_warnings(), evaluating(module), torch.no_grad():
            warnings.simplefilter("ignore")  # of how these two libraries are switched off
            # They are chosen for convolutions by the number of images, which is no question of the network's.
            with torch.backends.mkldnn.flags(enabled=False), torch.backends.nnpack.flags(enabled=False):
                tensors: dict[str, Tensor] = {
                    name: values.from_tensor(tensor, static_shapes=True) for name, tensor in state.items()
                }
                x = values.from_tensor(images, symbolic_context=unknown)
                with values, enable_python_dispatcher():
                    functional_call(module, tensors, (x,))
    except Exception:  # whatever the user's code, or torch, raises: it cannot be told
        return False
    # Torch 2.6 also asks whether it is the largest integer, which stands for the end of a slice.
    asked = [guard for guard in numbers.guards if sys.maxsize not in guard.expr.atoms()]
    return not asked and not numbers.replacements


class _Unread(TorchFunctionMode):
    """While open, tensors cannot be turned into values of Python, by which it may branch, unseen by a graph."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _READ:
            raise ValueError(f"{func} reads values")
        return func(*args, **(kwargs or {}))


class _ShapesByShapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While open, operations whose shape depends on values are refused: Python may branch on it, likewise unseen."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.dynamic_output_shape in func.tags and not _by_number(func, args):
            raise ValueError(f"the shape of {func} depends on values")
        return func(*args, **(kwargs or {}))


def _by_number(func: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether an operation takes items by their numbers, and not by a mask."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    return all(index is None or index.dtype in (torch.int64, torch.int32) for index in arguments[1])


class _Labels:
    """A digest for each value of a graph, of the operation that makes it and of what it reads."""

    def __init__(self, graph: fx.GraphModule, inputs: list[str]) -> None:
        self.graph, self.of = graph, dict[fx.Node, str]()
        self.output = ""
        given = iter(inputs)
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                self.of[node] = next(given)
            elif node.op == "get_attr":
                self.of[node] = _content(getattr(graph, str(node.target)))
            elif node.op == "output":
                self.output = digest(self._plain(node.args), 64)
            else:
                self.of[node] = self._made(node)

    def _made(self, node: fx.Node) -> str:
        name = str(node.target).removeprefix("aten.").partition(".")[0]
        read = node.all_input_nodes
        if name in (*_SAME_VALUES, *_RESHAPED):
            return self.of[read[0]]
        if read and _is_mean(name, node.args, _kind(read[0])[0]):
            return digest([_MEAN, self._plain(read[0])], 64)
        arguments = [self._plain(value) for value in node.args]
        if name == "add" and len(read) == 2 and not node.kwargs:
            arguments.sort()
        return digest([str(node.target), arguments, self._plain(dict(node.kwargs))], 64)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return [self.of[value], *_kind(value)]  # the digest is of the values, in order, whatever their shape
        if isinstance(value, Mapping):
            return {str(key): self._plain(each) for key, each in sorted(value.items())}
        if isinstance(value, list | tuple):
            return [self._plain(each) for each in value]
        return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _is_mean(name: str, arguments: tuple[Any, ...], shape: list[int]) -> bool:
    """Whether an operation on maps (n, c, h, w) is the mean over h and w."""
    if len(shape) != 4 or len(arguments) < 2 or not isinstance(arguments[1], list | tuple):
        return False
    axes = list(arguments[1])
    if name == "mean":
        return sorted(axis % 4 for axis in axes) == [2, 3]
    # One window that is as large as the maps; more arguments are strides, of which none is made.
    return name == "avg_pool2d" and axes in (shape[2:], shape[2:3] * (shape[2] == shape[3])) and len(arguments) <= 3


def _kind(node: fx.Node) -> tuple[list[int], str]:
    """The shape and the dtype of a tensor; nothing for what is not one."""
    found = node.meta.get("tensor_meta")
    shape = getattr(found, "shape", None)
    return ([], "") if shape is None else ([int(side) for side in shape], str(getattr(found, "dtype", "")))


def _content(tensor: Tensor) -> str:
    return f"{tensor.dtype} {_values(tensor)}"


def _values(tensor: Tensor) -> str:
    values = tensor.detach().cpu()
    values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values  # numpy has no bfloat16
    return array_sha256(np.asarray(values))
