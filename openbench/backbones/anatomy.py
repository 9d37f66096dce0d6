"""The places of the head and the stages in a network, and hooks that read them during one forward pass."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import attrgetter
from threading import get_ident
from typing import Any, Literal

import torch
from torch import Tensor, nn

from openbench.core.request import Pool
from openbench.errors import ConfigError

MAX_STAGES = 4
Layout = Literal["nchw", "nhwc", "tokens", "tokens_first"]
GRAM_POWERS = {"gram": 5, "gram10": 10}  # largest p per reduction


@dataclass(frozen=True)
class Anatomy:
    """Names of a network's parts; a value, part of the backbone's digest.

    Args:
        head: dotted name of the last nn.Linear; its input is the features, its output the logits. In a network without
            a classifier, the name of the nn.Identity in its place.
        stages: neutral name `stage1` … → dotted name of the module whose output is that stage's map.
        layout: axes of a stage's output: `nchw`, `nhwc`, `tokens` (n, t, d) or `tokens_first` (t, n, d).
        prefix_tokens: class and register tokens before the patch tokens.
    """

    head: str
    stages: Mapping[str, str] = field(default_factory=dict)
    layout: Layout = "nchw"
    prefix_tokens: int = 0

    def linear(self, module: nn.Module) -> nn.Linear:
        """The head inside `module`.

        Raises:
            ConfigError: it is not an nn.Linear, so the logits are not W·features + b.
        """
        head = module.get_submodule(self.head)
        if not isinstance(head, nn.Linear):
            found = f"{type(module).__name__}: the classifier '{self.head}' is {type(head).__name__}, not nn.Linear"
            raise ConfigError(f"{found} — choose a model with logits = W·features + b")
        return head

    def classifier(self, module: nn.Module) -> nn.Linear | nn.Identity:
        """The head inside `module`, or what stands in its place where there is none.

        Raises:
            ConfigError: it is neither nn.Linear nor nn.Identity.
        """
        head = attrgetter(self.head)(module)  # `get_submodule` takes three times as long
        return head if isinstance(head, (nn.Linear, nn.Identity)) else self.linear(module)

    def as_map(self, output: Tensor) -> Tensor:
        """A stage's output as (n, c, h, w); patch tokens are laid out on their square grid, a vector is one pixel."""
        if output.ndim == 2:
            return output[:, :, None, None]
        if self.layout == "nchw":
            return output
        if self.layout == "nhwc":
            return output.permute(0, 3, 1, 2)
        tokens = output.transpose(0, 1) if self.layout == "tokens_first" else output
        patches = tokens[:, self.prefix_tokens :]
        n, t, d = patches.shape
        side = math.isqrt(t)
        if side * side != t:
            raise ConfigError(f"{t} patch tokens do not form a square grid — use square input")
        return patches.transpose(1, 2).reshape(n, d, side, side)

    def with_map(self, output: Tensor, changed: Tensor) -> Tensor:
        """A stage's output with its map replaced by another (n, c, h, w) of its size; class tokens stay."""
        if output.ndim == 2:
            return changed[:, :, 0, 0]
        if self.layout == "nchw":
            return changed
        if self.layout == "nhwc":
            return changed.permute(0, 2, 3, 1)
        patches = changed.flatten(2).transpose(1, 2)
        if self.layout == "tokens_first":
            return torch.cat([output[: self.prefix_tokens], patches.transpose(0, 1)])
        return torch.cat([output[:, : self.prefix_tokens], patches], dim=1)


@dataclass
class Tapped:
    """The features, the logits and the reduced maps (by neutral name) of one forward pass."""

    features: Tensor | None = None
    logits: Tensor | None = None
    maps: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def tapping(module: nn.Module, anatomy: Anatomy, layers: Sequence[str], pool: Pool) -> Iterator[Tapped]:
    """Yield a Tapped that the body's forward pass fills; the network carries no hooks before or after.

    Maps are reduced inside the hook: later layers may overwrite them in place, and whole maps take more memory. Passes
    of other threads are ignored.
    """
    tapped, thread = Tapped(), get_ident()

    def at_head(head: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if get_ident() == thread:
            tapped.features = inputs[0]
            # Without a classifier there are no classes: (n, 0).
            tapped.logits = output[:, :0] if isinstance(head, nn.Identity) else output

    def at_stage(name: str, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
        if get_ident() == thread:
            tapped.maps[name] = reduce_map(anatomy.as_map(output), pool)

    with ExitStack() as hooks:
        hooks.enter_context(anatomy.classifier(module).register_forward_hook(at_head))
        for layer in layers:
            stage = module.get_submodule(anatomy.stages[layer])
            hooks.enter_context(stage.register_forward_hook(partial(at_stage, layer)))
        yield tapped


def choose_stages(modules: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Return neutral name → module: the last module at each of the last four (or fewer) resolutions.

    In a network of one resolution it is the last module of each of four (or fewer) groups of equal size.

    Args:
        modules: (dotted name, side of its output) in forward order; a larger number may mean a finer map or a coarser
            reduction, since only changes count.
    """
    ends = [name for (name, side), (_, following) in pairwise([*modules, ("", -1)]) if side != following][-MAX_STAGES:]
    if len({side for _, side in modules}) == 1:
        groups = min(MAX_STAGES, len(modules))
        ends = [modules[math.ceil(len(modules) * i / groups) - 1][0] for i in range(1, groups + 1)]
    return {f"stage{i}": name for i, name in enumerate(ends, start=1)}


def watched(module: nn.Module, places: Iterable[str], images: Tensor) -> tuple[Any, dict[str, tuple[Tensor, Tensor]]]:
    """Return what a module returns, and the input and the output of some of its parts, in the order of their calls.

    Args:
        module: in eval mode.
        places: dotted names of the parts; those that are not called, or not with tensors, are left out.
        images: the input.
    """
    calls: dict[str, tuple[Tensor, Tensor]] = {}

    def note(place: str, _: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and inputs and isinstance(inputs[0], Tensor):
            calls.pop(place, None)  # the latest call counts, and stands last
            calls[place] = (inputs[0], output)

    with ExitStack() as hooks, torch.no_grad():
        for place in places:
            hooks.enter_context(module.get_submodule(place).register_forward_hook(partial(note, place)))
        return module(images), calls


def output_sides(module: nn.Module, names: Sequence[str], shape: tuple[int, int, int], layout: Layout) -> list[int]:
    """Return the heights of the maps that some modules put out for images of `shape`; nothing is computed.

    A copy of the network runs on the meta device, which knows shapes but no values; weights are not copied.
    """
    shapes = {id(value): value.detach().to("meta") for value in (*module.parameters(), *module.buffers())}
    ghost = copy.deepcopy(module, shapes).to("meta").eval()
    _, calls = watched(ghost, names, torch.empty(1, *shape, device="meta"))
    return [calls[name][1].shape[1 if layout == "nhwc" else 2] for name in names]


def last_linear(module: nn.Module, kind: type[nn.Module] = nn.Linear) -> str:
    """Return the dotted name of the last nn.Linear, or of the last module of another kind.

    Raises:
        ConfigError: there is none.
    """
    names: list[str] = [name for name, child in module.named_modules() if isinstance(child, kind)]
    if not names:
        raise ConfigError(f"{type(module).__name__} has no nn.Linear — choose a model with a linear classifier")
    return names[-1]


def reduce_map(maps: Tensor, pool: Pool) -> Tensor:
    """Return the reduction of maps (n, c, h, w), float32, never a view of the argument.

    `none` (n, c, h, w) · `mean`, `max` (n, c) over positions · `gram` (n, c, 5), `gram10` (n, c, 10), see
    `gram_rows`.
    """
    if pool in GRAM_POWERS:
        return gram_rows(maps, GRAM_POWERS[pool])
    if pool == "mean":
        return maps.float().mean(dim=(2, 3))
    if pool == "max":
        return maps.float().amax(dim=(2, 3))
    return maps.detach().to(torch.float32, memory_format=torch.contiguous_format, copy=True)


def gram_rows(maps: Tensor, powers: int) -> Tensor:
    """Return the signed p-th roots of the row sums of the p-th order Gram matrices, (n, c, P) for p = 1 … P.

    With F (c, h·w) one sample's map and Fᵖ its elementwise power: g_p = Fᵖ(Fᵖ)ᵀ1 and root sign(g_p)·|g_p|^(1/p). The
    (c, c) matrix is never formed: its row sums are Fᵖ times the channel sum of Fᵖ.

    Args:
        maps: (n, c, h, w).
        powers: P; the paper reads 10, OpenOOD 5.

    Reference:
        Sastry, Oore: Detecting out-of-distribution examples with Gram matrices, ICML 2020, arXiv:1912.12510.
    """
    # The root magnifies what cancels in the sums, hence double precision where the device has it.
    precise = maps.float() if maps.device.type == "mps" else maps.double()
    flat = precise.flatten(2)
    # Twentieth powers overflow unless each sample is scaled; a scale s comes back as s² for every p.
    scale = flat.abs().amax(dim=(1, 2), keepdim=True)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    unit = flat / scale
    roots = []
    power = torch.ones_like(unit)
    for p in range(1, powers + 1):
        power = power * unit
        rows = torch.einsum("ncl,nl->nc", power, power.sum(dim=1))
        roots.append(rows.sign() * rows.abs().pow(1 / p))
    return (torch.stack(roots, dim=2) * scale.square()).float()
