"""A detector as one torch module: images to score, p-value and decision, in operations that a tracer can follow."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from openbench.backbones.anatomy import tapping
from openbench.backbones.network import NetworkBackbone
from openbench.core.composite import Composite
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.request import Field
from openbench.detect.learnt import Learnt
from openbench.errors import NotApplicableError


class DetectorGraph(nn.Module):
    """Normalised images (n, channels, h, w) to score (n,), p-value (n,), is_ood (n,) and logits (n, c).

    Args:
        learnt: of a detector that is calibrated, on the CPU.

    Raises:
        NotApplicableError: the method takes gradients, runs the network itself or is made of others; the calibration
            has groups or weights; or the network is not a torch module.
    """

    def __init__(self, learnt: Learnt) -> None:
        super().__init__()
        backbone, calibration = learnt.network.backbone, learnt.calibration
        _refuse(learnt)
        if not isinstance(backbone, NetworkBackbone) or calibration is None:
            raise NotApplicableError(f"model '{backbone.name}' is no torch.nn.Module, so it cannot be traced")
        self.network, self._anatomy = backbone.network, backbone.anatomy
        self._method = learnt.method
        self.register_buffer("known", torch.from_numpy(calibration.scores).float())
        self.register_buffer("threshold", torch.tensor(calibration.thresholds[""]).float())

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


def _refuse(learnt: Learnt) -> None:
    method, calibration = learnt.method, learnt.calibration
    why = ""
    if isinstance(method, LiveMethod | Composite):
        why = f"method {type(method).__name__} runs the network itself, or is made of other methods"
    elif method.request.perturb or method.request.beside or Field.MAPS in method.request.fields:
        why = f"method {type(method).__name__} reads input gradients or maps of layers"
    elif getattr(method, "faiss_", None) is not None:
        why = "KNN searches faiss' index — choose index='exact'"
    elif calibration is None or calibration.groups or calibration.weights is not None:
        why = "the calibration has groups or weights"
    if why:
        raise NotApplicableError(
            f"the detector cannot be one graph: {why} — a graph is made of scores of features or logits"
        )


def example(learnt: Learnt, count: int) -> Tensor:
    """Return normalised noise (count, channels, side, side) as a network's input, always the same."""
    p = learnt.network.backbone.preprocess
    return torch.randn(count, p.channels, p.crop, p.crop, generator=torch.Generator().manual_seed(count))
