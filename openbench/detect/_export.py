"""ONNX graphs of detectors and networks, compared with torch in onnxruntime before they are written."""

import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from openbench.api.models.outputs import onnx_session
from openbench.backbones.anatomy import tapping
from openbench.backbones.base import Backbone
from openbench.backbones.network import NetworkBackbone
from openbench.core.composite import Composite
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Field
from openbench.detect.calibration import Calibration
from openbench.errors import ConfigError, NotApplicableError
from openbench.storage.files import write_whole

OUTPUTS = ("score", "p_value", "is_ood", "logits")
NETWORK_OUTPUTS = ("logits", "features")
_OPSET = 18
_TRACED = 3  # images
_SIZES = (1, 2, 5)  # batches on which both are compared
_SPREAD = 1e-3  # tolerance of scores, of the spread of the calibration scores: about a thousandth of a p-value
_ROUNDING = 1e-5  # relative tolerance: noise may have scores far beyond that spread, with the digits of float32
_CLOSE = 1e-4  # tolerance of logits and features, of the largest


class NetworkGraph(nn.Module):
    """Normalised images (n, channels, h, w) to logits (n, c) and features (n, d).

    Args:
        backbone: on the CPU.
    """

    names: tuple[str, ...] = NETWORK_OUTPUTS
    known: Tensor  # calibration scores, where there is a score

    def __init__(self, backbone: NetworkBackbone) -> None:
        super().__init__()
        self.network, self._anatomy = backbone.network, backbone.anatomy

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return logits and features."""
        with tapping(self.network, self._anatomy, (), "none") as tapped:
            self.network(images)
        return tapped.logits, tapped.features  # type: ignore[return-value]  # the pass has filled them

    def tolerance(self, name: str, expected: NDArray[Any]) -> Any:
        """Return how far onnxruntime may be from an output of torch."""
        if name == "score":
            return _SPREAD * np.ptp(self.known.numpy()) + _ROUNDING * np.abs(expected)
        return _CLOSE * max(np.abs(expected).max(initial=0), 1e-6)


class DetectorGraph(NetworkGraph):
    """Normalised images (n, channels, h, w) to score (n,), p-value (n,), is_ood (n,) and logits (n, c).

    Args:
        backbone: on the CPU.
        method: fitted.
        calibration: of one group and unweighted.
    """

    names = OUTPUTS
    threshold: Tensor

    def __init__(self, backbone: NetworkBackbone, method: Method, calibration: Calibration) -> None:
        super().__init__(backbone)
        self._method = method
        self.register_buffer("known", torch.from_numpy(calibration.scores).float())
        self.register_buffer("threshold", torch.tensor(calibration.thresholds[""]).float())

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return score, marginal p-value, decision and logits."""
        logits, features = super().forward(images)
        outputs = {Field.FEATURES: features, Field.LOGITS: logits}
        columns = {name: rows for name, rows in outputs.items() if name in self._method.request.fields}
        # A graph cannot raise an error: without the method's check for finite rows.
        score_of = getattr(type(self._method).score, "__wrapped__", type(self._method).score)
        with _Traceable():
            score = score_of(self._method, FeatureSet(columns)).float()
        return score, *self.judged(score), logits

    def judged(self, score: Tensor) -> tuple[Tensor, Tensor]:
        """Return the p-values and decisions of scores (n,)."""
        # Scores are float32 and calibration scores were, so the count is exact.
        rank = 1 + (self.known[None] >= score[:, None]).to(torch.int64).sum(dim=1)
        return rank.to(torch.float64) / (len(self.known) + 1), score > self.threshold


class _Traceable(TorchFunctionMode):
    """A mode in which blocks of rows are one block, and shapes do not fix the number of rows.

    A tracer would record the number of blocks of rows of the example, and its n in a `view` to (n, k, d).
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
            return func([part for part in args[0] if part.numel()] or args[0], *args[1:], **rest)
        if func in (Tensor.view, Tensor.reshape) and len(args) > 2 and all(isinstance(side, int) for side in args[1:]):
            return func(args[0], -1, *args[2:], **rest)
        return func(*args, **rest)


def to_onnx(backbone: Backbone, method: Method, calibration: Calibration, path: str | Path) -> int | None:
    """Write a calibrated detector as one ONNX graph; return its number of images per call, None for any number.

    The input `images` is (n, channels, h, w) float32, normalised as the detector's preprocess does; the outputs are
    `score`, `p_value` (marginal), `is_ood` and `logits`. Scores differ from torch's in the last digits, so a p-value
    may differ by one rank.

    Args:
        backbone: with weights.
        method: fitted.
        calibration: of the detector.
        path: of the file.

    Raises:
        NotApplicableError: a method or a network that cannot be one graph, or a calibration with groups or weights.
        ConfigError: onnx or onnxruntime is not installed.
    """
    if not isinstance(backbone, NetworkBackbone):
        raise NotApplicableError(f"model '{backbone.name}' is not a torch.nn.Module, so it cannot be traced")
    if obstacle := _obstacle(method, calibration):
        raise NotApplicableError(f"the detector cannot be one graph: {obstacle}")
    with ExitStack() as stack:
        stack.callback(backbone.to, backbone.device)
        backbone.to(torch.device("cpu"))
        graph = DetectorGraph(backbone, method, calibration).eval()
        for count in (None, 1):
            content, problem = _compared(graph, backbone, count)
            if not problem:
                write_whole(Path(path), content)
                return count
    raise NotApplicableError(f"method {type(method).__name__}: the ONNX graph differs from torch: {problem}")


def _obstacle(method: Method, calibration: Calibration) -> str:
    """Return the reason that a detector cannot be one graph, or ''."""
    name = f"method {type(method).__name__}"
    if calibration.groups or calibration.weights is not None:
        return "the calibration has groups or weights — calibrate without them"
    if isinstance(method, LiveMethod | Composite):
        return f"{name} runs the network itself, or is made of other methods"
    if method.request.perturb or method.request.second_pass or method.request.fields & {Field.MAPS, Field.PATCHES}:
        return f"{name} reads input gradients, maps of layers or patches, and a graph has features and logits only"
    return "KNN searches a faiss index — choose index='exact'" if getattr(method, "faiss_", None) is not None else ""


def network_onnx(backbone: NetworkBackbone) -> bytes:
    """Return a network as the content of an ONNX file, for any number of images; compared with torch first.

    Raises:
        NotApplicableError: it cannot be traced, or onnxruntime computes something else.
        ConfigError: onnx or onnxruntime is not installed.
    """
    with ExitStack() as stack:
        stack.callback(backbone.to, backbone.device)
        backbone.to(torch.device("cpu"))
        content, problem = _compared(NetworkGraph(backbone).eval(), backbone)
    if problem:
        raise NotApplicableError(
            f"model '{backbone.name}' cannot be saved as ONNX ({problem}) — save it as weights, network='weights', and "
            "pass its class when it is loaded"
        )
    return content


def _compared(graph: NetworkGraph, backbone: Backbone, count: int | None = None) -> tuple[bytes, str]:
    """Return a module as the content of an ONNX file, and in words how onnxruntime differs from torch, or ''.

    Args:
        graph: on the CPU.
        backbone: whose images it takes.
        count: the number of images that it takes; None = any.
    """
    if find_spec("onnx") is None:
        raise ConfigError("package 'onnx' is not installed, and a graph needs it — pip install 'openbench-ood[onnx]'")
    batches = [_noise(backbone, n) for n in ((count,) if count else _SIZES)]
    try:
        content = _traced(graph, _noise(backbone, count or _TRACED), fixed=count is not None)
        session = onnx_session(content, torch.device("cpu"))
        found = [session.run(list(graph.names), {"images": images.numpy()}) for images in batches]
    except ConfigError:
        raise
    except Exception as error:  # of the tracer and of onnxruntime, which have many kinds
        return b"", f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    with torch.no_grad():
        expected = [[rows.numpy() for rows in graph(images)] for images in batches]
    of_onnx, of_torch = (
        dict(zip(graph.names, map(np.concatenate, zip(*rows, strict=True)), strict=True)) for rows in (found, expected)
    )
    for name in {"score", "logits", "features"} & set(graph.names):
        off = np.abs(of_onnx[name] - of_torch[name])
        if not (off <= graph.tolerance(name, of_torch[name])).all():
            return b"", f"{name} is off by up to {off.max():.3g}"
    if isinstance(graph, DetectorGraph):  # from its own scores: a calibration score may lie between those of the two
        p_value, is_ood = (rows.numpy() for rows in graph.judged(torch.from_numpy(of_onnx["score"])))
        if not np.allclose(of_onnx["p_value"], p_value) or not np.array_equal(of_onnx["is_ood"], is_ood):
            return b"", "p-values or decisions do not follow from the scores"
    return content, ""


def _traced(graph: NetworkGraph, images: Tensor, *, fixed: bool) -> bytes:
    """Return a module as the content of an ONNX file, traced on some images.

    Args:
        graph: on the CPU.
        images: of its size.
        fixed: take this number of images only.
    """
    axes = {} if fixed else {name: {0: "n"} for name in ("images", *graph.names)}
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "detector.onnx"
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of the tracer about sizes, which are compared later
        # ONNX has no operators of oneDNN and of attention's fast path.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(torch.no_grad())
        torch.onnx.export(
            graph,
            (images,),
            file,
            input_names=["images"],
            output_names=list(graph.names),
            dynamic_axes=axes,
            opset_version=_OPSET,
            dynamo=False,
        )
        return file.read_bytes()


def _noise(backbone: Backbone, count: int) -> Tensor:
    """Noise as a network's input, always the same."""
    p = backbone.preprocess
    return torch.randn(count, p.channels, p.crop, p.crop, generator=torch.Generator().manual_seed(count))
