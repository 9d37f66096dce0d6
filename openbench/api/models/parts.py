"""Classifier, features and stages of a torch module, found by watching a forward pass."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from openbench.api.models.outputs import failing_on
from openbench.backbones.anatomy import Anatomy
from openbench.backbones.libraries import stages, torchvision_anatomy
from openbench.core.preprocess import Preprocess
from openbench.errors import ConfigError, did_you_mean

_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
_STAGES = ("layer1", "layer2", "layer3", "layer4")
_MOST = 8  # candidates named in a message
_ENDINGS = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
_TOLERANCE = 1e-4
_AS_FUNCTION = "or pass a function of the images that returns (features, logits)"


@dataclass(frozen=True)
class NetworkParts:
    """The parts of a network.

    Args:
        pick: key or position of the logits in what the module returns; None = all of it.
        output: the logits, (n, c).
        head: dotted name of the nn.Linear that makes the logits; empty where there is none.
        features: dotted name of the module that makes the features, where that is not the head's input.
        ends_in: what follows the head: `softmax`, `log_softmax`, or nothing.
        stages: names of the modules that return maps (n, c, h, w), shallow to deep, as they are usually called.
    """

    pick: str | int | None
    output: Tensor
    head: str
    features: str = ""
    ends_in: str = ""
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
    calls: dict[str, tuple[Tensor, Tensor]] = {}

    def note(place: str, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and inputs and isinstance(inputs[0], Tensor):
            calls.pop(place, None)  # the latest call counts, and stands last
            calls[place] = (inputs[0], output)

    with ExitStack() as hooks, torch.no_grad(), failing_on(images, name):
        for place, part in module.named_modules():
            if place and (isinstance(part, nn.Linear) or place in (*named, *_STAGES)):
                hooks.enter_context(part.register_forward_hook(partial(note, place)))
        returned = module(images)
    pick, output = _logits(returned, name, classes, len(images))
    linear = {n: c for n, c in calls.items() if isinstance(module.get_submodule(n), nn.Linear) and c[1].ndim == 2}
    if head:
        if head not in linear:
            kind, listed = type(module.get_submodule(head)).__name__, _listed(module, linear)
            raise ConfigError(f"model '{name}': head '{head}' is {kind} — name an nn.Linear, candidates: {listed}")
        ends_in = _ending(linear[head][1], output) or ""
    else:
        head, ends_in = _find_head(module, linear, output, name, classes)
    if features:
        if features not in calls:
            raise ConfigError(f"model '{name}': module '{features}' is not called in the forward pass")
        values = flat(calls[features][1], name, features)
        if head and values.shape == linear[head][0].shape and torch.equal(values, linear[head][0]):
            features = ""  # the head's own input
    children = dict(module.named_children())
    stages = [stage for stage in _STAGES if stage in children]
    maps = all(stage in calls and calls[stage][1].ndim == 4 for stage in stages)
    return NetworkParts(pick, output, head, features or "", ends_in, tuple(stages) if maps else ())


def flat(features: Tensor, name: str, where: str) -> Tensor:
    """Return a module's output as features (n, d): maps are averaged over their positions.

    Raises:
        ConfigError: it has another number of axes.
    """
    if features.ndim == 4:
        return features.mean(dim=(2, 3)) if features.shape[2:] != (1, 1) else features.flatten(1)
    if features.ndim == 2:
        return features
    raise ConfigError(
        f"model '{name}': module '{where}' returns {tuple(features.shape)} — (n, d) or maps (n, d, h, w) expected"
    )


def _check_named(module: nn.Module, place: str, name: str) -> None:
    names = [n for n, _ in module.named_modules() if n]
    if place not in names:
        top = [n for n, _ in module.named_children()]
        raise ConfigError(
            f"model '{name}' has no module '{place}'{did_you_mean(place, names)} — its parts: "
            f"{', '.join(top[:_MOST])}{', …' * (len(top) > _MOST)}; model.named_modules() lists all"
        )


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
) -> tuple[str, str]:
    """The name of the linear layer that makes the output, and what follows it; both empty if there is none."""
    endings = {n: _ending(logits, output) for n, (_, logits) in linear.items()}
    for ending in ("", *_ENDINGS):
        if fitting := [n for n, end in endings.items() if end == ending]:
            return fitting[-1], ending
    if any(logits.shape[1] == output.shape[1] == classes for _, logits in linear.values()):
        raise ConfigError(
            f"model '{name}': no nn.Linear makes its output {tuple(output.shape)} alone (candidates: "
            f"{_listed(module, linear)}) — name the classifier: head='{list(linear)[-1]}', {_AS_FUNCTION}"
        )
    return "", ""


def _ending(logits: Tensor, output: Tensor) -> str | None:
    """What makes a layer's output the network's: `softmax`, `log_softmax`, or nothing; None if neither does."""
    if logits.shape != output.shape:
        return None
    if torch.allclose(logits, output, rtol=0, atol=0, equal_nan=True):
        return ""
    same = partial(torch.allclose, output.float(), atol=_TOLERANCE, rtol=_TOLERANCE)
    return next((ending for ending, f in _ENDINGS.items() if same(f(logits.float(), dim=1))), None)


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
            return replace(torchvision_anatomy(module, (p.channels, p.crop, p.crop)), head=parts.head)
    return Anatomy(parts.head, {f"stage{i}": name for i, name in enumerate(parts.stages, start=1)})
