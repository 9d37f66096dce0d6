"""A detector on disk: network, method and calibration, and nothing that is run when it is read."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from openbench import __version__
from openbench.api.models.outputs import BatchOutputs, OutputsBackbone, OutputSource
from openbench.api.models.parts import unwrapped
from openbench.api.models.preprocess import prepared
from openbench.api.models.wrap import ModelOptions, copied
from openbench.backbones.base import Backbone
from openbench.backbones.checkpoints import apply_weights
from openbench.backbones.network import NetworkBackbone
from openbench.config.build import build
from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.core.benchmark import Split
from openbench.core.features import Head
from openbench.core.method import Method
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.core.request import Request, Role
from openbench.data.download import DataSource, data_sources
from openbench.data.weights import released_weights
from openbench.detect.calibration import Calibration, Terms, promise_of
from openbench.detect.export import NETWORK_OUTPUTS, network_onnx, require, session_of
from openbench.detect.files import ONNX, TENSORS, VERSION, Manifest, NetworkPart, read_files, write_files
from openbench.detect.network import Learnt, Network, check_fits, network_of
from openbench.detect.state import Tensors, packed_method, unpacked_method
from openbench.digest import bytes_sha256
from openbench.engine.evaluate import for_layers
from openbench.errors import CheckpointError, ConfigError, NotApplicableError, OpenbenchError
from openbench.public import TARGET
from openbench.storage.plain_json import plain

_SOURCES = ("weights", "sha256")  # of weights, which the detector brings itself
_FEW = 4  # images of noise
_CLOSE = 1e-3  # relative: how far outputs may move from library to library


@dataclass(frozen=True)
class Saved:
    """All that is kept of a detector.

    Args:
        learnt: network and fitted method.
        calibration: scores of held-out images, and what is promised.
        asked: what the user said about the network.
        method: what users type after `method=`.
        classes: names of the classes.
        batch_size: images per forward pass.
        about: notes.
    """

    learnt: Learnt
    calibration: Calibration
    asked: ModelOptions
    method: str
    classes: tuple[str, ...]
    batch_size: int
    about: Mapping[str, Any]


def write(saved: Saved, path: Path, network: str = "weights") -> str:
    """Write a calibrated detector and return the digest of its manifest, which covers every part.

    Args:
        saved: the detector.
        path: a folder that does not exist yet, or a file that ends in `.zip`.
        network: as `weights` or as an `onnx` graph.

    Raises:
        NotApplicableError: the network or the method cannot be written as weights and numbers, or as a graph.
        ConfigError: something is there, or another word for `network`.
    """
    if network not in ("weights", "onnx"):
        raise ConfigError(f"save.network — found {network!r} — allowed: weights, onnx")
    learnt, calibration = saved.learnt, saved.calibration
    backbone, node = learnt.network.backbone, learnt.network.node
    own = check_savable(backbone, network, saved.asked)
    described = _described(backbone, node, saved.asked)
    arrays = {
        "scores": calibration.scores,
        "codes": calibration.codes,
        "weights": calibration.weights,
        "quantile": None if calibration.quantile is None else np.array(calibration.quantile),
        "seen": learnt.seen,
    }
    tensors = {
        f"calibration.{n}": torch.from_numpy(np.ascontiguousarray(a)) for n, a in arrays.items() if a is not None
    }
    tensors["probe"] = _probe(backbone)
    parts = {}
    if network == "onnx":
        head = {"weight": backbone.head.weight, "bias": backbone.head.bias} if backbone.num_classes else {}
        described["kind"], parts[ONNX] = "onnx", network_onnx(own)
        preprocess = backbone.preprocess.own if isinstance(backbone.preprocess, OwnPreprocess) else None
        graph = _of_graph(parts[ONNX], NetworkPart(**described), preprocess, head)
        check_fits(Network(graph), learnt.method, saved.method)
    else:
        head = own.network.state_dict()
    tensors |= {f"network.{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in head.items()}
    manifest = {
        "schema_version": VERSION,
        "made_by": f"openbench {__version__}",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "classes": saved.classes,
        "batch_size": saved.batch_size,
        "network": described,
        "method": {"name": saved.method, **packed_method(learnt.method, tensors)},
        "calibration": {
            "terms": asdict(calibration.terms),
            "groups": calibration.groups,
            "thresholds": {name: value for name, value in calibration.thresholds.items() if np.isfinite(value)},
            "promise": promise_of(calibration),
        },
        "about": {"licences": licences(node), **saved.about},
    }
    parts[TENSORS] = save_tensors(tensors)
    return write_files(path, plain(manifest), parts)


def read(path: Path, asked: ModelOptions, model: Any, method: Method | None, digest: str | None) -> Saved:
    """Return a detector that `write` wrote; no code in it is run, and nothing but its files is read.

    Args:
        path: the folder or the `.zip`.
        asked: the transform, where it is a function of the user's own, and the device.
        model: the network, where it is of a class of the user's own.
        method: the unfitted method, where it is of a class of the user's own.
        digest: of the manifest; None = not compared.

    Raises:
        CheckpointError: not a detector, changed since it was saved, or made by versions that do not fit.
        ConfigError: a model where the detector has its own, or a device that its network does not run on.
    """
    manifest, tensors, graph = read_files(path, digest)
    part = manifest.network
    asked = ModelOptions(asked.preprocess, part.features or None, part.head or None, device=asked.device)
    if model is not None and part.kind != "module":
        raise ConfigError(f"model is given, and the detector holds '{part.name}' — leave it out")
    if graph and asked.device.type != "cpu":
        raise ConfigError(f"device '{asked.device}' — the network of this detector is ONNX, run on the CPU — use cpu")
    try:
        learnt = _learnt(manifest, tensors, graph, (model, method, asked))
        calibration = _calibration(manifest, tensors)
    except CheckpointError:
        raise
    except (OpenbenchError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"'{path}' does not hold together — {type(error).__name__}: {error} — fit and calibrate the detector again"
        ) from error
    found, wanted = _probe(learnt.network.backbone), tensors.get("probe", torch.empty(0))
    same = found.shape == wanted.shape
    off = float(((found - wanted).abs().amax(0) / (1 + wanted.abs().amax(0))).max()) if same else np.inf
    if not off <= _CLOSE:
        raise CheckpointError(
            f"'{path}': the network's outputs of a fixed input are off by {off:.2g} (relative) from those when the "
            "detector was saved — its class, a library or its preprocess has changed — fit and calibrate again"
        )
    name = str(manifest.method.get("name"))
    return Saved(learnt, calibration, asked, name, tuple(manifest.classes), manifest.batch_size, manifest.about)


def _learnt(
    manifest: Manifest, tensors: Tensors, graph: bytes, given: tuple[Any, Method | None, ModelOptions]
) -> Learnt:
    model, method, asked = given
    part = manifest.network
    weights = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
    if graph:
        network = Network(_of_graph(graph, part, asked.preprocess, weights))
    elif part.kind == "shipped":
        backbone = _of_config(part, weights, manifest.classes).to(asked.device)
        network = Network(backbone, {**part.keys, NAME: part.config})
    else:
        network = _of_module(model, asked, part, weights, manifest.classes)
    own = None if method is None else for_layers(method, network.backbone.layers)
    fitted = unpacked_method(manifest.method, tensors, own)
    seen = tensors["calibration.seen"].numpy()
    if seen.shape[1:] != (16,) or seen.dtype != np.uint8:
        raise ValueError("'calibration.seen' does not hold digests of images")
    return Learnt(network, fitted, seen)


def _calibration(manifest: Manifest, tensors: Tensors) -> Calibration:
    names = ("scores", "codes", "weights", "quantile")
    scores, codes, weights, quantile = (
        tensors[f"calibration.{name}"].numpy() if f"calibration.{name}" in tensors else None for name in names
    )
    if scores is None or scores.dtype != np.float64:
        raise ValueError("'calibration.scores' is missing, or not of float64")
    terms, groups = Terms(**manifest.calibration.terms), tuple(manifest.calibration.groups)
    return Calibration(scores, terms, groups, codes, weights, None if quantile is None else quantile.item())


def check_savable(backbone: Backbone, network: str, asked: ModelOptions | None = None) -> NetworkBackbone:
    """Return a network that can be saved.

    Args:
        backbone: with weights.
        network: as `weights` or `onnx`.
        asked: what the user said about it.

    Raises:
        NotApplicableError: it is not a network of torch modules with weights, e.g. a function; or its classifier was
            made of text, which weights do not make again.
    """
    if not isinstance(backbone, NetworkBackbone) or not (asked is None or isinstance(asked.head, str | None)):
        raise NotApplicableError(
            f"model '{backbone.name}' cannot be saved: what it computes with is not in weights of a torch.nn.Module "
            f"({type(backbone).__name__}) — pass the module itself to Detector"
        )
    if backbone.text_towers and network == "weights":
        raise NotApplicableError(
            f"model '{backbone.name}' cannot be saved as weights: its classifier was made of text, by a tower that a "
            "detector does not keep — save it as ONNX: network=onnx, or save(path, network='onnx') in Python"
        )
    return backbone


def _described(backbone: Backbone, node: Mapping[str, Any], asked: ModelOptions) -> dict[str, Any]:
    """The fields of `NetworkPart`."""
    p = backbone.preprocess
    # What a config makes of a class by itself is made again when it is read; a detector names no class.
    own = shipped("backbone", str(node.get(NAME, ""))) or {}
    made = {key for key, value in node.items() if _names_a_class(value) and own.get(key) == value}
    left_out = {"preprocess", *_SOURCES, *made}
    return {
        "kind": "shipped" if node else "module",
        "name": backbone.name,
        "config": str(node.get(NAME, "")),
        "keys": {key: value for key, value in node.items() if not key.startswith("_") and key not in left_out},
        "architecture": backbone.architecture,
        "digest": backbone.digest,
        "classes": backbone.num_classes,
        "preprocess": plain({field.name: getattr(p, field.name) for field in fields(Preprocess)}),
        "own_preprocess": p.own.content if isinstance(p, OwnPreprocess) and p.own is not None else "",
        "features": asked.features or "",
        "head": asked.head or "",
    }


def _names_a_class(value: Any) -> bool:
    """Whether a config value would be built: what a detector names is never made."""
    if isinstance(value, Mapping):
        return TARGET in value or any(map(_names_a_class, value.values()))
    return isinstance(value, list) and any(map(_names_a_class, value))


def _preprocess(part: NetworkPart, given: object) -> object:
    """How images reach the network: as it was saved, or the user's own transform, which only the user has."""
    if not part.own_preprocess:
        fields_of: Any = {key: tuple(v) if isinstance(v, list) else v for key, v in part.preprocess.items()}
        return Preprocess(**fields_of)
    if given is None:
        raise CheckpointError(
            f"the network '{part.name}' was used with a transform of your own, and no code is loaded from a detector — "
            "pass it: load_detector(path, preprocess=transform)"
        )
    return given


def _of_config(part: NetworkPart, state: Tensors, classes: Sequence[str]) -> Backbone:
    """The backbone that a config of openbench's makes, with the weights of a detector."""
    node = shipped("backbone", part.config)
    if node is None:
        raise CheckpointError(
            f"backbone '{part.config}' is not in this openbench — install the version of the detector"
        )
    stray = [key for key, value in part.keys.items() if key not in node or _names_a_class(value)]
    if stray:
        raise CheckpointError(f"backbone '{part.config}' has no key '{stray[0]}' that a detector may set")
    none = {key: None for key in _SOURCES if key in node}
    given = {**node, **part.keys, **none, "preprocess": {TARGET: "Preprocess", **vars(_preprocess(part, None))}}
    if "num_classes" in node:
        given["num_classes"] = part.classes
    backbone = build(given, f"backbone '{part.config}'", Backbone, classes=tuple(classes), num_classes=part.classes)
    backbone.load_state(dict(state), "the detector's weights")
    if backbone.digest != part.digest:
        raise CheckpointError(
            f"backbone '{part.name}' is another one in this openbench: digest {backbone.digest}, {part.digest} when "
            "the detector was saved — its scores may differ — install that version, or fit and calibrate again"
        )
    found: Backbone = backbone
    return found


def _of_module(
    model: object, asked: ModelOptions, part: NetworkPart, state: Tensors, classes: Sequence[str]
) -> Network:
    """A copy of the user's module with the weights of a detector."""
    if not isinstance(model, nn.Module):
        raise CheckpointError(
            f"the network '{part.name}' ({part.architecture.partition(',')[0]}) is a class of your own, and no code is "
            "loaded from a detector — make one, with any weights, and pass it: load_detector(path, model=MyNet())"
        )
    side = _preprocess(part, asked.preprocess)
    module = copied(unwrapped(model), part.name)
    apply_weights(module, {key.removeprefix("inner."): t for key, t in state.items()}, "the detector's weights")
    pixels = np.random.default_rng(0).integers(0, 256, (_FEW, *2 * [int(part.preprocess["crop"])], 3), dtype=np.uint8)
    noise = Split("noise", Role.ID_TEST, list(pixels), np.full(_FEW, -1), ["0"] * _FEW, (), "noise", _FEW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no network has learnt from noise
        return network_of(
            module, ModelOptions(side, asked.features, asked.head, part.name, asked.device), noise, tuple(classes)
        )


def _of_graph(content: bytes, part: NetworkPart, given: object, head: Mapping[str, Tensor]) -> OutputsBackbone:
    """The network that an ONNX graph is, run by onnxruntime on the CPU; `head` is its linear classifier, if it has one.

    Raises:
        CheckpointError: no graph that onnxruntime can read, one of other inputs or outputs, or one that reads other
            files.
    """
    require("onnxruntime")
    if b"location" in content:  # of a tensor in another file; also a module of that name, which may be renamed
        raise CheckpointError(f"the network '{part.name}' names other files — one graph without 'location' expected")
    crop = int(part.preprocess["crop"])
    side = prepared(_preprocess(part, given), Preprocess(resize=crop, crop=crop))
    p = side.preprocess
    try:
        session = session_of(content)
        first = _run(session, torch.zeros(2, p.channels, p.crop, p.crop))
    except Exception as error:  # onnxruntime has an exception class for each of its status codes
        told = str(error).splitlines()[0][:200]
        raise CheckpointError(f"the network '{part.name}' cannot be read by onnxruntime — {told}") from error
    shapes = [tuple(rows.shape) for rows in (first.logits, first.features) if rows is not None]
    if [(len(shape), shape[0]) for shape in shapes] != 2 * [(2, 2)]:
        raise CheckpointError(
            f"the network '{part.name}' makes outputs of the shapes {shapes} of 2 images — logits and features, a row "
            "for each image, expected"
        )
    source = OutputSource(part.name, f"onnx of {part.architecture}", partial(_run, session), bytes_sha256(content))
    return OutputsBackbone(source, side, first, Head(head["weight"], head["bias"]) if head else None)


def _run(session: Any, images: Tensor) -> BatchOutputs:
    logits, features = session.run(list(NETWORK_OUTPUTS), {"images": images.contiguous().numpy()})
    return BatchOutputs(torch.from_numpy(logits), torch.from_numpy(features))


def _probe(backbone: Backbone) -> Tensor:
    """Logits and features (4, c + d) of noise: a network that computes otherwise than when it was saved shows it."""
    p = backbone.preprocess
    images = torch.randn(_FEW, p.channels, p.crop, p.crop, generator=torch.Generator().manual_seed(0))
    found = backbone.outputs(images, Request())
    return torch.cat([found.logits.cpu().float(), found.features.cpu().float()], dim=1).contiguous()


_WHICH = ("model", "weights")  # keys of a config that say which weights are loaded


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
    found = {"weights": _licence(released.source if released else None)}
    return found | ({"images": _licence(data_sources().get(images))} if images else {})


def _licence(source: DataSource | None) -> str:
    if source is None:
        return "not known to openbench — those that they came with apply"
    return f"{source.title}: {source.licence} ({source.page})"
