"""A network as one ONNX graph, images to logits and features: for a detector that loads where its class is not."""

import numpy as np
import torch
from torch import Tensor, nn

from openbench.backbones.anatomy import tapping
from openbench.backbones.network import NetworkBackbone
from openbench.core.request import Request
from openbench.detect.export.onnx import require, session_of, traced_graph
from openbench.errors import NotApplicableError

OUTPUTS = ("logits", "features")
_SIZES = (1, 2, 5)  # batches on which both are compared
_TRACED = 3
_CLOSE = 1e-4  # of the largest output: float32's digits, lost here and there


class NetworkGraph(nn.Module):
    """Normalised images (n, channels, h, w) to logits (n, c) and features (n, d).

    Args:
        backbone: on the CPU.
    """

    def __init__(self, backbone: NetworkBackbone) -> None:
        super().__init__()
        self.network, self._anatomy = backbone.network, backbone.anatomy

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and features."""
        with tapping(self.network, self._anatomy, (), "none") as tapped:
            self.network(images)
        return tapped.logits, tapped.features  # type: ignore[return-value]  # the pass has filled them


def network_onnx(backbone: NetworkBackbone) -> bytes:
    """Return a network as the content of an ONNX file, for any number of images; compared with torch first.

    Raises:
        NotApplicableError: it cannot be traced, or onnxruntime computes something else.
        ConfigError: onnx or onnxruntime is not installed.
    """
    require()
    before = backbone.device
    backbone.to(torch.device("cpu"))
    try:
        content = traced_graph(NetworkGraph(backbone).eval(), _noise(backbone, _TRACED), OUTPUTS)
        off = _difference(backbone, content)
    except Exception as error:  # of the tracer and of onnxruntime, which have many kinds
        raise _refused(backbone, f"{type(error).__name__}: {str(error).splitlines()[0][:200]}") from error
    finally:
        backbone.to(before)
    if not off <= _CLOSE:
        raise _refused(backbone, f"its outputs in onnxruntime are off by {off:.2g} of the largest")
    return content


def _difference(backbone: NetworkBackbone, content: bytes) -> float:
    session, most = session_of(content), 0.0
    for count in _SIZES:
        images = _noise(backbone, count)
        wanted = backbone.outputs(images, Request())
        for found, right in zip(
            session.run(list(OUTPUTS), {"images": images.numpy()}),
            (wanted.logits.numpy(), wanted.features.numpy()),
            strict=True,
        ):
            scale = max(float(np.abs(right).max(initial=0)), 1e-6)
            most = max(most, float(np.abs(found - right).max(initial=0)) / scale)
    return most


def _noise(backbone: NetworkBackbone, count: int) -> Tensor:
    p = backbone.preprocess
    return torch.randn(count, p.channels, p.crop, p.crop, generator=torch.Generator().manual_seed(count))


def _refused(backbone: NetworkBackbone, why: str) -> NotApplicableError:
    return NotApplicableError(
        f"model '{backbone.name}' cannot be saved as ONNX — {why} — save it as weights, network='weights', and pass "
        "its class when it is loaded"
    )
