"""The network of a detector on disk: its weights, and by which config or class of the user's it is made again."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openbench.api.models.adopt import Asked, copied
from openbench.api.models.outputs import OutputsBackbone, Read, Source
from openbench.api.models.parts import unwrapped
from openbench.api.models.preprocess import prepared
from openbench.backbones.base import Backbone
from openbench.backbones.checkpoints import apply_weights
from openbench.backbones.network import NetworkBackbone
from openbench.config.build import build
from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.core.benchmark import Split
from openbench.core.features import Head
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.core.request import Request, Role
from openbench.data.download import DataSource, data_sources
from openbench.data.weights import released_weights
from openbench.detect.artefact.files import NetworkPart
from openbench.detect.export.network import OUTPUTS
from openbench.detect.export.onnx import require, session_of
from openbench.digest import bytes_sha256
from openbench.errors import CheckpointError, NotApplicableError
from openbench.public import TARGET

_SOURCES = ("weights", "checkpoint", "sha256", "pretrained")  # of weights, which the detector brings itself
_PROBES = 4
_PROBE_TOLERANCE = 1e-3


def packed_network(
    backbone: Backbone, node: Mapping[str, Any], asked: Asked
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what a network is, and its weights.

    Args:
        backbone: with weights.
        node: the config that describes it; empty for a module of the user's own.
        asked: what the user said about it.

    Raises:
        NotApplicableError: it is not a network of torch modules with weights, e.g. a function.
    """
    network = check_weights(backbone, asked)
    p = backbone.preprocess
    side = {
        "resize": p.resize if isinstance(p.resize, int) else list(p.resize),
        "crop": p.crop,
        "mean": list(map(float, p.mean)),
        "std": list(map(float, p.std)),
        "interpolation": p.interpolation,
        "own": p.own.content if isinstance(p, OwnPreprocess) and p.own is not None else "",
    }
    # What a config makes of a class by itself is made again when it is read; a detector names no class.
    own = shipped("backbone", str(node.get(NAME, ""))) or {}
    made = {k for k, v in node.items() if _names_a_class(v) and own.get(k) == v}
    left_out = {"preprocess", *_SOURCES, *made}
    keys = {k: v for k, v in node.items() if not k.startswith("_") and k not in left_out}
    described = {
        "kind": "shipped" if node else "module",
        "name": backbone.name,
        "config": str(node.get(NAME, "")),
        "keys": keys,
        "architecture": backbone.architecture,
        "digest": backbone.digest,
        "classes": backbone.num_classes,
        "preprocess": side,
        "features": asked.features or "",
        "head": asked.head or "",
    }
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in network.network.state_dict().items()}
    return described, state


def refuse_text_as_weights(backbone: Backbone, network: str) -> None:
    """Refuse to save as weights a network whose classifier was made of text: they do not make it again.

    Raises:
        NotApplicableError: it is one.
    """
    if backbone.text_towers and network == "weights":
        raise NotApplicableError(
            f"model '{backbone.name}' cannot be saved as weights: its classifier was made of text, by a tower that a "
            "detector does not keep — save it as ONNX: network=onnx, or save(path, network='onnx') in Python"
        )


def check_weights(backbone: Backbone, asked: Asked | None = None) -> NetworkBackbone:
    """Return a network whose weights can be saved.

    Raises:
        NotApplicableError: it is not a network of torch modules with weights, e.g. a function.
    """
    if not isinstance(backbone, NetworkBackbone) or not (asked is None or isinstance(asked.head, str | None)):
        raise NotApplicableError(
            f"model '{backbone.name}' cannot be saved: what it computes with is not in weights of a torch.nn.Module "
            f"({type(backbone).__name__}) — pass the module itself to Detector"
        )
    return backbone


def unpacked_shipped(part: NetworkPart, state: Mapping[str, Tensor], classes: Sequence[str]) -> Backbone:
    """Return the backbone that a config of openbench's makes, with the weights of a detector.

    Raises:
        CheckpointError: there is no such config any more, or the weights do not fit it.
    """
    node = shipped("backbone", part.config)
    if node is None:
        raise CheckpointError(
            f"backbone '{part.config}' is not in this openbench — install the version of the detector"
        )
    stray = [key for key, value in part.keys.items() if key not in node or _names_a_class(value)]
    if stray:
        raise CheckpointError(f"backbone '{part.config}' has no key '{stray[0]}' that a detector may set")
    none = {key: False if isinstance(node[key], bool) else None for key in _SOURCES if key in node}
    given = {**node, **part.keys, **none}
    given["preprocess"] = _preprocess_node(part)
    if "num_classes" in node:
        given["num_classes"] = part.classes
    backbone = build(given, f"backbone '{part.config}'", Backbone, classes=tuple(classes), num_classes=part.classes)
    if not isinstance(backbone, NetworkBackbone):
        raise CheckpointError(f"backbone '{part.config}' is not a network with weights")
    backbone.load_state(dict(state), "the detector's weights")
    if backbone.digest != part.digest:
        raise CheckpointError(
            f"backbone '{part.name}' is another one in this openbench: digest {backbone.digest}, {part.digest} when "
            "the detector was saved — its scores may differ — install that version, or fit and calibrate again"
        )
    return backbone


def module_with_weights(module: object, part: NetworkPart, state: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of the user's module with the weights of a detector.

    Raises:
        CheckpointError: no module was given, or the weights do not fit it.
    """
    if not isinstance(module, nn.Module):
        raise CheckpointError(
            f"the network '{part.name}' ({part.architecture.partition(',')[0]}) is a class of your own, and no code is "
            "loaded from a detector — make one, with any weights, and pass it: load_detector(path, model=MyNet())"
        )
    made = copied(unwrapped(module), part.name)
    inner = {name.removeprefix("inner."): tensor for name, tensor in state.items()}
    adapted = any(name.startswith("inner.") for name in state)
    apply_weights(made, inner if adapted else dict(state), "the detector's weights")
    return made


def preprocess_of(part: NetworkPart, given: object) -> object:
    """Return how images reach the network: as it was saved, or the user's own transform, which only the user has.

    Raises:
        CheckpointError: a transform of the user's own was used, and none is given.
    """
    if not part.preprocess.own:
        return build(_preprocess_node(part), "preprocess", Preprocess)
    if given is None:
        raise CheckpointError(
            f"the network '{part.name}' was used with a transform of your own, and no code is loaded from a detector — "
            "pass it: load_detector(path, preprocess=transform)"
        )
    return given


def noise(side: int) -> Split:
    """Return a few images of noise, (side, side, 3), always the same ones."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (_PROBES, side, side, 3), dtype=np.uint8)
    labels = np.full(_PROBES, -1, np.int64)
    return Split("noise", Role.ID_TEST, list(pixels), labels, ["0"] * _PROBES, (), "noise", _PROBES)


def probe(backbone: Backbone) -> dict[str, Tensor]:
    """Return the outputs of a network for a fixed input: features (4, d) and logits (4, c)."""
    p = backbone.preprocess
    images = torch.randn(_PROBES, p.channels, p.crop, p.crop, generator=torch.Generator().manual_seed(0))
    found = backbone.outputs(images, Request())
    return {"features": found.features.cpu().float().contiguous(), "logits": found.logits.cpu().float().contiguous()}


def check_probe(backbone: Backbone, expected: Mapping[str, Tensor], where: str) -> None:
    """Check that a network still computes what it did when the detector was saved, to rounding.

    Raises:
        CheckpointError: it does not.
    """
    for name, found in probe(backbone).items():
        wanted = expected.get(name)
        fits = wanted is not None and wanted.shape == found.shape
        off = float((found - wanted).abs().max() / (1 + wanted.abs().max())) if fits and found.numel() else 0.0  # type: ignore[operator,union-attr]
        if not fits or not off <= _PROBE_TOLERANCE:
            raise CheckpointError(
                f"{where}: the network's {name} of a fixed input are off by {off:.2g} (relative) from those when the "
                "detector was saved — its class, a library or its preprocess has changed — fit and calibrate again"
            )


def _preprocess_node(part: NetworkPart) -> dict[str, Any]:
    p = part.preprocess
    resize = p.resize if isinstance(p.resize, int) else tuple(p.resize)
    values = {"resize": resize, "crop": p.crop, "mean": tuple(p.mean), "std": tuple(p.std)}
    return {TARGET: "Preprocess", **values, "interpolation": p.interpolation}


def _names_a_class(value: Any) -> bool:
    """Whether a config value would be built: what a detector names is never made."""
    if isinstance(value, Mapping):
        return TARGET in value or any(map(_names_a_class, value.values()))
    return isinstance(value, list) and any(map(_names_a_class, value))


_WHICH = ("model", "weights", "checkpoint", "pretrained")  # keys of a config that say which weights are loaded
_UNKNOWN = "not known to openbench — those that they came with apply"


def licences(node: Mapping[str, Any], images: str = "") -> dict[str, str]:
    """Return in words the licence of a network's weights, and of the images of a data set where one is named.

    Args:
        node: the config of the network; empty for one of the user's own. Weights that openbench's config of that name
            does not load are not the released ones.
        images: name of the data set; empty = it is not named.
    """
    name = str(node.get(NAME, ""))
    own = shipped("backbone", name) or {}
    same = all(node.get(key) == own.get(key) for key in _WHICH)
    released = released_weights().get(name) if same else None
    found = {"weights": _told(released.source if released else None)}
    return found | ({"images": _told(data_sources().get(images))} if images else {})


def _told(source: DataSource | None) -> str:
    return f"{source.title}: {source.licence} ({source.page})" if source else _UNKNOWN


_LOCATION = b"location"  # of a tensor that is kept in another file, whose path is in the graph
# Field 1 of 8 bytes, in protobuf's shortest form or in longer ones, which are read alike.
_KEY = re.compile(rb"(\x0a|\x8a\x80*\x00)(\x08|\x88\x80*\x00)\Z")
_FIRST = 2  # images on which a graph is tried
_KEY_MOST = 20  # bytes: two numbers of ten


def onnx_backbone(content: bytes, part: NetworkPart, given: object, head: Mapping[str, Tensor]) -> OutputsBackbone:
    """Return the network that an ONNX graph is, run by onnxruntime on the CPU.

    Args:
        content: of the file.
        part: what the manifest says of it.
        given: the transform, where it is a function of the user's own.
        head: `weight` (c, d) and `bias` (c,) of the linear classifier; empty where there is none.

    Raises:
        CheckpointError: no graph that onnxruntime can read, one of other inputs or outputs, or one that reads other
            files.
        ConfigError: onnxruntime is not installed.
    """
    require("onnxruntime")
    if _names_files(content):
        raise CheckpointError(f"the network '{part.name}' names other files — one graph with its weights expected")
    side = prepared(preprocess_of(part, given), Preprocess(resize=part.preprocess.crop, crop=part.preprocess.crop))
    p = side.preprocess
    try:
        session = session_of(content)
        first = _read(session, torch.zeros(_FIRST, p.channels, p.crop, p.crop))
    except Exception as error:  # onnxruntime has an exception class for each of its status codes
        told = str(error).splitlines()[0][:200]
        raise CheckpointError(f"the network '{part.name}' cannot be read by onnxruntime — {told}") from error
    found = [tuple(rows.shape) for rows in (first.logits, first.features) if rows is not None]
    if [(len(shape), shape[:1]) for shape in found] != 2 * [(2, (_FIRST,))]:
        raise CheckpointError(
            f"the network '{part.name}' makes outputs of the shapes {found} of {_FIRST} images — logits and features, "
            "a row for each image, expected"
        )
    source = Source(part.name, f"onnx of {part.architecture}", partial(_read, session), bytes_sha256(content))
    return OutputsBackbone(source, side, first, Head(head["weight"], head["bias"]) if head else None)


def _read(session: Any, images: Tensor) -> Read:
    logits, features = session.run(list(OUTPUTS), {"images": images.contiguous().numpy()})
    return Read(torch.from_numpy(logits), torch.from_numpy(features))


def _names_files(content: bytes) -> bool:
    """Whether the numbers of a graph lie in other files in part."""
    at = content.find(_LOCATION)
    while at >= 0:
        if _KEY.search(content, max(0, at - _KEY_MOST), at):
            return True
        at = content.find(_LOCATION, at + 1)
    return False
