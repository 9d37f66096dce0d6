"""A detector as one ONNX file, compared with torch before it is handed out."""

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from openbench.detect.export.graph import DetectorGraph, Traced, example
from openbench.errors import ConfigError, NotApplicableError
from openbench.storage.files import write_whole

OUTPUTS = ("score", "p_value", "is_ood", "logits")
_OPSET = 18
_TRACED = 3
_SIZES = (1, 2, 5)  # batches on which both are compared
_SPREAD = 1e-3  # of the spread of the calibration scores: what moves a p-value by a thousandth or so
_ROUNDING = 1e-5  # of a number itself: noise may have scores far beyond that spread, with float32's digits


def to_onnx(traced: Traced, path: str | Path) -> int | None:
    """Write a calibrated detector as one ONNX graph; return the number of images per call, None where any will do.

    The input `images` is (n, channels, h, w) float32, normalised as the detector's preprocess does; the outputs are
    `score`, `p_value` (marginal), `is_ood` and `logits`. Scores differ from torch's in the last digits, so a p-value
    may be one rank off where a calibration score is that close.

    Args:
        traced: what the graph is made of.
        path: of the file.

    Raises:
        NotApplicableError: a method or a network that cannot be one graph.
        ConfigError: onnx or onnxruntime is not installed.
    """
    require()
    backbone = traced.backbone
    before = backbone.device
    graph = DetectorGraph(traced).eval()
    backbone.to(torch.device("cpu"))
    try:
        for count in (None, 1):
            content = traced_graph(graph, example(traced, count or _TRACED), OUTPUTS, fixed=count is not None)
            problem = _difference(graph, content, [example(traced, n) for n in ((count,) if count else _SIZES)])
            if not problem:
                write_whole(Path(path), content)
                return count
    finally:
        backbone.to(before)
    raise NotApplicableError(
        f"method {type(traced.method).__name__}: the ONNX graph differs from torch — {problem} — nothing was written"
    )


def traced_graph(graph: nn.Module, images: Tensor, outputs: Sequence[str], *, fixed: bool = False) -> bytes:
    """Return a module as the content of an ONNX file, traced on some images.

    Args:
        graph: images to a tuple of tensors.
        images: of the size that it takes.
        outputs: the names of what it returns.
        fixed: whether it takes this number of images only.
    """
    axes = {} if fixed else {name: {0: "n"} for name in ("images", *outputs)}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        file = Path(folder) / "detector.onnx"
        warnings.simplefilter("ignore")  # of the tracer: about sizes, which are compared below
        # Operators of oneDNN and of attention's fast path are none of ONNX's.
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), _plain_attention():
            torch.onnx.export(
                graph,
                (images,),
                file,
                input_names=["images"],
                output_names=list(outputs),
                dynamic_axes=axes,
                opset_version=_OPSET,
                dynamo=False,
            )
        return file.read_bytes()


@contextmanager
def _plain_attention() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _difference(graph: DetectorGraph, content: bytes, batches: list[Tensor]) -> str:
    """By how much onnxruntime and torch differ, in words; empty if they agree."""
    try:
        session = session_of(content)
        found = [session.run(list(OUTPUTS), {"images": images.numpy()}) for images in batches]
    except Exception as error:  # onnxruntime has an exception class for each of its status codes
        return str(error).splitlines()[0][:200]
    with torch.no_grad():
        wanted = [[rows.numpy() for rows in graph(images)] for images in batches]
    score, p_value, is_ood, logits = (np.concatenate(rows) for rows in zip(*found, strict=True))
    expected = [np.concatenate(rows) for rows in zip(*wanted, strict=True)]
    known = np.sort(graph.known.numpy())  # type: ignore[operator]
    spread = float(np.ptp(known))
    for name, rows, right, unit in (("scores", score, expected[0], spread), ("logits", logits, expected[3], 1.0)):
        off = np.abs(rows - right)
        if not bool((off <= _SPREAD * unit + _ROUNDING * np.abs(right)).all()):
            return f"{name} are off by up to {off.max():.3g}"
    # Of its own scores: a calibration score may lie between those of the two.
    ranks = known.size + 1 - np.searchsorted(known, score, side="left")
    if not np.allclose(p_value, ranks / (known.size + 1)) or not np.array_equal(is_ood, score > float(graph.threshold)):  # type: ignore[arg-type]
        return "p-values or decisions do not follow from the scores"
    return ""


def run_onnx(path: str | Path, images: Tensor) -> dict[str, NDArray[Any]]:
    """Return the outputs of a detector's ONNX file by name.

    Args:
        path: of the file.
        images: (n, channels, h, w) float32, normalised.
    """
    require()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip(OUTPUTS, session.run(list(OUTPUTS), {"images": images.numpy()}), strict=True))


def session_of(content: bytes) -> Any:
    """Return a session of onnxruntime that runs a graph on the CPU, with as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def require(*packages: str) -> None:
    """Check that onnx and onnxruntime are installed, or those named.

    Raises:
        ConfigError: one is not.
    """
    for package in packages or ("onnx", "onnxruntime"):
        try:
            __import__(package)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"package '{package}' is not installed, a detector as ONNX needs it — pip install 'openbench-ood[onnx]'"
            ) from error
