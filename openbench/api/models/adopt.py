"""The user's model as a backbone: a torch module, a function of the images, or an ONNX file."""

import copy
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from openbench.api.models.names import own_preprocess
from openbench.api.models.outputs import OutputsBackbone, Read, Source, averaged, onnx_source, with_head
from openbench.api.models.parts import Parts, dtype_of, flat, stages_of, unwrapped, watch
from openbench.api.models.preprocess import WAYS, Prepared, code_of, prepared, range_warnings, text_of
from openbench.backbones.anatomy import Anatomy
from openbench.backbones.base import Backbone, Outputs
from openbench.backbones.network import NetworkBackbone, state_sha256
from openbench.config.overrides import NAME
from openbench.core.benchmark import Split
from openbench.core.features import Head
from openbench.core.preprocess import Preprocess
from openbench.core.request import Request
from openbench.data.loading import batches
from openbench.digest import digest
from openbench.engine.probe import FEW, ask, some_of
from openbench.errors import ConfigError, StochasticError
from openbench.public import TARGET

_PROBABILITY = 1e-3  # of the sum of a row
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Asked:
    """What the user says about a model.

    Args:
        preprocess: how images reach it; None = the model's own, if it has one.
        features: dotted name of the module that makes the features, or of an ONNX output; None = found.
        head: the linear classifier, or its dotted name; None = found.
        name: in tables and records; None = from its class.
        device: where it is to run.
        stochastic: how many passes of a network that is not deterministic are averaged; None = it is refused.
    """

    preprocess: object = None
    features: str | None = None
    head: str | Head | None = None
    name: str | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    stochastic: int | None = None


@dataclass(frozen=True)
class Adopted:
    """A user's model, ready to run.

    Args:
        backbone: with weights.
        node: what a record's config says of it.
        notes: what was decided for the user.
        warnings: why the numbers may not be what the user expects.
    """

    backbone: Backbone
    node: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shown:
    """What a model is adopted for: images to try it on, and their classes.

    Args:
        images: ID images.
        classes: names of the ID classes.
        preprocess: how images reach networks that do not say so themselves.
    """

    images: Split
    classes: tuple[str, ...]
    preprocess: Preprocess

    def seen_by(self, preprocess: Preprocess) -> Tensor:
        """Some images, spread over the classes, as the network sees them, (n, channels, h, w).

        Raises:
            DataError: an image cannot be read, or the preprocess fails on it.
        """
        return next(batches(some_of(self.images), preprocess, FEW))


def adopt(model: object, asked: Asked, shown: Shown) -> Adopted:
    """Return a user's model as a backbone; the model itself is not touched.

    Args:
        model: a Backbone, a torch.nn.Module, a function of normalised images (n, channels, h, w) that returns logits
            or (features, logits), or the path of an ONNX file.
        asked: what the user says about it.
        shown: what it is to be evaluated on.

    Raises:
        ConfigError: another kind of object, no preprocess, or parts that cannot be found.
        DataError: outputs that are not finite.
    """
    if not isinstance(asked.features, str | None):
        raise ConfigError(f"features is a {type(asked.features).__name__} — the name of one module expected")
    if isinstance(model, Backbone):
        return _own_backbone(model, asked, shown)
    if isinstance(model, torch.jit.ScriptModule):
        return _function(model, asked, shown)
    if isinstance(model, nn.Module):
        return _module(model, asked, shown)
    if isinstance(model, str | Path):
        return _file(Path(model), asked, shown)
    if callable(model) and not isinstance(model, type):
        return _function(model, asked, shown)
    raise ConfigError(
        f"model is {'the class ' + model.__name__ if isinstance(model, type) else 'a ' + type(model).__name__} — "
        "allowed: a torch.nn.Module, a function of the images, the name of a backbone (python -m openbench list "
        "backbone), 'timm:NAME', 'torchvision:NAME', 'open_clip:NAME', 'hf_hub:OWNER/NAME', 'transformers:NAME', or "
        "the path of an ONNX file"
    )


def name_of(model: object) -> str:
    """Return what a model is called in tables if the user does not say: its published name, or its class's."""
    if isinstance(model, str | Path):
        return _NOT_IN_NAMES.sub("_", Path(model).stem if str(model).endswith(".onnx") else str(model)).strip("_")
    inner: Any = unwrapped(model) if isinstance(model, nn.Module) else model
    settings = getattr(inner, "pretrained_cfg", None)
    published = settings.get("architecture") if isinstance(settings, Mapping) else None
    published = published or getattr(inner, "name", None) or getattr(inner, "__name__", None)
    text = published if isinstance(published, str) else type(inner).__name__.lower()
    return _NOT_IN_NAMES.sub("_", text).strip("_") or "model"


def _own_backbone(model: Backbone, asked: Asked, shown: Shown) -> Adopted:
    given = [word for word in ("preprocess", "features", "head") if getattr(asked, word) is not None]
    if given:
        raise ConfigError(f"model is a Backbone, which has its own {given[0]} — leave {', '.join(given)} out")
    model = copy.copy(model)  # what it answers is noted on it
    if model.trained:
        ask(model.to(asked.device), shown.images)
    return Adopted(model, _node(model, type(model), asked.name or model.name))


def _module(model: nn.Module, asked: Asked, shown: Shown) -> Adopted:
    inner = unwrapped(model)
    visual = getattr(inner, "visual", None)
    notes: list[str] = []
    if type(inner).__module__.startswith("open_clip.") and isinstance(visual, nn.Module):
        inner = visual
        notes.append("the image tower of open_clip's model is evaluated, without a text head")
    name = asked.name or name_of(inner)
    ready = _prepared(asked, shown, model, name)
    module = copied(inner, name).to(asked.device)
    named = asked.features or "", asked.head if isinstance(asked.head, str) else ""
    images = shown.seen_by(ready.preprocess).to(asked.device)
    parts = watch(module, images.to(dtype_of(module)), name, len(shown.classes), named)
    backbone = _backbone_of(module, parts, (name, len(shown.classes)), ready, asked)
    warnings = (*_ending_warning(parts, name), *range_warnings(images, ready.preprocess, module))
    return _asked(Adopted(backbone, _node(backbone, type(inner), name), (*notes, *ready.notes), warnings), asked, shown)


def _asked(found: Adopted, asked: Asked, shown: Shown) -> Adopted:
    """A model that has answered for a few images; one that is not deterministic by several passes, if that is wanted.

    Raises:
        StochasticError: it is not deterministic, and a single pass is wanted.
        ConfigError: its outputs depend on the batch.
        DataError: outputs that are not finite.
    """
    backbone, draws, note = found.backbone, asked.stochastic, ""
    try:
        ask(backbone, shown.images)
        note = f"stochastic={draws} is not needed: model '{backbone.name}' is deterministic" if draws else ""
    except StochasticError:
        if draws is None or not isinstance(backbone, OutputsBackbone | OwnNetwork):
            raise
        backbone.draws, backbone.architecture = draws, f"{backbone.architecture}, mean of {draws} passes"
        ask(backbone, shown.images)
        note = f"model '{backbone.name}' is not deterministic: the mean of {draws} passes is evaluated"
    node = {
        **found.node,
        "architecture": backbone.architecture,
        **({"stochastic": draws} if backbone.draws > 1 else {}),
    }
    warnings = (*found.warnings, *probability_warnings(backbone))
    return Adopted(backbone, node, (*found.notes, *filter(None, [note])), warnings)


def _backbone_of(module: nn.Module, parts: Parts, of: tuple[str, int], ready: Prepared, asked: Asked) -> Backbone:
    """The backbone of a module: with its linear head, without classifier, or of its outputs alone.

    Args:
        module: copied, in eval mode.
        parts: what its forward pass showed.
        of: its name, and the number of classes.
        ready: how images reach it.
        asked: what the user says about it.
    """
    (name, classes), head = of, asked.head if isinstance(asked.head, Head) else None
    headless = not parts.head and not parts.features and parts.output.shape[1] != classes
    if head is not None and parts.head and not parts.features:
        raise ConfigError(
            f"model '{name}' shows its classifier, '{parts.head}', and head=(W, b) is given — it is for a model that "
            "shows none — leave head out"
        )
    if head is None and not parts.features and (parts.head or headless):
        return as_network(module, parts, name, ready).to(asked.device)
    source = as_source(module, parts, name, asked.features or "")
    if headless and head is not None and head.weight.shape[1] == parts.output.shape[1]:
        source = with_head(source, head)
    p = ready.preprocess
    black = torch.zeros(2, p.channels, p.crop, p.crop, device=asked.device)
    with torch.no_grad():
        first = source.read(black)
    backbone = OutputsBackbone(source, ready, first, head).to(asked.device)
    backbone.try_gradient(black)
    return backbone


def _function(model: Callable[[Tensor], Any], asked: Asked, shown: Shown) -> Adopted:
    name = asked.name or name_of(model)
    ready = _prepared(asked, shown, model, name)
    if asked.features is not None or isinstance(asked.head, str):
        raise ConfigError(
            f"model '{name}' is a function, in which no module can be named — let it return (features, logits), and "
            "give the classifier as head=(W, b)"
        )

    def read(images: Tensor) -> Read:
        return _as_read(model(images), name, len(images))

    # What a function computes with cannot be told: weights, globals and files may change between two calls.
    architecture = f"function {name}, {secrets.token_hex(16)}"
    source = Source(name, architecture, read, code=code_of(model))
    images = shown.seen_by(ready.preprocess)
    with torch.no_grad():
        first = _tried(read, images, name)
    backbone = OutputsBackbone(source, ready, first, asked.head)
    backbone.try_gradient(images)
    warnings = range_warnings(images, ready.preprocess, None)
    note = f"model '{name}' is a function: what it computes with cannot be told, so its results are never reused"
    return _asked(Adopted(backbone, _node(backbone, type(model), name), (note, *ready.notes), warnings), asked, shown)


def _file(path: Path, asked: Asked, shown: Shown) -> Adopted:
    name = asked.name or name_of(path)
    ready = _prepared(asked, shown, path, name)
    source = onnx_source(path, name, asked.features, (len(shown.classes), asked.device))
    images = shown.seen_by(ready.preprocess)
    if isinstance(asked.head, str):
        raise ConfigError(f"model '{name}' is an ONNX file — head '{asked.head}' — give the classifier as head=(W, b)")
    first = _tried(source.read, images, name)
    backbone = OutputsBackbone(source, ready, first, asked.head)
    warnings = range_warnings(images, ready.preprocess, None)
    return _asked(Adopted(backbone, _node(backbone, type(path), name), ready.notes, warnings), asked, shown)


def _prepared(asked: Asked, shown: Shown, model: object, name: str) -> Prepared:
    """How images reach a model: as given, or as it was published with.

    Raises:
        ConfigError: nothing is known.
    """
    given = asked.preprocess
    if given is None:
        given = own_preprocess(model)
    if given is None:
        raise ConfigError(f"model '{name}': preprocess is not given, and the model does not say — {WAYS}")
    return prepared(given, shown.preprocess)


def _as_read(returned: Any, name: str, n: int) -> Read:
    """What a function returns for n images: logits, or (features, logits)."""
    logits = getattr(returned, "logits", returned)
    parts = tuple(logits) if isinstance(logits, tuple | list) else (logits,)
    if not 1 <= len(parts) <= 2 or not all(isinstance(p, Tensor) and p.ndim == 2 and len(p) == n for p in parts):
        found = ", ".join(f"{tuple(p.shape)}" if isinstance(p, Tensor) else type(p).__name__ for p in parts)
        raise ConfigError(
            f"model '{name}' returns {found} for {n} images — torch tensors expected: logits (n, c), or features "
            "(n, d) and logits (n, c), in this order"
        )
    return Read(parts[-1], parts[0] if len(parts) == 2 else None)


def _tried(read: Callable[[Tensor], Read], images: Tensor, name: str) -> Read:
    try:
        return read(images)
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(
            f"model '{name}' fails on images {tuple(images.shape)} — {type(error).__name__}: {str(error)[:300]} — it "
            "must take normalised float32 images (n, channels, h, w); the size is that of preprocess"
        ) from error


def _ending_warning(parts: Parts, name: str) -> tuple[str, ...]:
    if not parts.ends_in:
        return ()
    return (
        f"model '{name}' ends in {parts.ends_in}: its outputs are probabilities — the outputs of its last linear layer "
        f"'{parts.head}' are taken as logits",
    )


def _node(backbone: Backbone, kind: type, name: str) -> dict[str, Any]:
    """What a record's config says of a model that no config file describes."""
    return {
        TARGET: f"{kind.__module__}.{kind.__qualname__}",
        "name": name,
        "architecture": backbone.architecture,
        NAME: name,
    }


class Adapted(nn.Module):
    """A network whose output is not a float32 tensor of logits: it is given its own dtype, and its logits are taken."""

    def __init__(self, inner: nn.Module, pick: str | int | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.pick, self.dtype = inner, pick, dtype
        self.end = nn.Identity()  # what stands in the classifier's place where there is none

    def forward(self, images: Tensor) -> Tensor:
        """Images (n, channels, h, w) to logits (n, c), or to features (n, d) of a network without classifier."""
        logits: Tensor = self.end(picked(self.inner(images.to(self.dtype)), self.pick))
        return logits


class OwnNetwork(NetworkBackbone):
    """A module with a linear classifier, or without any, that the user brought with its weights.

    Args:
        module: copied already; it becomes part of the backbone.
        name: its name.
        anatomy: where its head and stages are.
        prepared: how images reach it.
    """

    def __init__(self, module: nn.Module, name: str, anatomy: Anatomy, prepared: Prepared) -> None:
        super().__init__(
            name,
            architecture_of(module),
            lambda: module,
            lambda _: anatomy,
            preprocess=prepared.preprocess,
        )
        self.trained = True
        self._code = (*code_of(module), *prepared.code)

    @property
    def made_of(self) -> tuple[object, ...]:
        """The classes and functions in the network and in the transform of its images."""
        return self._code

    def outputs(self, images: Tensor, request: Request) -> Outputs:
        """Return what `request` names, as float32 whatever the network computes in."""
        found = averaged(self.draws, images, partial(super().outputs, images, request))
        return Outputs(found.logits.float(), found.features.float(), {k: v.float() for k, v in found.maps.items()})


def copied(module: nn.Module, name: str) -> nn.Module:
    """Return a copy of a network in eval mode; tensors that it only remembers are copied without their history.

    Raises:
        ConfigError: it cannot be copied, or its weights have no values.
    """
    bare = [key for key, tensor in (*module.named_parameters(), *module.named_buffers()) if tensor.is_meta]
    if bare:
        raise ConfigError(
            f"model '{name}' has weights on the meta device, which have no values: {', '.join(bare[:8])}"
            f"{', …' * (len(bare) > 8)} — load them first"
        )
    remembered = {
        id(value): value.detach().clone()
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    try:
        made: nn.Module = copy.deepcopy(module, remembered)
    except Exception as error:  # whatever the user's objects raise
        raise ConfigError(
            f"model '{name}' cannot be copied — {type(error).__name__}: {str(error)[:200]} — evaluate works on a copy, "
            "so that yours stays as it is; take out what cannot be copied, or pass lambda images: model(images)"
        ) from error
    return made.eval().requires_grad_(False)


def architecture_of(module: nn.Module) -> str:
    """Return a network in one line: its class, its dtype, and a digest of its structure, without its weights."""
    inner = module.inner if isinstance(module, Adapted) else module
    dtype = str(dtype_of(inner)).removeprefix("torch.")
    return f"{_named(type(inner))}, {dtype}, {digest(_structure(inner), 32)}"


def _structure(module: nn.Module) -> list[Any]:
    """The modules of a network by place, one that stands at several places at each; and what no state dict holds."""
    first: dict[nn.Module, str] = {}
    saved = module.state_dict().keys()
    parts = [
        [place, _named(type(part)), text_of(part.extra_repr()), first.setdefault(part, place), _hooks(part)]
        for place, part in module.named_modules(remove_duplicate=False)
    ]
    code = [part.code for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    unsaved = {name: buffer for name, buffer in module.named_buffers() if name not in saved}
    return [parts, code, state_sha256(unsaved)]


def _hooks(part: nn.Module) -> list[str]:
    """The functions that are called before and after a module, forwards and on the way back."""
    return [text_of(hook) for key, hooks in vars(part).items() if key.endswith("_hooks") for hook in hooks.values()]


def _named(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def picked(returned: Any, pick: str | int | None) -> Tensor:
    """Return the logits in what a module returns."""
    if pick is None:
        found: Tensor = returned
    elif isinstance(returned, Mapping) or isinstance(pick, int):
        found = returned[pick]
    else:
        found = getattr(returned, pick)
    return found


def as_network(module: nn.Module, parts: Parts, name: str, prepared: Prepared) -> OwnNetwork:
    """Return a module with a linear head, or with no classifier at all, as a backbone.

    Args:
        module: copied, in eval mode.
        parts: what its forward pass showed.
        name: its name.
        prepared: how images reach it.
    """
    stages, layout, tokens = stages_of(module, prepared.preprocess)
    head, dtype = parts.head, dtype_of(module)
    if head and parts.pick is None and dtype == torch.float32:
        return OwnNetwork(module, name, Anatomy(head, stages, layout, tokens), prepared)
    stages = {name: f"inner.{path}" for name, path in stages.items()}
    anatomy = Anatomy(f"inner.{head}" if head else "end", stages, layout, tokens)
    return OwnNetwork(Adapted(module, parts.pick, dtype), name, anatomy, prepared)


def as_source(module: nn.Module, parts: Parts, name: str, features: str) -> Source:
    """Return a module without a linear head as the source of its outputs: logits, and features if they were named.

    Args:
        module: copied, in eval mode.
        parts: what its forward pass showed.
        name: its name.
        features: dotted name of the module that makes the features; empty where none is named.
    """
    dtype = dtype_of(module)

    def read(images: Tensor) -> Read:
        made: list[Tensor] = []
        with ExitStack() as hooks:
            if features:
                part = module.get_submodule(features)
                hooks.enter_context(part.register_forward_hook(lambda _m, _i, output: made.append(output)))
            logits = picked(module(images.to(dtype)), parts.pick)
        return Read(logits, flat(made[-1], name, features) if made else None)

    architecture = architecture_of(module) + (f", features of {features}" if features else "")
    return Source(name, architecture, read, state_sha256(module.state_dict()), code_of(module), module)


def probability_warnings(backbone: Backbone) -> tuple[str, ...]:
    """Return a warning where the logits that the probe saw are probabilities already."""
    rows = backbone.probe.rows.get("logits")
    if rows is None or rows.shape[1] < 2 or not backbone.classifies:
        return ()
    if (rows >= 0).all() and np.abs(rows.sum(axis=1) - 1).max() < _PROBABILITY:
        return (
            f"model '{backbone.name}' returns probabilities (its rows sum to 1) where logits are expected: energies, "
            "maximum logits and temperatures of them mean nothing — return what goes into the softmax",
        )
    return ()
