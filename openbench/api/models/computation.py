"""What a network computes, whoever wrote its class: the tensor operations of its forward pass, as one digest."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call, functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from openbench.backbones.network import evaluating
from openbench.digest import array_sha256, digest

_COUNTER = "num_batches_tracked"  # of batch norm; no output depends on it
_SAME_VALUES = ("clone", "contiguous", "detach", "alias", "lift_fresh_copy")
_RESHAPED = ("view", "_unsafe_view", "reshape", "flatten", "squeeze", "unsqueeze")
_MEAN = "mean over all positions"


def same_values(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether two sets of weights hold the same tensors, whatever the layers are called."""
    mine, theirs = ([value for key, value in state.items() if not key.endswith(_COUNTER)] for state in (one, other))
    if Counter(tuple(value.shape) for value in mine) != Counter(tuple(value.shape) for value in theirs):
        return False
    return Counter(map(_content, mine)) == Counter(map(_content, theirs))


def computation(module: nn.Module, images: Tensor) -> str | None:
    """Return a digest of the operations that lead from images (n, channels, h, w) to what a network returns.

    Two networks with one digest compute the same function with the same weights, on images of this shape: names of
    layers, the order in which independent parts are computed, and ways to write the mean over all positions or another
    shape for the same values do not count. A gradient that a layer defines for itself is not seen.

    Args:
        module: in eval mode or not; it is looked at in eval mode.
        images: of the shape that it is to be used with.

    Returns:
        None if its operations depend on the values of the images, or cannot be followed.
    """
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def forward(tensors: dict[str, Tensor], x: Tensor) -> Any:
        return functional_call(module, tensors, (x,))

    try:
        with evaluating(module), torch.no_grad():
            graph = make_fx(functionalize(forward))(state, images)
    except Exception:  # whatever the user's code, or the tracer, raises
        return None
    return _Labels(graph, [*map(_content, state.values()), "images"]).output


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
        before, after = (_shape(read[0]) if read else None), _shape(node)
        if name in _SAME_VALUES or (name in _RESHAPED and _without_ones(before) == _without_ones(after)):
            return self.of[read[0]]
        if before is not None and _is_mean(name, node.args, before):
            return digest([_MEAN, self.of[read[0]], _without_ones(after)], 64)
        arguments = [self._plain(value) for value in node.args]
        if name == "add" and len(read) == 2 and not node.kwargs:
            arguments.sort()
        return digest([str(node.target), arguments, self._plain(dict(node.kwargs)), _without_ones(after)], 64)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            # Axes of one count where it is read: by them others are repeated, and numbers name them.
            return [self.of[value], _shape(value)]
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


def _shape(node: fx.Node) -> list[int] | None:
    found = getattr(node.meta.get("tensor_meta"), "shape", None)
    return None if found is None else [int(side) for side in found]


def _without_ones(shape: list[int] | None) -> list[int] | None:
    return None if shape is None else [side for side in shape if side != 1]


def _content(tensor: Tensor) -> str:
    values = tensor.detach().cpu()
    values = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values  # numpy has no bfloat16
    return f"{tensor.dtype} {array_sha256(np.asarray(values))}"
