"""A torch module of the user's own as a backbone: copied, so that the user's is left exactly as it was."""

import copy
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from openbench.api.models.outputs import Read, Source, averaged
from openbench.api.models.parts import Parts, Wanted, flat
from openbench.api.models.preprocess import Prepared, code_of, shown
from openbench.backbones.anatomy import Anatomy, Layout
from openbench.backbones.base import Outputs
from openbench.backbones.libraries import from_torchvision
from openbench.backbones.libraries.presets import stages
from openbench.backbones.network import NetworkBackbone, evaluating, state_sha256
from openbench.core.request import Request
from openbench.digest import digest
from openbench.errors import ConfigError

_WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
_STAGES = 4


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
        wanted: its name.
        anatomy: where its head and stages are.
        prepared: how images reach it.
    """

    def __init__(self, module: nn.Module, wanted: Wanted, anatomy: Anatomy, prepared: Prepared) -> None:
        super().__init__(
            wanted.name,
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


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the network inside DataParallel, DistributedDataParallel and torch.compile's wrapper."""
    while (inner := _WRAPPERS.get(type(module).__name__)) is not None and isinstance(
        getattr(module, inner, None), nn.Module
    ):
        module = getattr(module, inner)
    return module


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


def dtype_of(module: nn.Module) -> torch.dtype:
    """Return the dtype in which a network takes images: that of its first parameter of floating point."""
    kinds = (p.dtype for p in (*module.parameters(), *module.buffers()) if p.is_floating_point())
    return next(kinds, torch.float32)


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
        [place, _named(type(part)), shown(part.extra_repr()), first.setdefault(part, place), _hooks(part)]
        for place, part in module.named_modules(remove_duplicate=False)
    ]
    code = [part.code for part in module.modules() if isinstance(part, torch.fx.GraphModule)]
    unsaved = {name: buffer for name, buffer in module.named_buffers() if name not in saved}
    return [parts, code, state_sha256(unsaved)]


def _hooks(part: nn.Module) -> list[str]:
    """The functions that are called before and after a module, forwards and on the way back."""
    return [shown(hook) for key, hooks in vars(part).items() if key.endswith("_hooks") for hook in hooks.values()]


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


def as_network(module: nn.Module, parts: Parts, wanted: Wanted, prepared: Prepared) -> OwnNetwork:
    """Return a module with a linear head, or with no classifier at all, as a backbone.

    Args:
        module: copied, in eval mode.
        parts: what its forward pass showed.
        wanted: its name.
        prepared: how images reach it.
    """
    stages, layout, tokens = _stages(module, prepared)
    head, dtype = parts.head, dtype_of(module)
    if head and parts.pick is None and dtype == torch.float32:
        return OwnNetwork(module, wanted, Anatomy(head, stages, layout, tokens), prepared)
    stages = {name: f"inner.{path}" for name, path in stages.items()}
    anatomy = Anatomy(f"inner.{head}" if head else "end", stages, layout, tokens)
    return OwnNetwork(Adapted(module, parts.pick, dtype), wanted, anatomy, prepared)


def as_source(module: nn.Module, parts: Parts, wanted: Wanted) -> Source:
    """Return a module without a linear head as the source of its outputs: logits, and features if they were named.

    Args:
        module: copied, in eval mode.
        parts: what its forward pass showed.
        wanted: its name, and the module that makes the features.
    """
    dtype = dtype_of(module)

    def read(images: Tensor) -> Read:
        made: list[Tensor] = []
        with ExitStack() as hooks:
            if wanted.features:
                part = module.get_submodule(wanted.features)
                hooks.callback(part.register_forward_hook(lambda _m, _i, output: made.append(output)).remove)
            logits = picked(module(images.to(dtype)), parts.pick)
        return Read(logits, flat(made[-1], wanted.name, wanted.features) if made else None)

    features = f", features of {wanted.features}" if wanted.features else ""
    return Source(
        wanted.name,
        architecture_of(module) + features,
        read,
        state_sha256(module.state_dict()),
        code_of(module),
        module,
    )


def _stages(module: nn.Module, prepared: Prepared) -> tuple[Mapping[str, str], Layout, int]:
    """The stages whose maps can be read, where the network's layout is known."""
    p, library = prepared.preprocess, type(module).__module__.partition(".")[0]
    with suppress(Exception):  # a library's network that the user changed: its maps are then not read
        if library == "timm":
            return stages(module)
        if library == "torchvision":
            found = from_torchvision.anatomy(module, (p.channels, p.crop, p.crop))
            return found.stages, found.layout, found.prefix_tokens
    children = dict(module.named_children())
    names = [f"layer{i}" for i in range(1, _STAGES + 1) if f"layer{i}" in children]
    found_maps = {f"stage{i}": name for i, name in enumerate(names, start=1)}
    return (found_maps if _are_maps(module, names, prepared) else {}), "nchw", 0


def _are_maps(module: nn.Module, names: list[str], prepared: Prepared) -> bool:
    """Whether some modules put out maps (n, c, h, w)."""
    seen: list[int] = []
    first = next(module.parameters(), None)
    p, device = prepared.preprocess, torch.device("cpu") if first is None else first.device
    with ExitStack() as hooks, evaluating(module), torch.no_grad():
        for name in names:
            part = module.get_submodule(name)
            hooks.callback(part.register_forward_hook(lambda _m, _i, out: seen.append(_axes(out))).remove)
        if names:
            module(torch.zeros(1, p.channels, p.crop, p.crop, device=device, dtype=dtype_of(module)))
    return bool(names) and seen == [4] * len(names)


def _axes(output: object) -> int:
    return output.ndim if isinstance(output, Tensor) else 0
