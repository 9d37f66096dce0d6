"""Detectors on disk: one JSON, one safetensors file and perhaps an ONNX graph, each with its digest. Nothing is run."""

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from openbench import __version__
from openbench.api.models.outputs import OutputsBackbone, onnx_session
from openbench.api.models.parts import unwrapped
from openbench.api.models.preprocess import prepared
from openbench.api.models.wrap import ModelOptions, copied
from openbench.backbones.base import Backbone
from openbench.backbones.checkpoints import apply_weights
from openbench.backbones.network import NetworkBackbone
from openbench.backbones.rows import Rows
from openbench.config.build import build
from openbench.config.overrides import NAME
from openbench.config.shipped import shipped
from openbench.core.benchmark import Split
from openbench.core.features import Head
from openbench.core.method import Method
from openbench.core.preprocess import OwnPreprocess, Preprocess
from openbench.core.record import short
from openbench.core.request import Request, Role
from openbench.data.download import DataSource, data_sources
from openbench.data.weights import released_weights
from openbench.detect._export import NETWORK_OUTPUTS, network_onnx
from openbench.detect._state import Tensors, packed_method, unpacked_method
from openbench.detect.calibration import Calibration, Terms, promise_of
from openbench.detect.network import FittedState, Network, check_fits, network_of
from openbench.digest import bytes_sha256
from openbench.engine.evaluate import for_layers
from openbench.errors import CheckpointError, ConfigError, NotApplicableError, OpenbenchError, check_choice
from openbench.public import TARGET, targets
from openbench.storage.checksum import KEY, stated
from openbench.storage.files import creating, write_whole
from openbench.storage.plain_json import loads, plain

MANIFEST, TENSORS, ONNX = "detector.json", "tensors.safetensors", "network.onnx"
VERSION = 2
_SOURCES = ("weights", "sha256")  # keys of a config for weights, which are in the detector
_WHICH = ("model", "weights")  # keys of a config that select released weights
_PROBES = 4  # images of noise
_TOLERANCE = 1e-3  # relative, of outputs between versions of libraries
_ARRAYS = ("scores", "codes", "weights", "quantile")  # of a calibration
_UNREADABLE = (OSError, zipfile.BadZipFile, SafetensorError, KeyError, ValueError, RuntimeError, EOFError)
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


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


def write(
    state: FittedState,
    calibration: Calibration,
    options: ModelOptions,
    facts: Mapping[str, Any],
    path: Path,
    *,
    network: str,
) -> str:
    """Write a calibrated detector and return the digest of its manifest, which covers every part.

    Args:
        state: network and fitted method.
        calibration: of the detector.
        options: options of the user for the network.
        facts: `method` as users type it, `classes`, `batch_size` and `about`.
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
    backbone, node = state.network.backbone, state.network.node
    savable = check_savable(backbone, network, options)
    described = _described(backbone, node, options)
    arrays = {name: getattr(calibration, name) for name in _ARRAYS} | {"seen": state.seen}
    tensors = {
        f"calibration.{name}": torch.from_numpy(np.ascontiguousarray(np.asarray(array)).reshape(np.shape(array)))
        for name, array in arrays.items()
        if array is not None
    }
    tensors["probe"] = _probe(backbone)
    parts = {}
    if isinstance(savable, NetworkBackbone) and network == "onnx":
        weights = {"weight": backbone.head.weight, "bias": backbone.head.bias} if backbone.num_classes else {}
        described["kind"], parts[ONNX] = "onnx", network_onnx(savable)
        preprocess = backbone.preprocess.own if isinstance(backbone.preprocess, OwnPreprocess) else None
        graph = _of_graph(parts[ONNX], NetworkPart(**described), preprocess, weights)
        check_fits(Network(graph), state.method, facts["method"])
    elif isinstance(savable, NetworkBackbone):
        weights = savable.network.state_dict()
    else:
        weights = {"weight": savable.head.weight, "bias": savable.head.bias} if savable.has_head else {}
    tensors |= {f"network.{name}": tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    manifest = {
        "schema_version": VERSION,
        "made_by": f"openbench {__version__}",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "network": described,
        "method": {"name": facts["method"], **packed_method(state.method, tensors)},
        "calibration": {
            "terms": asdict(calibration.terms),
            "groups": calibration.groups,
            "thresholds": {name: value for name, value in calibration.thresholds.items() if np.isfinite(value)},
            "promise": promise_of(calibration),
        },
        "classes": facts["classes"],
        "batch_size": facts["batch_size"],
        "about": {"licences": licences(node), **facts["about"]},
    }
    parts[TENSORS] = save_tensors(tensors)
    manifest["parts"] = {name: bytes_sha256(content) for name, content in parts.items()}
    parts[MANIFEST] = stated(plain(manifest))
    _write_files(path, parts)
    return bytes_sha256(parts[MANIFEST])


def _write_files(path: Path, files: Mapping[str, bytes]) -> None:
    """Write all files, or none, as a zip or a folder."""
    if path.suffix == ".zip":
        with creating(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as pack:
            for name, content in files.items():
                pack.writestr(zipfile.ZipInfo(name), content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        for name, content in files.items():
            write_whole(unfinished / name, content)
        unfinished.rename(path)


def read(
    path: Path, options: ModelOptions, model: Any, method: Method | None, digest: str | None
) -> tuple[DetectorManifest, FittedState, Calibration, ModelOptions]:
    """Return a saved detector, with the options for its network; no code in it is run, and only its files are read.

    Args:
        path: the folder or the `.zip`.
        options: the transform, if it is the user's function, and the device.
        model: the network, if it is of a class of the user.
        method: the unfitted method, if it is of a class of the user.
        digest: of the manifest; None = not compared.

    Raises:
        CheckpointError: not a detector, changed since it was saved, or made by versions that do not fit.
        ConfigError: a model for a detector that has its own, or a device that its network does not run on.
    """
    manifest, tensors, graph = _read_files(path, digest)
    part = manifest.network
    options = ModelOptions(options.preprocess, part.features or None, part.head or None, device=options.device)
    if model is not None and part.kind != "module":
        raise ConfigError(f"model is given, and the detector has '{part.name}' — leave it out")
    if graph and options.device.type != "cpu":
        raise ConfigError(f"device '{options.device}': the network of this detector is an ONNX graph — use cpu")
    try:
        network = _network(manifest, tensors, graph, model, options)
        unfitted = None if method is None else for_layers(method, network.backbone.layers)
        fitted = unpacked_method(manifest.method, tensors, unfitted)
        state = FittedState(network, fitted, tensors["calibration.seen"].numpy())
        arrays: dict[str, Any] = {
            name: tensors[key].numpy() for name in _ARRAYS if (key := f"calibration.{name}") in tensors
        }
        if "quantile" in arrays:
            arrays["quantile"] = arrays["quantile"].item()
        terms, groups = Terms(**manifest.calibration["terms"]), tuple(manifest.calibration["groups"])
        calibration = Calibration(terms=terms, groups=groups, **arrays)
        now, before = _probe(state.network.backbone), tensors["probe"]
        off = float(((now - before).abs().amax(0) / (1 + before.abs().amax(0))).max())
    except CheckpointError:
        raise
    except (OpenbenchError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"'{path}' is inconsistent ({type(error).__name__}: {error}) — fit and calibrate the detector again"
        ) from error
    if not off <= _TOLERANCE:
        raise CheckpointError(
            f"'{path}': the network's outputs for a fixed input differ by {off:.2g} (relative) from those at saving: "
            "its class, a library or its preprocess has changed — fit and calibrate again"
        )
    return manifest, state, calibration, options


def _read_files(path: Path, digest: str | None) -> tuple[DetectorManifest, Tensors, bytes]:
    """Return the manifest, the tensors by name, and the ONNX graph, empty without one."""
    if not path.exists():
        raise CheckpointError(f"'{path}' not found — give the folder or the zip of a detector")
    try:
        root = path if path.is_dir() else zipfile.Path(path)
        # What is compressed could be a bomb.
        if isinstance(root, zipfile.Path) and any(member.compress_type for member in root.root.infolist()):
            raise ValueError("it is compressed")
        whole = (root / MANIFEST).read_bytes()
        if digest is not None and digest != bytes_sha256(whole):
            raise CheckpointError(f"'{path}' is another detector: digest {bytes_sha256(whole)}, {digest} expected")
        manifest = _manifest(whole, f"'{path}': {MANIFEST}")
        names = [TENSORS, *[ONNX] * (manifest.network.kind == "onnx")]
        parts = {name: (root / name).read_bytes() for name in names}
        for name, part in parts.items():
            if bytes_sha256(part) != manifest.parts.get(name):
                raise CheckpointError(f"'{path}': '{name}' has changed since the detector was saved — copy it again")
        return manifest, load_tensors(parts[TENSORS]), parts.get(ONNX, b"")
    except _UNREADABLE as error:
        raise CheckpointError(f"'{path}' cannot be read ({error}) — copy the detector again") from error


def _manifest(whole: bytes, where: str) -> DetectorManifest:
    try:
        content = loads(whole.decode("utf-8"), where)
    except Exception as error:  # of the text, of JSON, or of strict JSON
        raise CheckpointError(f"{where} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.pop(KEY, None) is None or whole != stated(content):
        raise CheckpointError(f"{where} has changed since the detector was saved — make the detector again")
    if content.get("schema_version") != VERSION:
        version, made_by = (short(content.get(key)) for key in ("schema_version", "made_by"))
        raise CheckpointError(
            f"{where} has the format {version} of {made_by}, and this openbench reads the format {VERSION} — fit and "
            "calibrate the detector again"
        )
    try:
        return DetectorManifest.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{where}: key '{key}' — found {short(first['input'])}: {first['msg']}") from None


def _network(manifest: DetectorManifest, tensors: Tensors, graph: bytes, model: Any, own: ModelOptions) -> Network:
    """Return the network of a detector."""
    part, classes = manifest.network, manifest.classes
    weights = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
    if graph:
        return Network(_of_graph(graph, part, own.preprocess, weights))
    if part.kind == "rows":
        head = Head(weights["weight"], weights["bias"]) if weights else None
        return Network(Rows(part.name, part.keys["features"], logits=part.keys["logits"], head=head))
    if part.kind == "shipped":
        return Network(_of_config(part, weights, classes).to(own.device), {**part.keys, NAME: part.config})
    return _of_module(model, own, part, weights, classes)


def check_savable(backbone: Backbone, network: str, options: ModelOptions | None = None) -> Backbone:
    """Return a network, or features with their linear head, that can be saved.

    Args:
        backbone: with weights.
        network: as `weights` or `onnx`.
        options: options of the user for it.

    Raises:
        NotApplicableError: it is not a network of torch modules with weights, e.g. a function; or its classifier was
            made from text, which weights do not restore; or features have another classifier than a linear one, or no
            graph.
    """
    why = ""
    if not backbone.has_network:
        if network == "onnx":
            why = "there is no network, only features — leave out onnx"
        elif backbone.classifies and not (backbone.has_head or isinstance(backbone, Rows)):
            why = "the classifier of its features is not linear — choose backbone.head=linear_probe"
    elif not isinstance(backbone, NetworkBackbone) or not (options is None or isinstance(options.head, str | None)):
        why = f"it is not a torch.nn.Module with weights ({type(backbone).__name__}) — pass the module to Detector"
    elif backbone.text_towers and network == "weights":
        why = (
            "its classifier was made from text, by a tower that is not in a detector — save it as ONNX: network=onnx, "
            "or save(path, network='onnx') in Python"
        )
    if why:
        raise NotApplicableError(f"model '{backbone.name}' cannot be saved: {why}")
    return backbone


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
    return {
        "kind": "rows" if rows else "shipped" if node else "module",
        "name": backbone.name,
        "config": str(node.get(NAME, "")),
        "keys": {key: value for key, value in node.items() if not key.startswith("_") and key not in left_out},
        "architecture": backbone.architecture,
        "digest": backbone.digest,
        "classes": backbone.num_classes,
        "preprocess": plain({field.name: getattr(p, field.name) for field in fields(Preprocess)}),
        "own_preprocess": p.own.content if isinstance(p, OwnPreprocess) and p.own is not None else "",
        "features": options.features or "",
        "head": options.head if isinstance(options.head, str) else "",
    }


def _preprocess(part: NetworkPart, own: object) -> object:
    """Return the saved preprocess, or the user's transform."""
    if not part.own_preprocess:
        values: Any = {key: tuple(v) if isinstance(v, list) else v for key, v in part.preprocess.items()}
        return Preprocess(**values)
    if own is None:
        raise CheckpointError(
            f"the network '{part.name}' was used with a transform of your own, and no code is loaded from a detector — "
            "pass it: load_detector(path, preprocess=transform)"
        )
    return own


def _of_config(part: NetworkPart, state: Tensors, classes: Sequence[str]) -> Backbone:
    """Return the backbone of a config of openbench, with the weights of a detector."""
    node = shipped("backbone", part.config)
    if node is None:
        raise CheckpointError(
            f"backbone '{part.config}' is not in this openbench — install the version of the detector"
        )
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
    if backbone.digest != part.digest:
        raise CheckpointError(
            f"backbone '{part.name}' is another one in this openbench (digest {backbone.digest}, {part.digest} at "
            "saving) — install the version of the detector, or fit and calibrate again"
        )
    return backbone


def _of_module(
    model: object, options: ModelOptions, part: NetworkPart, state: Tensors, classes: Sequence[str]
) -> Network:
    """Return a copy of the user's module with the weights of a detector."""
    if not isinstance(model, nn.Module):
        raise CheckpointError(
            f"the network '{part.name}' ({part.architecture.partition(',')[0]}) is a class of your own, and no code is "
            "loaded from a detector — pass one, with any weights: load_detector(path, model=MyNet())"
        )
    preprocess = _preprocess(part, options.preprocess)
    module = copied(unwrapped(model), part.name)
    apply_weights(module, {key.removeprefix("inner."): t for key, t in state.items()}, "the detector's weights")
    pixels = np.random.default_rng(0).integers(
        0, 256, (_PROBES, *2 * [int(part.preprocess["crop"])], 3), dtype=np.uint8
    )
    noise = Split("noise", Role.ID_TEST, list(pixels), np.full(_PROBES, -1), ["0"] * _PROBES, (), "noise", _PROBES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no network has learnt from noise
        named = ModelOptions(preprocess, options.features, options.head, part.name, options.device)
        return network_of(module, named, noise, tuple(classes))


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
    linear = Head(head["weight"], head["bias"]) if head else None
    black, read = torch.zeros(2, p.channels, p.crop, p.crop), partial(_run, session)
    name, sha256 = f"onnx of {part.architecture}", bytes_sha256(content)
    return OutputsBackbone(part.name, name, read, side, black, head=linear, weights_sha256=sha256)


def _run(session: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    logits, features = session.run(list(NETWORK_OUTPUTS), {"images": images.detach().contiguous().numpy()})
    return torch.from_numpy(logits), torch.from_numpy(features)


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
    same = all(node.get(key) == config.get(key) for key in _WHICH)
    released = released_weights().get(name) if same else None
    weights = {"weights": _licence(released.source if released else None)}
    return weights | ({"images": _licence(data_sources().get(images))} if images else {})


def _licence(source: DataSource | None) -> str:
    if source is None:
        return "not known to openbench: the licence that they came with applies"
    return f"{source.title}: {source.licence} ({source.page})"
