"""A detector as one torch module: images to score, p-value and decision, in operations that a tracer can follow."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from openbench.backbones.anatomy import tapping
from openbench.backbones.base import Backbone
from openbench.backbones.network import NetworkBackbone
from openbench.core.composite import Composite
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Field
from openbench.errors import NotApplicableError


@dataclass(frozen=True, eq=False)
class Traced:
    """What a graph is made of.

    Args:
        backbone: on the CPU.
        method: fitted.
        known: (n,) calibration scores, all of one group and unweighted.
        threshold: the score above which an image is called OOD.
    """

    backbone: Backbone
    method: Method
    known: Tensor
    threshold: float


class DetectorGraph(nn.Module):
    """Normalised images (n, channels, h, w) to score (n,), p-value (n,), is_ood (n,) and logits (n, c).

    Args:
        traced: what it is made of.

    Raises:
        NotApplicableError: the method takes gradients, runs the network itself or is made of others, or the network is
            not a torch module.
    """

    def __init__(self, traced: Traced) -> None:
        super().__init__()
        _refuse(traced.method)
        if not isinstance(traced.backbone, NetworkBackbone):
            raise NotApplicableError(f"model '{traced.backbone.name}' is not a torch.nn.Module, so it cannot be traced")
        self.network, self._anatomy = traced.backbone.network, traced.backbone.anatomy
        self._method = traced.method
        self.register_buffer("known", traced.known.float())
        self.register_buffer("threshold", torch.tensor(traced.threshold).float())

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return score, marginal p-value, decision and logits."""
        with tapping(self.network, self._anatomy, (), "none") as tapped:
            self.network(images)
        request = self._method.request
        outputs = {Field.FEATURES: tapped.features, Field.LOGITS: tapped.logits}
        columns: dict[Field, Any] = {name: rows for name, rows in outputs.items() if name in request.fields}
        with _Traceable():
            score = _unchecked(type(self._method).score)(self._method, FeatureSet(columns)).float()
        # Scores are float32 and calibration scores were, so the count is exact.
        rank = 1 + (self.known[None] >= score[:, None]).to(torch.int64).sum(dim=1)  # type: ignore[index]
        p_value = rank.to(torch.float64) / (len(self.known) + 1)  # type: ignore[arg-type]
        return score, p_value, score > self.threshold, tapped.logits  # type: ignore[operator,return-value]


class _Traceable(TorchFunctionMode):
    """While open, blocks of rows are one block, and shapes do not fix the number of rows.

    Methods work through rows in blocks that fit the processor's cache. A tracer would write down the number of blocks
    of the example; and a `view` to (n, k, d) with the example's n.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, some of them in another form."""
        rest: Mapping[str, Any] = kwargs or {}
        if func == Tensor.shape.__get__:  # type: ignore[attr-defined]
            sides = func(*args)
            return (*sides[:1], *map(int, sides[1:]))
        if func in (torch.split, Tensor.split) and rest.get("dim", 0) == 0 and len(args) == 2:
            return (args[0],)
        if func is torch.cat:
            return func(_not_empty(args[0]), *args[1:], **rest)
        if func in (Tensor.view, Tensor.reshape) and len(args) > 2 and all(isinstance(side, int) for side in args[1:]):
            return func(args[0], -1, *args[2:], **rest)
        return func(*args, **rest)


def _not_empty(parts: Any) -> Any:
    kept = [part for part in parts if part.numel()]
    return kept or parts


def _unchecked(score: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A method's `score` without the check for finite rows, which a graph cannot raise an error from."""
    return getattr(score, "__wrapped__", score)


def _refuse(method: Method) -> None:
    why = ""
    if isinstance(method, LiveMethod | Composite):
        why = f"method {type(method).__name__} runs the network itself, or is made of other methods"
    elif method.request.perturb or method.request.second_pass or method.request.fields & {Field.MAPS, Field.PATCHES}:
        why = f"method {type(method).__name__} reads input gradients, maps of layers or patches"
    elif getattr(method, "faiss_", None) is not None:
        why = "KNN searches faiss' index — choose index='exact'"
    if why:
        raise NotApplicableError(
            f"the detector cannot be one graph: {why} — a graph is made of scores of features or logits"
        )


def example(traced: Traced, count: int) -> Tensor:
    """Return normalised noise (count, channels, side, side) as a network's input, always the same."""
    p = traced.backbone.preprocess
    return torch.randn(count, p.channels, p.crop, p.crop, generator=torch.Generator().manual_seed(count))
