"""The user's model as a backbone: a torch module whose parts are found, a function of the images, or an ONNX file."""

import copy
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from openbench.api.models.outputs import OutputsBackbone, Read, failing_on, onnx_reader
from openbench.api.models.preprocess import (
    WAYS,
    PreparedTransform,
    code_of,
    prepared,
    published_preprocess,
    range_warnings,
    text_of,
)
from openbench.backbones.anatomy import Anatomy, watched
from openbench.backbones.base import Backbone
from openbench.backbones.checkpoints import SUFFIXES
from openbench.backbones.libraries import stages, torchvision_anatomy
from openbench.backbones.network import NetworkBackbone, state_sha256
from openbench.config.overrides import NAME, word
from openbench.core.benchmark import Split
from openbench.core.features import Head
from openbench.core.preprocess import Preprocess
from openbench.data.loading import batches
from openbench.digest import digest
from openbench.engine.probe import FEW, ask, some_of
from openbench.errors import ConfigError, did_you_mean, listed
from openbench.public import TARGET

_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
_STAGES = ("layer1", "layer2", "layer3", "layer4")
_MOST = 8  # candidates named in a message
_AS_FUNCTION = "or pass a function of the images that returns (features, logits)"
_PROBABILITY = 1e-3  # tolerance of a row's sum
# Prefix, which is the name of a config, → whether `NAME/WEIGHTS` may follow it.
_LIBRARIES = {"timm": False, "torchvision": True, "open_clip": True}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class NetworkParts:
    """The parts of a network.

    Args:
        pick: key or position of the logits in what the module returns; None = all of it.
        output: the logits, (n, c).
        head: dotted name of the nn.Linear that makes the logits; empty where there is none.
        features: dotted name of the module that makes the features, where that is not the head's input.
        stages: names of the modules that return maps (n, c, h, w), shallow to deep, as they are usually called.
    """

    pick: str | int | None
    output: Tensor
    head: str
    features: str = ""
    stages: tuple[str, ...] = ()


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the network inside DataParallel, DistributedDataParallel and torch.compile's wrapper."""
    while isinstance(inner := getattr(module, _WRAPPERS.get(type(module).__name__, ""), None), nn.Module):
        module = inner
    return module


def find_parts(
    module: nn.Module, images: Tensor, name: str, classes: int, *, features: str | None = None, head: str | None = None
) -> NetworkParts:
    """Return where the classifier, the features and the stages of a module are.

    The classifier is the nn.Linear whose output the module returns; its input is the features.

    Args:
        module: in eval mode.
        images: a few, normalised, in the module's dtype and on its device.
        name: of the model.
        classes: number of classes of the benchmark.
        features: dotted name of the module that makes the features; None = the classifier's input.
        head: dotted name of the classifier; None = found.

    Raises:
        ConfigError: no such module, no output (n, c), or more than one layer that may be the classifier.
    """
    named = [place for place in (features, head) if place]
    for place in named:
        _check_named(module, place, name)
    read = (n for n, part in module.named_modules() if n and (isinstance(part, nn.Linear) or n in (*named, *_STAGES)))
    with failing_on(images, name):
        returned, calls = watched(module, read, images)
    pick, output = _logits(returned, name, classes, len(images))
    linear = {n: c for n, c in calls.items() if isinstance(module.get_submodule(n), nn.Linear) and c[1].ndim == 2}
    if head:
        if head not in linear:
            kind, listed = type(module.get_submodule(head)).__name__, _listed(module, linear)
            raise ConfigError(f"model '{name}': head '{head}' is {kind} — name an nn.Linear, candidates: {listed}")
    else:
        head = _find_head(module, linear, output, name, classes)
    if features:
        if features not in calls:
            raise ConfigError(f"model '{name}': module '{features}' is not called in the forward pass")
        values = flat(calls[features][1], name, features)
        if head and values.shape == linear[head][0].shape and torch.equal(values, linear[head][0]):
            features = ""  # the head's own input
    children = dict(module.named_children())
    stages = [stage for stage in _STAGES if stage in children]
    maps = all(stage in calls and calls[stage][1].ndim == 4 for stage in stages)
    return NetworkParts(pick, output, head, features or "", tuple(stages) if maps else ())


def flat(features: Tensor, name: str, where: str) -> Tensor:
    """Return a module's output as features (n, d): maps are averaged over their positions.

    Raises:
        ConfigError: it has another number of axes.
    """
    if features.ndim == 4:
        return features.mean(dim=(2, 3)) if features.shape[2:] != (1, 1) else features.flatten(1)
    if features.ndim == 2:
        return features
    raise ConfigError(f"model '{name}': '{where}' returns {tuple(features.shape)} — allowed: (n, d), or (n, d, h, w)")


def _check_named(module: nn.Module, place: str, name: str) -> None:
    names = [n for n, _ in module.named_modules() if n]
    if place not in names:
        top = listed((n for n, _ in module.named_children()), _MOST)
        raise ConfigError(f"model '{name}' has no module '{place}'{did_you_mean(place, names)} — its parts: {top}")


def tensors_in(returned: Any) -> dict[Any, Any]:
    """Return what a module returns by key, position or attribute; a single tensor by None."""
    if isinstance(returned, Tensor):
        return {None: returned}
    if isinstance(returned, Mapping):
        return dict(returned)
    if isinstance(returned, Sequence) and not hasattr(returned, "logits"):
        return dict(enumerate(returned))
    return dict(getattr(returned, "__dict__", {}))


def _logits(returned: Any, name: str, classes: int, n: int) -> tuple[str | int | None, Tensor]:
    """The logits in what a module returns for n images, and where they are in it."""
    parts = tensors_in(returned)
    fitting = {key: value for key, value in parts.items() if isinstance(value, Tensor) and value.ndim == 2}
    if "logits" in fitting:
        fitting = {"logits": fitting["logits"]}
    if len(fitting) > 1:
        fitting = {key: value for key, value in fitting.items() if value.shape[1] == classes}
    if len(fitting) != 1:
        shapes = [
            ("" if key is None else f"{key}: ") + (f"{tuple(v.shape)}" if isinstance(v, Tensor) else type(v).__name__)
            for key, v in parts.items()
        ]
        raise ConfigError(
            f"model '{name}' returns {', '.join(shapes[:_MOST]) or type(returned).__name__}, not one tensor of logits "
            f"(n, c), or one called 'logits' — name head=… and features=…, {_AS_FUNCTION}"
        )
    pick, logits = next(iter(fitting.items()))
    if len(logits) != n:
        raise ConfigError(f"model '{name}' returns {len(logits)} rows for {n} images — return a row for each image")
    return pick, logits


def _find_head(
    module: nn.Module, linear: Mapping[str, tuple[Tensor, Tensor]], output: Tensor, name: str, classes: int
) -> str:
    """The name of the linear layer that makes the output; empty if there is none."""
    equal = partial(torch.allclose, output, rtol=0, atol=0, equal_nan=True)
    if fitting := [n for n, (_, logits) in linear.items() if logits.shape == output.shape and equal(logits)]:
        return fitting[-1]
    if any(logits.shape[1] == output.shape[1] == classes for _, logits in linear.values()):
        raise ConfigError(
            f"model '{name}': no nn.Linear makes its output {tuple(output.shape)} alone (candidates: "
            f"{_listed(module, linear)}) — name the classifier: head='{list(linear)[-1]}', {_AS_FUNCTION}"
        )
    return ""


def _listed(module: nn.Module, linear: Mapping[str, object]) -> str:
    """The linear layers by name and size, the last ones first."""
    parts = [f"'{n}' {module.get_submodule(n).in_features} → {module.get_submodule(n).out_features}" for n in linear]
    return ", ".join(parts[: -_MOST - 1 : -1]) or "none"


def dtype_of(module: nn.Module) -> torch.dtype:
    """Return the dtype in which a network takes images: that of its first parameter of floating point."""
    kinds = (p.dtype for p in (*module.parameters(), *module.buffers()) if p.is_floating_point())
    return next(kinds, torch.float32)


def anatomy_of(module: nn.Module, parts: NetworkParts, p: Preprocess) -> Anatomy:
    """Return where the head of a module is, and the stages with maps.

    Args:
        module: in eval mode.
        parts: of it.
        p: how images reach it.
    """
    library = type(module).__module__.partition(".")[0]
    with suppress(Exception):  # a library's network that the user changed: its maps are not read then
        if library == "timm":
            return Anatomy(parts.head, *stages(module))
        if library == "torchvision":
            return replace(torchvision_anatomy(module, p), head=parts.head)
    return Anatomy(parts.head, {f"stage{i}": name for i, name in enumerate(parts.stages, start=1)})


@dataclass(frozen=True)
class ModelOptions:
    """The arguments of a call that describe the model.

    Args:
        preprocess: how images reach it; None = as it was published, if it says so.
        features: dotted name of the module that makes the features, or name of an ONNX output; None = found.
        head: the linear classifier, or its dotted name; None = found.
        name: in tables and records; None = from its class.
        device: where it runs.
    """

    preprocess: object = None
    features: str | None = None
    head: str | Head | None = None
    name: str | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def refuse(self, model: str, *keys: str) -> None:
        """Refuse options for a model that has its own.

        Raises:
            ConfigError: one is given.
        """
        for key in ("preprocess", "features", "head", *keys):
            if getattr(self, key) is not None:
                raise ConfigError(f"{key} is given for {model} — leave it out")


@dataclass(frozen=True)
class WrappedModel:
    """A user's model, ready to run.

    Args:
        backbone: with weights.
        node: its entry in a record's config.
        notes: decisions made for the user.
        warnings: reasons why the numbers may not be what the user expects.
    """

    backbone: Backbone
    node: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageTask:
    """The images that a model is evaluated on.

    Args:
        images: ID images, on which the model is tried.
        classes: names of the ID classes.
        preprocess: the benchmark's, for `preprocess="benchmark"`.
    """

    images: Split
    classes: tuple[str, ...]
    preprocess: Preprocess

    def sample(self, preprocess: Preprocess) -> Tensor:
        """Return a few preprocessed images, spread over the classes, (n, channels, h, w).

        Raises:
            DataError: an image cannot be read, or the preprocess fails on it.
        """
        return next(batches(some_of(self.images), preprocess, FEW))


def wrap(model: object, options: ModelOptions, task: ImageTask) -> WrappedModel:
    """Return a user's model as a backbone; the model itself is not changed.

    Args:
        model: a Backbone, a torch.nn.Module, a function of normalised images (n, channels, h, w) that returns logits
            or (features, logits), or the path of an ONNX file.
        options: how the user describes it.
        task: the images that it is evaluated on.

    Raises:
        ConfigError: another kind of object, no preprocess, or parts that cannot be found.
        DataError: outputs that are not finite.
    """
    if not isinstance(options.features, str | None):
        raise ConfigError(f"features is a {type(options.features).__name__} — pass the name of one module")
    if isinstance(model, Backbone):
        return _wrap_backbone(model, options, task)
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        return _wrap_module(model, options, task)
    if isinstance(model, str | Path) or (callable(model) and not isinstance(model, type)):
        return _wrap_outputs(model, options, task)
    kind = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
    raise ConfigError(
        f"model is {kind} — pass a torch.nn.Module, a function of the images, the path of an ONNX file, or a name: of "
        "a backbone, or timm:NAME, torchvision:NAME or open_clip:NAME"
    )


def name_of(model: object) -> str:
    """Return the default name of a model in tables: its published name, or its class's."""
    if isinstance(model, str | Path):
        text = Path(model).stem if str(model).endswith(".onnx") else str(model)
    else:
        inner: Any = unwrapped(model) if isinstance(model, nn.Module) else model
        settings = getattr(inner, "pretrained_cfg", None)
        names = (
            settings.get("architecture") if isinstance(settings, Mapping) else None,
            getattr(inner, "name", None),
            getattr(inner, "__name__", None),
            type(inner).__name__.lower(),
        )
        text = next(name for name in names if isinstance(name, str) and name)
    return _NOT_IN_NAMES.sub("_", text).strip("_") or "model"


def named_config(name: str) -> tuple[str, dict[str, str]]:
    """Return the config of a backbone that a name stands for, and the keys that it sets: `timm` with its `model`.

    Args:
        name: of a backbone's config, or `timm:NAME`, `torchvision:NAME[/WEIGHTS]`, `open_clip:NAME[/WEIGHTS]`.

    Raises:
        ConfigError: a name in another library.
    """
    prefix, _, rest = name.partition(":")
    if not rest:
        return name, {}
    if prefix not in _LIBRARIES:
        raise ConfigError(f"model '{name}': '{prefix}' is none of {', '.join(_LIBRARIES)} — load the network, pass it")
    if _LIBRARIES[prefix] and "/" in rest:
        model, _, weights = rest.rpartition("/")
        return prefix, {"model": model, "weights": weights}
    return prefix, {"model": rest}


def config_words(name: str) -> list[str]:
    """Return the overrides by which the command line names a model: `timm:resnet18` is `backbone=timm` with its model.

    Args:
        name: as for `named_config`.
    """
    config, keys = named_config(name)
    return [f"backbone={word(config)}", *(f"backbone.{key}={word(value)}" for key, value in keys.items())]


def is_name(model: object) -> TypeGuard[str]:
    """Whether a model is named by a config of openbench or of a library, rather than by a file.

    Raises:
        ConfigError: it is a file of weights: without the network's class nothing can be computed.
    """
    if isinstance(model, str | Path) and ":" not in str(model) and Path(model).suffix in SUFFIXES:
        raise ConfigError(f"model '{model}' is a file of weights, not a network — load it into a network and pass that")
    return isinstance(model, str) and not model.endswith(".onnx")


def _wrap_backbone(model: Backbone, options: ModelOptions, task: ImageTask) -> WrappedModel:
    options.refuse("a Backbone, which has its own")
    model = copy.copy(model)  # the probe is stored on it
    if model.trained:
        ask(model.to(options.device), task.images)
    return WrappedModel(model, _node(model, type(model), options.name or model.name))


def _wrap_module(model: nn.Module, options: ModelOptions, task: ImageTask) -> WrappedModel:
    inner, notes = unwrapped(model), tuple[str, ...]()
    tower = getattr(inner, "visual", None)
    if type(inner).__module__.startswith("open_clip.") and isinstance(tower, nn.Module):
        inner, notes = tower, ("the image tower of open_clip's model is evaluated, without a text head",)
    name = options.name or name_of(inner)
    transform = _transform(model, options, task, name)
    module = copied(inner, name).to(options.device)
    images = task.sample(transform.preprocess).to(options.device)
    given, place = (None, options.head) if isinstance(options.head, str) else (options.head, None)
    classes = len(task.classes)
    parts = find_parts(module, images.to(dtype_of(module)), name, classes, features=options.features, head=place)
    if given is not None and parts.head and not parts.features:
        raise ConfigError(f"model '{name}' has the classifier '{parts.head}' — leave head=(W, b) out")
    c = parts.output.shape[1]
    headless = not parts.head and not parts.features and c != classes
    backbone: NetworkBackbone | OutputsBackbone
    if given is None and not parts.features and (parts.head or headless):
        backbone = _as_network(module, parts, name, transform).to(options.device)
    else:
        classifier = given if headless and given is not None and given.weight.shape[1] == c else None
        read = _reader(module, parts.pick, name, options.features or "", classifier)
        architecture = _architecture_of(module) + (f", features of {options.features}" if options.features else "")
        backbone = OutputsBackbone(name, architecture, read, transform, images, head=given, model=module)
    return _probed(backbone, type(inner), (*notes, *transform.notes), images, task)


def _wrap_outputs(model: Any, options: ModelOptions, task: ImageTask) -> WrappedModel:
    """A function or an ONNX file, of which only the outputs are known."""
    name = options.name or name_of(model)
    is_file = isinstance(model, str | Path)
    if isinstance(options.head, str) or (options.features is not None and not is_file):
        raise ConfigError(
            f"model '{name}' is {'an ONNX file' if is_file else 'a function'}, in which no module can be named — give "
            "the classifier as head=(W, b), and let a function return (features, logits)"
        )
    transform = _transform(model, options, task, name)
    images, notes, read, sha256 = task.sample(transform.preprocess), transform.notes, None, ""
    if is_file:
        read, architecture, sha256 = onnx_reader(Path(model), name, options.features, len(task.classes), options.device)
    else:
        # The function may read weights, globals and files that change between two calls.
        read, architecture = partial(_read_function, model, name), f"function {name}, {secrets.token_hex(16)}"
        notes = (f"model '{name}' is a function, which may change unseen: its results are never reused", *notes)
    function = None if is_file else model
    backbone = OutputsBackbone(
        name, architecture, read, transform, images, head=options.head, model=function, weights_sha256=sha256
    )
    return _probed(backbone, Path if is_file else type(model), notes, images, task)


def _probed(
    backbone: NetworkBackbone | OutputsBackbone, kind: type, notes: tuple[str, ...], images: Tensor, task: ImageTask
) -> WrappedModel:
    """A model of some class, run on a few images; with a warning where its logits are probabilities already."""
    ask(backbone, task.images)
    warnings = range_warnings(images, backbone.network)
    rows = backbone.probe.rows.get("logits")
    classified = rows is not None and rows.shape[1] > 1 and backbone.classifies
    if classified and (rows >= 0).all() and np.abs(rows.sum(axis=1) - 1).max() < _PROBABILITY:
        told = "returns probabilities (its rows sum to 1) where logits are expected — return the inputs of the softmax"
        warnings += (f"model '{backbone.name}' {told}",)
    return WrappedModel(backbone, _node(backbone, kind, backbone.name), notes, warnings)


def _transform(model: object, options: ModelOptions, task: ImageTask, name: str) -> PreparedTransform:
    """How images reach a model: as given, or as it was published."""
    given = published_preprocess(model) if options.preprocess is None else options.preprocess
    if given is None:
        raise ConfigError(f"model '{name}' does not say how its images are preprocessed — {WAYS}")
    return prepared(given, task.preprocess)


def _read_function(function: Callable[[Tensor], Any], name: str, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """The logits of a function for n images, and the features of one that returns (features, logits)."""
    n, returned = len(images), function(images)
    logits = getattr(returned, "logits", returned)
    parts = tuple(logits) if isinstance(logits, tuple | list) else (logits,)
    if not 1 <= len(parts) <= 2 or not all(isinstance(p, Tensor) and p.ndim == 2 and len(p) == n for p in parts):
        shapes = ", ".join(f"{tuple(p.shape)}" if isinstance(p, Tensor) else type(p).__name__ for p in parts)
        found = f"model '{name}' returns {shapes} for {n} images"
        raise ConfigError(f"{found} — return logits (n, c), or (features, logits)")
    return parts[-1], parts[0] if len(parts) == 2 else None


def _node(backbone: Backbone, kind: type, name: str) -> dict[str, Any]:
    """The entry in a record's config of a model that no config file describes."""
    return {TARGET: _qualified(kind), "name": name, "architecture": backbone.architecture, NAME: name}


class NetworkAdapter(nn.Module):
    """A network whose output is not a float32 tensor of logits: it gets images in its dtype, and its logits are picked.

    Args:
        inner: the network.
        pick: key or position of the logits in what it returns; None = all of it.
        dtype: of its images.
    """

    def __init__(self, inner: nn.Module, pick: str | int | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.pick, self.dtype = inner, pick, dtype
        self.end = nn.Identity()  # in place of the classifier where there is none

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, c) of images (n, channels, h, w), or features (n, d) of a network without classifier."""
        return self.end(tensors_in(self.inner(images.to(self.dtype)))[self.pick])


def copied(module: nn.Module, name: str) -> nn.Module:
    """Return a copy of a network in eval mode; tensors in its attributes are copied without their gradient history.

    Raises:
        ConfigError: it cannot be copied.
    """
    attributes = (value for part in module.modules() for value in vars(part).values())
    detached = {id(v): v.detach().clone() for v in attributes if isinstance(v, Tensor) and not v.is_leaf}
    try:
        copy_: nn.Module = copy.deepcopy(module, detached)
    except Exception as error:  # the user's objects may raise anything
        raise ConfigError(f"model '{name}' cannot be copied ({error!r:.200}) — pass a function of it") from error
    return copy_.eval().requires_grad_(False)


def _architecture_of(module: nn.Module) -> str:
    """A network in one line: its class, its dtype, and a digest of its structure, without its weights.

    The structure is the modules by place, with their hooks, and the buffers that no state dict holds.
    """
    inner = module.inner if isinstance(module, NetworkAdapter) else module
    first: dict[nn.Module, str] = {}  # a module at several places is the same one
    parts = [
        [place, _qualified(type(part)), text_of(part.extra_repr()), first.setdefault(part, place), _hooks(part)]
        for place, part in inner.named_modules(remove_duplicate=False)
    ]
    code = [part.code for part in inner.modules() if isinstance(part, torch.fx.GraphModule)]
    saved = inner.state_dict().keys()
    unsaved = state_sha256({name: buffer for name, buffer in inner.named_buffers() if name not in saved})
    dtype = str(dtype_of(inner)).removeprefix("torch.")
    return f"{_qualified(type(inner))}, {dtype}, {digest([parts, code, unsaved], 32)}"


def _hooks(part: nn.Module) -> list[str]:
    """The functions that are called before and after a module, in both passes."""
    return [text_of(hook) for key, hooks in vars(part).items() if key.endswith("_hooks") for hook in hooks.values()]


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _as_network(module: nn.Module, parts: NetworkParts, name: str, transform: PreparedTransform) -> NetworkBackbone:
    """A copied module with a linear head, or with no classifier at all, as a backbone."""
    anatomy, dtype = anatomy_of(module, parts, transform.preprocess), dtype_of(module)
    if not parts.head or parts.pick is not None or dtype != torch.float32:
        stages = {stage: f"inner.{path}" for stage, path in anatomy.stages.items()}
        anatomy = replace(anatomy, head=f"inner.{parts.head}" if parts.head else "end", stages=stages)
        module = NetworkAdapter(module, parts.pick, dtype)
    architecture = _architecture_of(module)
    backbone = NetworkBackbone(name, architecture, lambda: module, lambda _: anatomy, preprocess=transform.preprocess)
    backbone.trained, backbone.code = True, (*code_of(module), *transform.code)
    return backbone


def _reader(module: nn.Module, pick: str | int | None, name: str, features: str, head: Head | None) -> Read:
    """The outputs of a module whose head is not known: logits, and features if their module is named.

    With a `head` the outputs are features of a network without classifier, and the logits are the head's.
    """
    dtype = dtype_of(module)

    def read(images: Tensor) -> tuple[Tensor, Tensor | None]:
        seen: list[Tensor] = []
        with module.get_submodule(features).register_forward_hook(lambda _m, _i, output: seen.append(output)):
            outputs = tensors_in(module(images.to(dtype)))[pick]
        if head is not None:
            return outputs.float() @ head.weight.to(outputs.device).T + head.bias.to(outputs.device), outputs
        return outputs, flat(seen[-1], name, features) if features else None

    return read
