"""Saving a detector and loading it: everything that it needs to score, and nothing that is run when it is read."""

import math
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from openbench import __version__
from openbench.api.arguments import path_of
from openbench.api.methods import chosen_method
from openbench.api.models.adopt import Asked
from openbench.backbones.base import Backbone
from openbench.backbones.device import resolve_device
from openbench.core.method import Method
from openbench.core.preprocess import OwnPreprocess
from openbench.detect.artefact import files, network_part, state
from openbench.detect.artefact import files as schema
from openbench.detect.artefact.network_part import licences, onnx_backbone
from openbench.detect.calibration import Calibration, Terms, promise_of
from openbench.detect.detector import Detector
from openbench.detect.export.network import network_onnx
from openbench.detect.network import Learnt, Network, check_fits, network_of
from openbench.errors import CheckpointError, ConfigError, OpenbenchError
from openbench.storage.plain_json import plain

_NETWORK, _METHOD, _CALIBRATION = files.PARTS
_PROBE, _HEAD = "probe.", "head."


def save_detector(detector: Detector, path: str | Path, network: str = "weights") -> str:
    """Write a calibrated detector and return the digest of its manifest, which covers every part.

    Args:
        detector: calibrated.
        path: a folder that does not exist yet, or a file that ends in `.zip`.
        network: as `weights` or as an `onnx` graph.

    Raises:
        NotFittedError: it is not calibrated.
        NotApplicableError: the network or the method cannot be written as weights and numbers, or as a graph.
        ConfigError: something is there, or another word for `network`.
    """
    if network not in ("weights", "onnx"):
        raise ConfigError(f"save.network — found {network!r} — allowed: weights, onnx")
    learnt, calibration = detector.learnt, detector.calibration
    backbone = learnt.network.backbone
    network_part.refuse_text_as_weights(backbone, network)
    described, weights = network_part.packed_network(backbone, learnt.network.node, detector.asked)
    packed, tensors = state.packed_method(learnt.method, detector.chosen.node)
    manifest = {
        "schema_version": schema.VERSION,
        "made_by": f"openbench {__version__}",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "classes": list(detector.class_names),
        "batch_size": detector.batch_size,
        "network": described | ({"kind": "onnx"} if network == "onnx" else {}),
        "method": {"name": detector.chosen.name, "packed": packed},
        "calibration": _terms(calibration),
        "about": {"licences": licences(learnt.network.node), **detector.about},
    }
    held = {
        "scores": calibration.scores,
        "codes": calibration.codes,
        "weights": calibration.weights,
        "seen": learnt.seen,
    }
    arrays = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in held.items() if a is not None}
    probes = {f"{_PROBE}{name}": rows for name, rows in network_part.probe(backbone).items()}
    if network == "onnx":
        graph = _as_graph(detector, described)
        arrays |= {f"{_HEAD}{name}": rows for name, rows in _head(backbone).items()}
    parts = {_METHOD: save_tensors(tensors), _CALIBRATION: save_tensors(arrays | probes)}
    parts |= {files.ONNX: graph} if network == "onnx" else {_NETWORK: save_tensors(weights)}
    return files.write_files(Path(path), plain(manifest), parts)


def _as_graph(detector: Detector, described: dict[str, Any]) -> bytes:
    """The network as ONNX, for a method that reads no more than this gives."""
    backbone = detector.learnt.network.backbone
    content = network_onnx(network_part.check_weights(backbone))
    part = schema.NetworkPart(**described)
    given = backbone.preprocess.own if isinstance(backbone.preprocess, OwnPreprocess) else None
    made = onnx_backbone(content, part, given, _head(backbone))
    check_fits(Network(made), detector.learnt.method, detector.chosen.name)
    return content


def _head(backbone: Backbone) -> dict[str, Tensor]:
    """The `weight` (c, d) and `bias` (c,) of a linear classifier; empty where there is none."""
    head = backbone.head
    return {"weight": head.weight, "bias": head.bias} if backbone.num_classes else {}


def load_detector(
    path: str | Path,
    *,
    model: Any = None,
    method: Method | None = None,
    preprocess: Any = None,
    device: str = "cpu",
    digest: str | None = None,
) -> Detector:
    """Return a detector that was saved; no code in it is run, and nothing but its files is read.

    The digests find what was damaged or edited without care. Whoever can write the files can write digests that fit, so
    where that matters, keep the digest that `save` returned and pass it.

    Args:
        path: the folder or the `.zip`.
        model: the network, where it is of a class of your own; its weights are those of the detector.
        method: the unfitted method, where it is of a class of your own.
        preprocess: the transform, where it is a function of your own.
        device: a torch device string, or `auto`.
        digest: of the manifest, as `save` returned it; None = not compared.

    Raises:
        CheckpointError: not a detector, changed since it was saved, or made by versions that do not fit.
    """
    place = path_of(path, "path")
    content, held, found = files.read_files(place)
    if digest is not None and digest != found:
        raise CheckpointError(f"'{place}' is another detector — digest {found}, {digest} expected")
    manifest = schema.parsed(content, f"'{place}': {files.MANIFEST}")
    wanted = (files.ONNX, _METHOD, _CALIBRATION) if manifest.network.kind == "onnx" else files.PARTS
    if set(manifest.parts) != set(wanted):
        raise CheckpointError(f"'{place}' lists the parts {', '.join(manifest.parts)} — {', '.join(wanted)} expected")
    contents = {
        name: files.check_part(name, held.get(name), part.size, part.sha256, place)
        for name, part in manifest.parts.items()
    }
    graph = contents.pop(files.ONNX, b"")
    tensors = {name: _tensors(content, name, place) for name, content in contents.items()}
    arrays = tensors[_CALIBRATION]
    asked = Asked(
        preprocess, manifest.network.features or None, manifest.network.head or None, device=resolve_device(device)
    )
    if graph:
        head = {name.removeprefix(_HEAD): rows for name, rows in arrays.items() if name.startswith(_HEAD)}
        network = _graph_network(manifest, graph, (model, asked), head)
    else:
        network = _network(manifest, tensors[_NETWORK], model, asked)
    network_part.check_probe(
        network.backbone,
        {name.removeprefix(_PROBE): rows for name, rows in arrays.items() if name.startswith(_PROBE)},
        f"'{place}'",
    )
    fitted = _method(manifest.method.packed, tensors[_METHOD], method, place)
    calibration = _calibration(manifest.calibration, arrays, place)
    restored = Detector(
        network.backbone,
        chosen_method(type(fitted)(**fitted.params()), name=manifest.method.name),
        classes=manifest.classes,
        device=device,
        batch_size=manifest.batch_size,
    )
    restored.about = manifest.about
    return restored.with_learnt(Learnt(network, fitted, arrays["seen"].numpy(), calibration), asked)


def _network(manifest: schema.Manifest, weights: Mapping[str, Tensor], model: Any, asked: Asked) -> Network:
    part = manifest.network
    if part.kind == "shipped":
        if model is not None:
            raise ConfigError(
                f"model is given, and the network of this detector is openbench's {part.name} — leave it out"
            )
        backbone = network_part.unpacked_shipped(part, weights, manifest.classes).to(asked.device)
        return Network(backbone, {**part.keys, "_name_": part.config})
    module = network_part.module_with_weights(model, part, weights)
    side = network_part.preprocess_of(part, asked.preprocess)
    wanted = Asked(side, asked.features, asked.head, part.name, asked.device)
    black = network_part.noise(part.preprocess.crop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the images are noise, which no network has learnt from
        return network_of(module, wanted, black, tuple(manifest.classes))


def _graph_network(
    manifest: schema.Manifest, graph: bytes, given: tuple[Any, Asked], head: Mapping[str, Tensor]
) -> Network:
    model, asked = given
    if model is not None:
        raise ConfigError(f"model is given, and the detector holds '{manifest.network.name}' as ONNX — leave it out")
    if asked.device.type != "cpu":
        raise ConfigError(f"device '{asked.device}' — the network of this detector is ONNX, run on the CPU — use cpu")
    return Network(onnx_backbone(graph, manifest.network, asked.preprocess, head))


def _method(packed: Mapping[str, Any], tensors: Mapping[str, Tensor], given: Method | None, place: Path) -> Method:
    try:
        return state.unpacked_method(packed, tensors, given)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"'{place}': what the method learnt does not hold together — {type(error).__name__}: {error} — fit and "
            "calibrate the detector again"
        ) from error


def _terms(calibration: Calibration) -> dict[str, Any]:
    terms, quantile = calibration.terms, calibration.quantile
    return {
        "images": int(calibration.scores.size),
        "alpha": float(terms.alpha),
        "delta": float(terms.delta),
        "correction": terms.correction,
        "guarantee": terms.guarantee,
        "coverage": None if terms.coverage is None else float(terms.coverage),
        "groups": list(calibration.groups),
        "quantile": quantile if quantile is not None and math.isfinite(quantile) else None,
        "never_exceeded": quantile == math.inf,
        "thresholds": {name: value for name, value in calibration.thresholds.items() if math.isfinite(value)},
        "promise": promise_of(calibration),
    }


def _calibration(part: schema.CalibrationPart, arrays: Mapping[str, Tensor], place: Path) -> Calibration:
    held = {name: arrays[name].numpy() if name in arrays else None for name in ("scores", "codes", "weights", "seen")}
    scores, seen = held["scores"], held["seen"]
    if scores is None or scores.shape != (part.images,) or scores.dtype != np.float64:
        raise CheckpointError(f"'{place}': {_CALIBRATION} does not hold the scores of {part.images} images")
    if seen is None or seen.shape[1:] != (16,) or seen.dtype != np.uint8:
        raise CheckpointError(f"'{place}': {_CALIBRATION} does not hold the digests of the images that fit saw")
    try:
        terms = Terms(part.alpha, part.delta, part.correction, part.guarantee, part.coverage)
        return Calibration(
            scores,
            terms,
            tuple(part.groups),
            held["codes"],
            held["weights"],
            math.inf if part.never_exceeded else part.quantile,
        )
    except OpenbenchError as error:
        raise CheckpointError(f"'{place}': the calibration does not hold together — {error}") from error


def _tensors(content: bytes, name: str, place: Path) -> dict[str, Tensor]:
    try:
        found: dict[str, Tensor] = load_tensors(content)
        return found
    except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"'{place}': '{name}' is not what safetensors writes — {error}") from error
