"""ONNX graphs of networks, compared with torch in onnxruntime before they are written."""

import tempfile
import warnings
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from openbench.api.models.outputs import onnx_session
from openbench.backbones.anatomy import tapping
from openbench.backbones.network import NetworkBackbone
from openbench.errors import ConfigError, NotApplicableError, pip_install

NETWORK_OUTPUTS = ("logits", "features")
_OPSET = 18
_TRACED = 3  # images
_SIZES = (1, 2, 5)  # batches on which both are compared
_CLOSE = 1e-4  # tolerance of logits and features, of the largest


class NetworkGraph(nn.Module):
    """Normalised images (n, channels, h, w) to logits (n, c) and features (n, d).

    Args:
        backbone: on the CPU.
    """

    def __init__(self, backbone: NetworkBackbone) -> None:
        super().__init__()
        self.network, self._anatomy = backbone.network, backbone.anatomy

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
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
    if find_spec("onnx") is None:
        raise ConfigError(f"package 'onnx' is not installed, and a graph needs it — {pip_install('onnx')}")
    problem = ""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.callback(backbone.to, backbone.device)
        backbone.to(torch.device("cpu"))
        graph, batches = NetworkGraph(backbone).eval(), [_noise(backbone, n) for n in _SIZES]
        try:
            content = _traced(graph, _noise(backbone, _TRACED))
            session = onnx_session(content, torch.device("cpu"))
            found = [session.run(list(NETWORK_OUTPUTS), {"images": images.numpy()}) for images in batches]
        except ConfigError:
            raise
        except Exception as error:  # of the tracer and of onnxruntime, which have many kinds
            problem = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        else:
            expected_rows = [graph(images) for images in batches]
            for at, name in enumerate(NETWORK_OUTPUTS):
                actual, expected = (np.concatenate([rows[at] for rows in each]) for each in (found, expected_rows))
                off = np.abs(actual - expected).max(initial=0)
                if not off <= _CLOSE * max(np.abs(expected).max(initial=0), 1e-6):
                    problem = f"{name} is off by up to {off:.3g}"
    if problem:
        raise NotApplicableError(
            f"model '{backbone.name}' cannot be saved as ONNX ({problem}) — save it as weights, network='weights', and "
            "pass its class when it is loaded"
        )
    return content


def _traced(graph: NetworkGraph, images: Tensor) -> bytes:
    """Return a module on the CPU as the content of an ONNX file, traced on some images."""
    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "network.onnx"
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of the tracer about sizes, which are compared later
        # ONNX has no operators of oneDNN and of attention's fast path.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        torch.onnx.export(
            graph,
            (images,),
            file,
            input_names=["images"],
            output_names=list(NETWORK_OUTPUTS),
            dynamic_axes={name: {0: "n"} for name in ("images", *NETWORK_OUTPUTS)},
            opset_version=_OPSET,
            dynamo=False,
        )
        return file.read_bytes()


def _noise(backbone: NetworkBackbone, count: int) -> Tensor:
    """Noise as a network's input, always the same."""
    p = backbone.preprocess
    return torch.randn(count, p.channels, p.crop, p.crop, generator=torch.Generator().manual_seed(count))
