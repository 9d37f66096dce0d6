"""The network of a detector: a shipped backbone by name or the user's model, ready for its images; and as a graph."""

import tempfile
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openbench.api.models.outputs import onnx_session
from openbench.api.models.wrap import ImageTask, ModelOptions, is_name, named_config, wrap
from openbench.backbones.anatomy import tapping
from openbench.backbones.base import Backbone
from openbench.backbones.network import NetworkBackbone
from openbench.backbones.rows import Rows
from openbench.config.build import build
from openbench.config.folders import names, shipped
from openbench.config.overrides import NAME
from openbench.core.benchmark import Split
from openbench.core.features import Head
from openbench.core.method import Method, leaves
from openbench.core.preprocess import Preprocess
from openbench.core.request import Role
from openbench.engine.compatibility import lacking, refuse_missing_parts
from openbench.engine.probe import some_of
from openbench.errors import ConfigError, DataError, NotApplicableError, not_found, pip_install

NETWORK_OUTPUTS = ("logits", "features")
_OPSET = 18
_TRACED = 3  # images
_SIZES = (1, 2, 5)  # batches on which both are compared
_CLOSE = 1e-4  # tolerance of logits and features, of the largest


def network_of(
    model: Any, options: ModelOptions, images: Split, classes: tuple[str, ...]
) -> tuple[Backbone, Mapping[str, Any]]:
    """Return a user's model, or the backbone that it names, ready for images, and its config of openbench's if any.

    Args:
        model: a name, a torch.nn.Module, a backbone, a function of normalised images, or the path of an ONNX file;
            None = the images are rows of features.
        options: options of the user for it.
        images: ID images to try it on.
        classes: names of the classes; empty if they are not known.

    Raises:
        ConfigError: something else, or parts that are not found.
    """
    if is_name(model):
        options.refuse(f"'{model}', whose config has it")
        config, keys = named_config(model)
        shown = shipped("backbone", config)
        if shown is None:
            what = f"backbone '{config}' not found in configs/backbone; a model of yours is a torch.nn.Module"
            raise ConfigError(not_found(what, config, names("backbone"), "list backbone"))
        node = {**shown, **keys, NAME: config}
        node["name"] = str(node.get("name", config)).replace("${.model}", str(node.get("model", "")))
        known: dict[str, Any] = {"classes": classes, "benchmark_classes": classes, "num_classes": len(classes)}
        backbone: Backbone = build(node, f"backbone '{config}'", Backbone, **(known if classes else {}))
        if not backbone.trained or backbone.head_to_fit is not None:
            what = f"backbone '{config}' has no weights — train it (python -m openbench train)"
            raise NotApplicableError(f"{what} and pass a torch.nn.Module with these")
        return backbone.to(options.device), node
    if model is None:
        d, head = len(images.items[0]), options.head if isinstance(options.head, Head) else None
        if head is not None and head.weight.shape[1] != d:
            raise DataError(f"head: W has {head.weight.shape[1]} columns for {d} features — the same expected")
        return Rows(options.name or "features", d, head=head).to(options.device), {}
    few = some_of(images)
    side = int(min(few.items[0].shape[:2]))  # for transforms that do not resize: nothing but normalising
    task = ImageTask(few, classes or _anonymous(model, images), Preprocess(resize=side, crop=side))
    wrapped = wrap(model, options, task)
    # The node of a user's model only describes it.
    return wrapped.backbone, {} if "architecture" in wrapped.node else wrapped.node


def check_fits(backbone: Backbone, method: Method, name: str) -> None:
    """Check that a network gives everything that a method reads.

    Raises:
        NotApplicableError: it does not; or the method reads mixed images, or corrupted copies drawn by images' names.
    """
    if any(leaf.request.mixing for leaf in leaves(method)):
        what = f"method '{name}' learns from mixtures of ID and OOD validation images, and a detector has only ID ones"
        raise NotApplicableError(f"{what} — choose the method without mixed images, e.g. knn")
    if any(leaf.request.corruption is not None for leaf in leaves(method)):
        what = f"method '{name}' reads corrupted copies of images, which are drawn by their names in a benchmark"
        raise NotApplicableError(f"{what} — choose the method that it averages, e.g. mcm")
    read = lacking(backbone, method, backbone.classifies)
    if not backbone.classifies and (read != lacking(backbone, method) or "the head" in read):
        what = f"method '{name}' reads {', '.join(read)}, and model '{backbone.name}' has no classifier"
        raise NotApplicableError(f"{what} — pass one, head=(W, b), or choose a method of features, e.g. knn")
    refuse_missing_parts(backbone, method, name)


def _anonymous(model: object, images: Split) -> tuple[str, ...]:
    """Return class numbers as names, as many as there are in the labels or the last linear layer."""
    count = int(images.labels.max()) + 1 if len(images.labels) else 0
    if isinstance(model, nn.Module):
        linear = [part.out_features for part in model.modules() if isinstance(part, nn.Linear)]
        count = max([count, *linear[-1:]])
    return tuple(str(label) for label in range(max(count, 1)))


def learns_from(method: Method) -> frozenset[Role]:
    """Return the roles of the images that a method learns from; a composite also reads ID validation.

    Args:
        method: unfitted.
    """
    roles = {leaf.request.fit_on for leaf in leaves(method)} | {method.request.fit_on}
    return frozenset(role for role in roles if role is not None)


def nothing() -> Split:
    """Return a split without images."""
    empty = np.zeros(0, np.int64)
    return Split("nothing", Role.ID_TRAIN, [], empty, [], (), "", 0, unread=True)


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
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.callback(backbone.to, backbone.device)
        backbone.to(torch.device("cpu"))
        graph, batches = NetworkGraph(backbone).eval(), [_noise(backbone, n) for n in _SIZES]
        try:
            content = _traced(graph, _noise(backbone, _TRACED))
            session = onnx_session(content, torch.device("cpu"))
            found = [session.run(list(NETWORK_OUTPUTS), {"images": images.numpy()}) for images in batches]
            pairs = zip(zip(*found, strict=True), zip(*map(graph, batches), strict=True), strict=True)
            for name, (rows, expected_rows) in zip(NETWORK_OUTPUTS, pairs, strict=True):
                actual, expected = np.concatenate(rows), np.concatenate(expected_rows)
                off = np.abs(actual - expected).max(initial=0)
                if not off <= _CLOSE * max(np.abs(expected).max(initial=0), 1e-6):
                    raise ValueError(f"{name} is off by up to {off:.3g}")
        except ConfigError:
            raise
        except Exception as error:  # of the tracer and of onnxruntime, which have many kinds
            what = (
                f"model '{backbone.name}' cannot be saved as ONNX ({(str(error) or repr(error))[:200].splitlines()[0]})"
            )
            raise NotApplicableError(f"{what} — save it as weights, and pass its class when it is loaded") from error
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
        names: Any = {"input_names": ["images"], "output_names": list(NETWORK_OUTPUTS)}
        names["dynamic_axes"] = {name: {0: "n"} for name in ("images", *NETWORK_OUTPUTS)}
        torch.onnx.export(graph, (images,), file, **names, opset_version=_OPSET, dynamo=False)
        return file.read_bytes()


def _noise(backbone: NetworkBackbone, count: int) -> Tensor:
    """Noise as a network's input, always the same."""
    p = backbone.preprocess
    return torch.randn(count, p.channels, p.crop, p.crop, generator=torch.Generator().manual_seed(count))
