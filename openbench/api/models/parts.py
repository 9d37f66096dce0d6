"""Where a torch module has its classifier, features and stages, found by watching forward passes."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from openbench.backbones.anatomy import Layout
from openbench.backbones.libraries import from_torchvision
from openbench.backbones.libraries.presets import stages
from openbench.core.preprocess import Preprocess
from openbench.errors import ConfigError, did_you_mean

_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
_STAGES = 4
_SHOWN = 8  # candidates named in a message
_ENDINGS = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
_TOLERANCE = 1e-4
_AS_FUNCTION = "or pass a function of the images that returns (features, logits)"


@dataclass(frozen=True)
class Parts:
    """What a forward pass showed.

    Args:
        pick: which part of what the module returns are the logits: a key, a position, or None for all of it.
        output: that part, (n, c).
        head: dotted name of the nn.Linear that makes the logits; empty where there is none.
        features: dotted name of the module that makes the features, where that is not the head's input.
        ends_in: what follows the head: `softmax`, `log_softmax`, or nothing.
    """

    pick: str | int | None
    output: Tensor
    head: str
    features: str = ""
    ends_in: str = ""


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the network inside DataParallel, DistributedDataParallel and torch.compile's wrapper."""
    while (inner := _WRAPPERS.get(type(module).__name__)) is not None and isinstance(
        getattr(module, inner, None), nn.Module
    ):
        module = getattr(module, inner)
    return module


def watch(module: nn.Module, images: Tensor, name: str, classes: int, asked: tuple[str, str]) -> Parts:
    """Return where the classifier and the features of a module are.

    The classifier is the nn.Linear whose output the module returns; its input is the features.

    Args:
        module: in eval mode.
        images: a few, normalised, in the module's dtype and on its device.
        name: of the model.
        classes: of the benchmark.
        asked: dotted names of the module that makes the features and of the linear classifier; empty = to be found.

    Raises:
        ConfigError: no such module, no output (n, c), or more than one layer that may be the classifier.
    """
    for named in filter(None, asked):
        _check_named(module, named, name)
    calls: dict[str, tuple[Tensor, Tensor]] = {}

    def note(place: str, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and inputs and isinstance(inputs[0], Tensor):
            calls.pop(place, None)  # the latest call counts, and stands last
            calls[place] = (inputs[0], output)

    with ExitStack() as hooks, torch.no_grad():
        for place, part in module.named_modules():
            if place and (isinstance(part, nn.Linear) or place in asked):
                hooks.enter_context(part.register_forward_hook(partial(note, place)))
        try:
            returned = module(images)
        except Exception as error:  # whatever the user's code raises
            raise ConfigError(
                f"model '{name}' fails on images {tuple(images.shape)} — {type(error).__name__}: {error} — it "
                "must take normalised images (n, channels, h, w); the size and the number of channels (one number each "
                "in its mean and std) are those of preprocess"
            ) from error
    pick, output = _output(returned, name, classes, len(images))
    linear = {n: c for n, c in calls.items() if isinstance(module.get_submodule(n), nn.Linear) and c[1].ndim == 2}
    features, named_head = asked
    if named_head:
        _check_linear(module, linear, named_head, name)
        head, ends_in = named_head, _ending(linear[named_head][1], output) or ""
    else:
        head, ends_in = _head(module, linear, output, name, classes)
    if features:
        made = flat(calls[features][1], name, features) if features in calls else None
        if made is None:
            raise ConfigError(f"model '{name}': module '{features}' is not called in the forward pass")
        if head and made.shape == linear[head][0].shape and torch.equal(made, linear[head][0]):
            features = ""  # the head's own input
    return Parts(pick, output, head, features, ends_in)


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
        f"model '{name}': module '{where}' returns {tuple(features.shape)} — (n, d), or maps (n, d, h, w), expected — "
        f"name a module after it that returns one vector per image, {_AS_FUNCTION}"
    )


def _check_named(module: nn.Module, asked: str, name: str) -> None:
    names = [n for n, _ in module.named_modules() if n]
    if asked not in names:
        top = [n for n, _ in module.named_children()]
        raise ConfigError(
            f"model '{name}' has no module '{asked}'{did_you_mean(asked, names)} — its parts: "
            f"{', '.join(top[:_SHOWN])}{', …' * (len(top) > _SHOWN)}; model.named_modules() names them all"
        )


def _output(returned: Any, name: str, classes: int, n: int) -> tuple[str | int | None, Tensor]:
    """The logits in what a module returns for n images."""
    if isinstance(returned, Tensor):
        found: dict[str | int | None, Any] = {None: returned}
    elif isinstance(returned, Mapping):
        found = dict(returned)
    elif isinstance(getattr(returned, "logits", None), Tensor):
        found = {"logits": returned.logits}
    elif isinstance(returned, Sequence) and not isinstance(returned, str):
        found = dict(enumerate(returned))
    else:
        found = dict(vars(returned)) if hasattr(returned, "__dict__") else {}
    fitting = {key: value for key, value in found.items() if isinstance(value, Tensor) and value.ndim == 2}
    if isinstance(found.get("logits"), Tensor):
        fitting = {"logits": found["logits"]}
    rows = next(iter(fitting.values())).shape[0] if len(fitting) == 1 else n
    if rows != n:
        raise ConfigError(f"model '{name}' returns {rows} rows for {n} images — a row for each image expected")
    if len(fitting) > 1:
        fitting = {k: v for k, v in fitting.items() if v.shape[1] == classes}
    if len(fitting) != 1:
        shapes = [
            f"{key}: {tuple(v.shape)}" if isinstance(v, Tensor) else f"{key}: {type(v).__name__}"
            for key, v in found.items()
        ]
        shapes = shapes or [type(returned).__name__]
        raise ConfigError(
            f"model '{name}' returns {', '.join(s.removeprefix('None: ') for s in shapes[:_SHOWN])} — one "
            f"tensor of logits (n, c) expected, or one called 'logits' — name head=… and features=…, {_AS_FUNCTION}"
        )
    return next(iter(fitting.items()))


def _check_linear(module: nn.Module, linear: Mapping[str, object], head: str, name: str) -> None:
    """Check that the classifier that the user names is a linear layer that is given features."""
    if head in linear:
        return
    found = type(module.get_submodule(head)).__name__
    if found == "Identity" and not linear:
        raise ConfigError(
            f"model '{name}': head '{head}' is Identity — the model ends in its features, without a classifier — leave "
            "head out, or give the classifier of these features as head=(W, b)"
        )
    raise ConfigError(
        f"model '{name}': head '{head}' is {found}, or is given no (n, d) in the forward pass — nn.Linear expected, "
        f"since methods need logits = W·features + b; candidates: {_listed(module, linear)}"
    )


def _head(
    module: nn.Module, linear: Mapping[str, tuple[Tensor, Tensor]], output: Tensor, name: str, classes: int
) -> tuple[str, str]:
    """The name of the linear layer that makes the output, and what follows it; both empty if there is none."""
    endings = {n: _ending(made, output) for n, (_, made) in linear.items()}
    for ending in ("", *_ENDINGS):
        if fitting := [n for n, found in endings.items() if found == ending]:
            return fitting[-1], ending
    if any(made.shape[1] == output.shape[1] == classes for _, made in linear.values()):
        raise ConfigError(
            f"model '{name}': no nn.Linear makes its output {tuple(output.shape)} alone — candidates: "
            f"{_listed(module, linear)} — name the classifier: head='{list(linear)[-1]}', {_AS_FUNCTION}"
        )
    return "", ""


def _ending(made: Tensor, output: Tensor) -> str | None:
    """What makes a layer's output the network's: `softmax`, `log_softmax`, or nothing; None if neither does."""
    if made.shape != output.shape:
        return None
    if torch.allclose(made, output, rtol=0, atol=0, equal_nan=True):
        return ""
    same = partial(torch.allclose, output.float(), atol=_TOLERANCE, rtol=_TOLERANCE)
    return next((ending for ending, f in _ENDINGS.items() if same(f(made.float(), dim=1))), None)


def _listed(module: nn.Module, linear: Mapping[str, object]) -> str:
    """The linear layers by name and size, the last ones first."""
    parts = [f"'{n}' {module.get_submodule(n).in_features} → {module.get_submodule(n).out_features}" for n in linear]
    return ", ".join(parts[: -_SHOWN - 1 : -1]) or "none"


def dtype_of(module: nn.Module) -> torch.dtype:
    """Return the dtype in which a network takes images: that of its first parameter of floating point."""
    kinds = (p.dtype for p in (*module.parameters(), *module.buffers()) if p.is_floating_point())
    return next(kinds, torch.float32)


def stages_of(module: nn.Module, p: Preprocess) -> tuple[Mapping[str, str], Layout, int]:
    """Return the stages whose maps can be read, the layout of these, and how many tokens stand before the patches.

    Args:
        module: in eval mode.
        p: how images reach it.
    """
    library = type(module).__module__.partition(".")[0]
    with suppress(Exception):  # a library's network that the user changed: its maps are then not read
        if library == "timm":
            return stages(module)
        if library == "torchvision":
            found = from_torchvision.anatomy(module, (p.channels, p.crop, p.crop))
            return found.stages, found.layout, found.prefix_tokens
    children = dict(module.named_children())
    names = [f"layer{i}" for i in range(1, _STAGES + 1) if f"layer{i}" in children]
    found_maps = {f"stage{i}": name for i, name in enumerate(names, start=1)}
    return (found_maps if _are_maps(module, names, p) else {}), "nchw", 0


def _are_maps(module: nn.Module, names: list[str], p: Preprocess) -> bool:
    """Whether some modules put out maps (n, c, h, w)."""
    seen: list[int] = []
    first = next(module.parameters(), None)
    device = torch.device("cpu") if first is None else first.device

    def note(_: nn.Module, __: object, output: object) -> None:
        seen.append(output.ndim if isinstance(output, Tensor) else 0)

    with ExitStack() as hooks, torch.no_grad():
        for name in names:
            hooks.enter_context(module.get_submodule(name).register_forward_hook(note))
        if names:
            module(torch.zeros(1, p.channels, p.crop, p.crop, device=device, dtype=dtype_of(module)))
    return bool(names) and seen == [4] * len(names)
