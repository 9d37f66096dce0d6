"""Detectors on disk: one JSON, one safetensors file and perhaps an ONNX graph, each with its digest. Nothing is run."""

import importlib
import sys
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import load as load_tensors, save as save_tensors
from torch import Tensor, nn

from openbench import __version__
from openbench.api.arguments import path_of
from openbench.api.methods import as_node, chosen_method
from openbench.api.models.outputs import OutputsBackbone, onnx_session
from openbench.api.models.preprocess import prepared
from openbench.api.models.wrap import ModelOptions, copied, unwrapped
from openbench.backbones.base import Backbone, resolve_device
from openbench.backbones.checkpoints import apply_weights
from openbench.backbones.network import NetworkBackbone
from openbench.backbones.rows import Rows
from openbench.config.build import build
from openbench.config.folders import shipped
from openbench.config.overrides import NAME
from openbench.core.benchmark import Split
from openbench.core.features import Head
from openbench.core.method import Method, StreamingMethod, leaves
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.core.record import short
from openbench.core.request import Request, Role
from openbench.core.search import with_params
from openbench.data.download import data_sources, released_weights
from openbench.detect.calibration import Calibration, Terms
from openbench.detect.detector import Detector
from openbench.detect.network import NETWORK_OUTPUTS, check_fits, network_of, network_onnx
from openbench.digest import bytes_sha256
from openbench.engine.compatibility import lacking
from openbench.engine.evaluate import for_layers
from openbench.errors import CheckpointError, ConfigError, NotApplicableError, OpenbenchError, check_choice
from openbench.public import TARGET, name_of, public, targets
from openbench.storage.checksum import KEY, stated
from openbench.storage.files import creating, write_whole
from openbench.storage.plain_json import loads, plain

MANIFEST, TENSORS, ONNX = "detector.json", "tensors.safetensors", "network.onnx"
VERSION = 2
_SOURCES = ("weights", "sha256")  # keys of a config for weights, which are in the detector
_WHICH = ("model", "weights")  # keys of a config that select released weights
_PROBES = 4  # images of noise
_TOLERANCE = 1e-3  # relative, of outputs between versions of libraries
_NOT_KNOWN = "not known to openbench: the licence that they came with applies"
_ARRAYS = ("scores", "codes", "weights", "quantile")  # of a calibration
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Tensors = dict[str, Tensor]
_IS = "is"  # key of a JSON object in place of a tensor, a method or a dataclass: its kind
_SHARED = "openbench.methods._bank"  # module of dataclasses that several methods have
_ALLOWED = "detectors on disk have numbers and tensors, never pickled objects; choose e.g. knn, mds or vim"


class _Strict(BaseModel):
    """A model without further keys and conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NetworkPart(_Strict):
    """The network: a config of openbench (`shipped`), a model of the user (`module`), or a graph (`onnx`).

    `rows` are features without a network; `keys` holds the numbers of features and logits in a row.
    `preprocess` has the fields of `ob.Preprocess`; `own_preprocess` identifies a transform of the user.
    """

    kind: Literal["shipped", "module", "onnx", "rows"]
    name: str
    config: str
    keys: dict[str, Any]
    architecture: str
    digest: str
    classes: Annotated[int, Field(ge=0)]
    preprocess: dict[str, Any]
    own_preprocess: str
    features: str
    head: str


class DetectorManifest(_Strict):
    """Everything but the tensors; `parts` are the SHA-256 digests of the other files.

    `calibration` has the terms of the guarantee and the groups; its thresholds and promise are for readers.
    """

    schema_version: Literal[2]
    made_by: str
    made_at: str
    classes: list[str]
    batch_size: Annotated[int, Field(ge=1)]
    network: NetworkPart
    method: dict[str, Any]
    calibration: dict[str, Any]
    about: dict[str, Any]
    parts: dict[str, Sha256]


def write(detector: Detector, path: Path, network: str) -> str:
    """Write a calibrated detector and return the digest of its manifest, which covers every part.

    Args:
        detector: calibrated.
        path: a folder that does not exist yet, or a file that ends in `.zip`.
        network: as `weights` or as an `onnx` graph.

    Raises:
        NotApplicableError: the network or the method cannot be written as weights and numbers, or as a graph.
        ConfigError: the path exists, or another word for `network`.
        OSError: the path cannot be written; nothing is then left behind.
    """
    check_choice("save.network", network, ("weights", "onnx"))
    if path.exists() or path.is_symlink():
        raise ConfigError(f"'{path}' exists — delete it, or give another path")
    calibration, (backbone, method) = detector.calibration, detector.learnt
    check_savable(detector, network)
    described = _described(backbone, detector.node, detector.options)
    arrays = {name: getattr(calibration, name) for name in _ARRAYS} | {"seen": detector.seen}
    tensors = {f"calibration.{name}": torch.tensor(np.asarray(a)) for name, a in arrays.items() if a is not None}
    tensors["probe"] = _probe(backbone)
    parts = {}
    linear = backbone.has_head and backbone.num_classes
    weights = {"weight": backbone.head.weight, "bias": backbone.head.bias} if linear else {}
    if isinstance(backbone, NetworkBackbone) and network == "onnx":
        described["kind"], parts[ONNX] = "onnx", network_onnx(backbone)
        preprocess = backbone.preprocess.own if isinstance(backbone.preprocess, OwnPreprocess) else None
        graph = _of_graph(parts[ONNX], NetworkPart(**described), preprocess, weights)
        check_fits(graph, method, detector.chosen.name)
    elif isinstance(backbone, NetworkBackbone):
        weights = backbone.network.state_dict()
    tensors |= {f"network.{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    finite = {name: value for name, value in calibration.thresholds.items() if np.isfinite(value)}
    for_readers = {"thresholds": finite, "promise": calibration.promise}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = {"schema_version": VERSION, "made_by": f"openbench {__version__}", "made_at": now, "network": described}
    manifest["method"] = {"name": detector.chosen.name, **packed_method(method, tensors)}
    manifest["calibration"] = {"terms": asdict(calibration.terms), "groups": calibration.groups, **for_readers}
    manifest |= {"classes": detector.class_names, "batch_size": detector.batch_size}
    manifest["about"] = {"licences": licences(detector.node), **detector.about}
    parts[TENSORS] = save_tensors(tensors)
    manifest["parts"] = {name: bytes_sha256(content) for name, content in parts.items()}
    parts[MANIFEST] = stated(plain(manifest))
    if path.suffix == ".zip":
        with creating(path) as stream, zipfile.ZipFile(stream, "w") as pack:
            for name, content in parts.items():
                pack.writestr(zipfile.ZipInfo(name), content)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            for name, content in parts.items():
                write_whole(Path(folder) / path.name / name, content)
            (Path(folder) / path.name).rename(path)
    return bytes_sha256(parts[MANIFEST])


def load_detector(
    path: str | Path,
    *,
    model: Any = None,
    method: Method | None = None,
    preprocess: Any = None,
    device: str = "cpu",
    digest: str | None = None,
) -> Detector:
    """Return a saved detector; no code in it is run, and only its files are read.

    Its digests reveal damage and careless edits. Somebody who can write the files can write digests that fit: where
    that matters, keep the digest that `save` returned and pass it.

    Args:
        path: the folder or the `.zip`.
        model: the network, if its class is your own; it gets the weights of the detector.
        method: the unfitted method, if its class is your own.
        preprocess: the transform, if it is your own function.
        device: a torch device string, or `auto`.
        digest: of the manifest, as `save` returned it; None = not compared.

    Raises:
        CheckpointError: not a detector, changed since it was saved, or made by versions that do not fit.
        ConfigError: a model for a detector that has its own, or a device that its network does not run on.
    """
    path, own_device = path_of(path, "path"), resolve_device(device)
    if not path.exists():
        raise CheckpointError(f"'{path}' not found — give the folder or the zip of a detector")
    with _loading(path):
        manifest, tensors, graph = _read_files(path, digest)
    part = manifest.network
    options = ModelOptions(preprocess, part.features or None, part.head or None, part.name, own_device)
    if model is not None and part.kind != "module":
        raise ConfigError(f"model is given, and the detector has '{part.name}' — leave it out")
    if graph and own_device.type != "cpu":
        raise ConfigError(f"device '{own_device}': the network of this detector is an ONNX graph — use cpu")
    with _loading(path):
        backbone, node = _network(manifest, tensors, graph, model, options)
        unfitted = None if method is None else for_layers(method, backbone.layers)
        fitted = unpacked_method(manifest.method, tensors, unfitted)
        chosen = chosen_method(with_params(fitted, {}), name=str(manifest.method["name"]))
        size = manifest.batch_size
        detector = Detector(backbone, chosen, classes=manifest.classes, device=device, batch_size=size)
        detector.backbone, detector.node, detector.options = backbone, node, options
        detector.about, detector.seen = manifest.about, tensors["calibration.seen"].numpy()
        found = {name: tensors.get(f"calibration.{name}") for name in _ARRAYS}
        known = {name: tensor for name, tensor in found.items() if tensor is not None}
        arrays: dict[str, Any] = {name: of.numpy() if of.ndim else of.item() for name, of in known.items()}
        terms, groups = Terms(**manifest.calibration["terms"]), tuple(manifest.calibration["groups"])
        detector._learnt, detector._calibration = (backbone, fitted), Calibration(terms=terms, groups=groups, **arrays)
        now, before = _probe(backbone), tensors["probe"]
        off = float(((now - before).abs().amax(0) / (1 + before.abs().amax(0))).max())
        if not off <= _TOLERANCE:
            why = f"the network's outputs for a fixed input differ by {off:.2g} (relative) from those at saving"
            raise CheckpointError(f"'{path}': {why}: its class or a library has changed — fit and calibrate again")
    return detector


@contextmanager
def _loading(path: Path) -> Iterator[None]:
    """Raise a CheckpointError for whatever files with another content lead to."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"'{path}' cannot be loaded ({why}) — copy it again, or fit and calibrate it") from error


def _read_files(path: Path, digest: str | None) -> tuple[DetectorManifest, Tensors, bytes]:
    """Return the manifest, the tensors by name, and the ONNX graph, empty without one."""
    root = path if path.is_dir() else zipfile.Path(path)
    # What is compressed could be a bomb.
    if isinstance(root, zipfile.Path) and any(member.compress_type for member in root.root.infolist()):
        raise CheckpointError(f"'{path}' is compressed — zip the files of the detector without compression")
    if not (root / MANIFEST).is_file():
        raise CheckpointError(f"'{path}' has no '{MANIFEST}' — give the folder or the zip of a detector")
    whole = (root / MANIFEST).read_bytes()
    if digest is not None and digest != bytes_sha256(whole):
        raise CheckpointError(f"'{path}' is another detector: digest {bytes_sha256(whole)}, {digest} expected")
    content = loads(whole.decode(), MANIFEST)
    if content.pop(KEY, None) is None or whole != stated(content):
        raise CheckpointError(f"'{path}': '{MANIFEST}' has changed since the detector was saved — copy it again")
    try:
        manifest = DetectorManifest(**content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, found, made_by = ".".join(map(str, first["loc"])), short(first["input"]), short(content.get("made_by"))
        why = f"key '{key}' is {found}: {first['msg']}"
        raise CheckpointError(f"'{path}' of {made_by}: {why} — fit and calibrate the detector again") from None
    parts = {name: (root / name).read_bytes() for name in (TENSORS, *[ONNX] * (manifest.network.kind == "onnx"))}
    for name, part in parts.items():
        if bytes_sha256(part) != manifest.parts.get(name):
            raise CheckpointError(f"'{path}': '{name}' has changed since the detector was saved — copy it again")
    return manifest, load_tensors(parts[TENSORS]), parts.get(ONNX, b"")


def _network(
    manifest: DetectorManifest, tensors: Tensors, graph: bytes, model: Any, own: ModelOptions
) -> tuple[Backbone, Mapping[str, Any]]:
    """Return the network of a detector, and its config of openbench's if any."""
    part, classes = manifest.network, manifest.classes
    weights = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
    if graph:
        return _of_graph(graph, part, own.preprocess, weights), {}
    if part.kind == "rows":
        head = Head(weights["weight"], weights["bias"]) if weights else None
        return Rows(part.name, part.keys["features"], logits=part.keys["logits"], head=head), {}
    if part.kind == "shipped":
        return _of_config(part, weights, classes).to(own.device), {**part.keys, NAME: part.config}
    return _of_module(model, own, part, weights, classes)


def check_savable(detector: Detector, network: str) -> None:
    """Check that the network of a detector, or features with their linear head, can be saved as `weights` or `onnx`.

    Raises:
        NotApplicableError: it is not a network of torch modules with weights, e.g. a function; or its classifier was
            made from text, or its training added parts, which weights do not restore; or features have another
            classifier than a linear one, or no graph.
    """
    why, backbone, options = "", detector.backbone or detector.learnt[0], detector.options
    reads = [part for part in lacking(Rows("graph", 1, logits=1), detector.chosen.method) if part != "the head"]
    without = f"choose a method of features, e.g. knn, and network=onnx: a graph has no {', '.join(reads)}"
    to_do = without if reads else "save it as a graph: network=onnx"
    if not backbone.has_network:
        if network == "onnx":
            why = "there is no network, only features — leave out onnx"
        elif backbone.classifies and not (backbone.has_head or isinstance(backbone, Rows)):
            why = "the classifier of its features is not linear — choose backbone.head=linear_probe"
    elif not isinstance(backbone, NetworkBackbone) or not isinstance(options.head, str | None):
        why = f"it is not a torch.nn.Module with weights ({type(backbone).__name__}) — pass the module to Detector"
    elif backbone.text_towers and network == "weights":
        why = f"its classifier was made from text, by a tower that is not saved — {to_do}"
    elif detector.node and network == "weights":
        part = NetworkPart(**_described(backbone, detector.node, options))
        try:
            _of_config(part, backbone.network.state_dict(), detector.class_names)
        except OpenbenchError:
            why = f"config '{part.config}' alone does not build it — {to_do}"
    if why:
        raise NotApplicableError(f"model '{backbone.name}' cannot be saved: {why}")


def _described(backbone: Backbone, node: Mapping[str, Any], options: ModelOptions) -> dict[str, Any]:
    """Return the fields of `NetworkPart`."""
    p = backbone.preprocess
    if rows := not backbone.has_network:
        columns = backbone.columns if isinstance(backbone, Rows) else backbone.feature_dim
        node = {"features": backbone.feature_dim, "logits": columns - backbone.feature_dim}
    # A detector names no class: what the config of openbench builds is built again at loading.
    config = shipped("backbone", str(node.get(NAME, ""))) or {}
    built = {key for key, value in node.items() if any(targets(value)) and config.get(key) == value}
    left_out = {"preprocess", *_SOURCES, *built}
    keys = {key: value for key, value in node.items() if not key.startswith("_") and key not in left_out}
    kind, config_name = "rows" if rows else "shipped" if node else "module", str(node.get(NAME, ""))
    network = {"architecture": backbone.architecture, "digest": backbone.digest, "classes": backbone.num_classes}
    preprocess = plain({field.name: getattr(p, field.name) for field in fields(Preprocess)})
    own = p.own.content if isinstance(p, OwnPreprocess) and p.own is not None else ""
    parts = {"features": options.features or "", "head": options.head if isinstance(options.head, str) else ""}
    named = {"kind": kind, "name": backbone.name, "config": config_name, "keys": keys}
    return {**named, **network, "preprocess": preprocess, "own_preprocess": own, **parts}


def _preprocess(part: NetworkPart, own: object) -> object:
    """Return the saved preprocess, or the user's transform."""
    if not part.own_preprocess:
        values: Any = {key: tuple(v) if isinstance(v, list) else v for key, v in part.preprocess.items()}
        return Preprocess(**values)
    if own is None:
        what = f"the network '{part.name}' was used with a transform of your own, which is not in the detector"
        raise CheckpointError(f"{what} — pass it: load_detector(path, preprocess=transform)")
    return own


def _of_config(part: NetworkPart, state: Tensors, classes: Sequence[str]) -> Backbone:
    """Return the backbone of a config of openbench, with the weights of a detector."""
    node = shipped("backbone", part.config)
    if node is None:
        raise CheckpointError(f"backbone '{part.config}' is not in this openbench — install that of the detector")
    stray = [key for key, value in part.keys.items() if key not in node or any(targets(value))]
    if stray:
        raise CheckpointError(f"backbone '{part.config}' has no key '{stray[0]}' that a detector may set")
    node = {**node, **part.keys, **{key: None for key in _SOURCES if key in node}}
    node["preprocess"] = {TARGET: "Preprocess", **vars(_preprocess(part, None))}
    if "num_classes" in node:
        node["num_classes"] = part.classes
    known = {"classes": tuple(classes), "num_classes": part.classes}
    backbone: NetworkBackbone = build(node, f"backbone '{part.config}'", Backbone, **known)
    backbone.load_state(dict(state), "the detector's weights")
    if part.architecture.startswith(f"{backbone.architecture}, evaluated as "):  # with the head of its training
        backbone.architecture = part.architecture
    if backbone.digest != part.digest:
        raise CheckpointError(f"backbone '{part.name}' is another one in this openbench — fit and calibrate again")
    return backbone


def _of_module(
    model: object, options: ModelOptions, part: NetworkPart, state: Tensors, classes: Sequence[str]
) -> tuple[Backbone, Mapping[str, Any]]:
    """Return a copy of the user's module with the weights of a detector."""
    if not isinstance(model, nn.Module):
        what = f"the network '{part.name}' ({part.architecture.partition(',')[0]}) is a class of your own"
        raise CheckpointError(f"{what} — pass one, with any weights: load_detector(path, model=MyNet())")
    preprocess = _preprocess(part, options.preprocess)
    module = copied(unwrapped(model), part.name)
    apply_weights(module, {key.removeprefix("inner."): t for key, t in state.items()}, "the detector's weights")
    n, crop = _PROBES, int(part.preprocess["crop"])
    pixels = np.random.default_rng(0).integers(0, 256, (n, crop, crop, 3), dtype=np.uint8)
    noise = Split("noise", Role.ID_TEST, list(pixels), np.full(n, -1), ["0"] * n, (), "noise", n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no network has learnt from noise
        return network_of(module, replace(options, preprocess=preprocess), noise, tuple(classes))


def _of_graph(content: bytes, part: NetworkPart, own: object, head: Mapping[str, Tensor]) -> OutputsBackbone:
    """Return the network of an ONNX graph, run by onnxruntime on the CPU; `head` is its linear classifier, if any.

    Raises:
        CheckpointError: onnxruntime cannot read the graph, or it reads other files.
    """
    if b"location" in content:  # of a tensor in another file; also a module of that name, which may be renamed
        raise CheckpointError(f"the network '{part.name}' names other files: one graph without 'location' expected")
    crop = int(part.preprocess["crop"])
    side = prepared(_preprocess(part, own), Preprocess(resize=crop, crop=crop))
    p, session = side.preprocess, onnx_session(content, torch.device("cpu"))

    def read(images: Tensor) -> tuple[Tensor, Tensor]:
        logits, features = session.run(list(NETWORK_OUTPUTS), {"images": images.detach().contiguous().numpy()})
        return torch.from_numpy(logits), torch.from_numpy(features)

    linear = Head(head["weight"], head["bias"]) if head else None
    black, name = torch.zeros(2, p.channels, p.crop, p.crop), f"onnx of {part.architecture}"
    return OutputsBackbone(part.name, name, read, side, black, head=linear, weights_sha256=bytes_sha256(content))


def _probe(backbone: Backbone) -> Tensor:
    """Return logits and features (4, c + d) of noise, which reveal a network that computes something else."""
    p = backbone.preprocess
    columns = backbone.columns if isinstance(backbone, Rows) else backbone.feature_dim
    shape = (p.channels, p.crop, p.crop) if backbone.has_network else (columns,)
    images = torch.randn(_PROBES, *shape, generator=torch.Generator().manual_seed(0))
    outputs = backbone.outputs(images, Request())
    return torch.cat([outputs.logits.cpu().float(), outputs.features.cpu().float()], dim=1).contiguous()


def licences(node: Mapping[str, Any], images: str = "") -> dict[str, str]:
    """Return the licence of a network's weights, and of the images of a data set if one is named.

    Args:
        node: the config of the network; empty for a network of the user. Weights other than those that the config of
            openbench loads are not the released ones.
        images: name of the data set.
    """
    name = str(node.get(NAME, ""))
    config = shipped("backbone", name) or {}
    released = released_weights().get(name) if all(node.get(key) == config.get(key) for key in _WHICH) else None
    sources = {"weights": released} | ({"images": data_sources().get(images)} if images else {})
    return {part: f"{s.title}: {s.licence} ({s.page})" if s else _NOT_KNOWN for part, s in sources.items()}


def refuse_unsavable(method: Method) -> None:
    """Refuse a method that scores streams, or learns objects which cannot be written, before it does.

    Args:
        method: unfitted.

    Raises:
        NotApplicableError: the method or a part of it does.
    """
    for leaf in leaves(method):
        streams = "scores streams of images, a detector each image by itself" * isinstance(leaf, StreamingMethod)
        if why := streams or (leaf.learns_objects and f"learns {leaf.learns_objects}"):
            raise NotApplicableError(f"method {type(leaf).__name__} cannot be saved: it {why} — {_ALLOWED}")


def packed_method(method: Method, tensors: Tensors, where: str = "method") -> dict[str, Any]:
    """Return class, hyper-parameters and state of a fitted method as JSON; its tensors are added to `tensors` by path.

    Args:
        method: fitted.
        tensors: name → tensor.
        where: the path to the method.

    Raises:
        NotApplicableError: its state is not made of numbers.
    """
    state = {name: value for name, value in vars(method).items() if name not in method.params()}
    packed = _packed(state, tensors, where, method)
    return {"version": type(method).version, "node": public(as_node(method)), "state": packed}


def _packed(value: Any, tensors: Tensors, where: str, method: Method) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        # Products with a transposed matrix sum in another order on some processors: equal scores need the same layout.
        transposed = value.dim() == 2 and not value.is_contiguous() and value.T.is_contiguous()
        tensors[where] = (value.T if transposed else value).detach().cpu().contiguous().clone()
        return {_IS: "transposed" if transposed else "tensor"}
    if isinstance(value, list | tuple):
        return [_packed(part, tensors, f"{where}.{place}", method) for place, part in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) and key != _IS for key in value):
        return {key: _packed(part, tensors, f"{where}.{key}", method) for key, part in value.items()}
    if isinstance(value, Method):
        return {_IS: "method", **packed_method(value, tensors, where)}
    if type(value) in _dataclasses(method).values():
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return {_IS: type(value).__name__, **_packed(parts, tensors, where, method)}
    if where.endswith(".faiss_"):
        import faiss

        tensors[where] = torch.from_numpy(faiss.serialize_index(value))
        return {_IS: "faiss"}
    what = f"'{where}' is a {type(value).__module__}.{type(value).__qualname__}"
    raise NotApplicableError(f"method {type(method).__name__} cannot be saved: {what} — {_ALLOWED}")


def unpacked_method(
    packed: Mapping[str, Any], tensors: Mapping[str, Tensor], own: Method | None = None, where: str = "method"
) -> Method:
    """Return the fitted method of `packed_method`.

    Args:
        packed: as JSON.
        tensors: by path.
        own: unfitted, if its class is not of openbench.
        where: the path to the method.

    Raises:
        CheckpointError: another version of the method, or content that does not fit it.
        Exception: of any kind, for JSON of another form.
    """
    node, target = packed["node"], packed["node"][TARGET]
    if own is None and "." in target:
        what = f"method '{target}' is not of openbench, and no code is loaded from a detector"
        raise CheckpointError(f"{what} — pass it: load_detector(path, method=MyMethod(…))")
    method: Method = build(node, f"method '{target}'", Method) if own is None else type(own)(**own.params())
    actual, saved = {**public(as_node(method)), "version": type(method).version}, {**node, "version": packed["version"]}
    if actual != saved:
        what = f"method {name_of(type(method))} is {actual}, and was {saved} when the detector was saved"
        raise CheckpointError(f"{what} — pass a method with these, or fit the detector again")
    for name, value in packed["state"].items():
        if not name.endswith("_") or name.startswith("__"):
            raise CheckpointError(f"method {target} has no state '{name}'")
        setattr(method, name, _unpacked(value, tensors, f"{where}.{name}", method))
    return method


def _unpacked(value: Any, tensors: Mapping[str, Tensor], where: str, method: Method) -> Any:
    if isinstance(value, list):
        return [_unpacked(part, tensors, f"{where}.{place}", method) for place, part in enumerate(value)]
    if not isinstance(value, dict):
        return value
    kind = value.get(_IS)
    if kind == "method":
        return unpacked_method(value, tensors, where=where)
    if kind in ("tensor", "transposed"):
        return tensors[where].T if kind == "transposed" else tensors[where]
    if kind == "faiss":
        import faiss

        return faiss.deserialize_index(tensors[where].numpy())
    parts = {key: _unpacked(part, tensors, f"{where}.{key}", method) for key, part in value.items() if key != _IS}
    return parts if kind is None else _dataclasses(method)[kind](**parts)


def _dataclasses(method: Method) -> dict[str, type]:
    """Return the dataclasses of a method's module and of the shared module, by name."""
    modules = [sys.modules[type(method).__module__], importlib.import_module(_SHARED)]
    kinds = [Head, *(kind for module in modules for kind in vars(module).values() if isinstance(kind, type))]
    return {k.__name__: k for k in kinds if is_dataclass(k) and not issubclass(k, Method)}
