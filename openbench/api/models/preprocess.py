"""How the user's images reach the network: torchvision's, timm's and open_clip's transforms, and any function."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor, nn

from openbench.core.preprocess import OwnPreprocess, OwnTransform, Preprocess
from openbench.data.sources.transforms import apply, cropped, transformed
from openbench.digest import digest
from openbench.errors import ConfigError, DataError, OpenbenchError
from openbench.source import Code

BENCHMARK = "benchmark"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SHOWN = 600  # characters of a transform that a record keeps
_PLAIN = (str, bytes, bool, int, float, type(None), Tensor, np.ndarray, np.generic, ModuleType)
# Height, width: smaller and larger than usual crops, upright and not, and of odd lengths.
_SIZES = ((32, 32), (64, 64), (37, 50), (131, 90), (256, 341))
_LARGEST = 30.0  # of normalised pixels: 0 to 1 becomes about −3 to 3, 0 to 255 does not
_FAR = 4.0  # standard deviations of a channel, over all images that the network learnt from
WAYS = (
    "pass the torchvision transform that the network was trained with (e.g. Compose([ToTensor(), Normalize(mean, "
    "std)])), ob.Preprocess(resize=…, crop=…, mean=…, std=…), a function of a PIL image, or preprocess='benchmark' for "
    "the benchmark's own"
)


@dataclass(frozen=True)
class Prepared:
    """How images reach a network, and what there is to say about it.

    Args:
        preprocess: expressed in openbench's terms, or the transform as it is.
        code: the classes and functions of a transform that is run as it is.
        notes: what was decided for the user.
    """

    preprocess: Preprocess
    code: tuple[Code, ...] = ()
    notes: tuple[str, ...] = ()


def prepared(given: object, benchmark: Preprocess) -> Prepared:
    """Return what was given as a Preprocess of equal pixels, else as a transform that is run as it is.

    A transform that neither resizes nor crops leaves that to the benchmark, whose sets have images of several sizes.

    Args:
        given: a Preprocess, `"benchmark"`, a transform of torchvision, timm or open_clip, an image processor of
            Hugging Face, or any function of a PIL image that returns a tensor (channels, h, w).
        benchmark: the benchmark's own.

    Raises:
        ConfigError: something else, a transform that fails, that is random, or that returns no image tensor.
    """
    if isinstance(given, Preprocess):
        return Prepared(given)
    if isinstance(given, str):
        if given != BENCHMARK:
            raise ConfigError(f"preprocess '{given}' is unknown — {WAYS}")
        return Prepared(benchmark)
    if isinstance(given, type):
        raise ConfigError(f"preprocess is the class {given.__name__} — an instance expected — write {given.__name__}()")
    if not callable(given):
        raise ConfigError(f"preprocess is a {type(given).__name__}, which cannot be called — {WAYS}")
    names = {type(step).__name__ for step in _steps(given)}
    sized = names & {"Resize", "CenterCrop", "ImageClassification"}
    size = f"resize {benchmark.resize} and crop {benchmark.crop} are the benchmark's: preprocess has neither"
    expressed = _expressed(given, benchmark)
    # Without a size of its own it may fit images of any: it is compared on one that needs no resizing.
    sizes = _SIZES if sized else ((benchmark.crop, benchmark.crop),) * isinstance(benchmark.resize, int)
    if expressed is not None and _equal(given, expressed, sizes):
        return Prepared(expressed, notes=() if sized else (size,))
    return _as_it_is(given, benchmark, size)


def code_of(value: object) -> tuple[Code, ...]:
    """Return the classes and functions that an object holds, in attributes, containers, partials and closures."""
    found: dict[Code, None] = {}
    seen: dict[int, object] = {}
    pending = [value]
    while pending:
        part: Any = pending.pop()
        if id(part) in seen or isinstance(part, _PLAIN):
            continue
        seen[id(part)] = part
        if isinstance(part, Mapping):
            pending += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            pending += part
        elif isinstance(part, partial):
            pending += [part.func, part.args, part.keywords]
        elif inspect.ismethod(part):
            pending += [part.__func__, part.__self__]
        elif isinstance(part, type) or inspect.isfunction(part):
            found[part] = None
            for cell in getattr(part, "__closure__", None) or ():
                with suppress(ValueError):  # not filled yet
                    pending.append(cell.cell_contents)
        else:
            found[type(part)] = None
            pending += getattr(part, "__dict__", {}).values()
    return tuple(found)


def text_of(value: object) -> str:
    """Return an object as text, without addresses: the source of a function, else its repr."""
    text = repr(value)
    if inspect.isfunction(value):
        with suppress(OSError, TypeError):
            text = inspect.getsource(value)
    return _ADDRESS.sub("", text.strip())


def _expressed(transform: object, benchmark: Preprocess) -> Preprocess | None:
    """The chain Resize, CenterCrop, to tensor, Normalize that a transform may be; None if it looks like another one.

    Whether it gives the same pixels is for `_equal` to say.
    """
    steps: dict[str, Any] = {type(step).__name__: step for step in _steps(transform)}
    preset = steps.get("ImageClassification")  # of released torchvision weights
    resizing, cropping, normalising = (preset or steps.get(name) for name in ("Resize", "CenterCrop", "Normalize"))
    try:
        mean, std = _floats((0, 0, 0)), _floats((1, 1, 1))
        if normalising is not None:
            mean, std = _floats(normalising.mean), _floats(normalising.std)
        if resizing is None and cropping is None:
            return replace(benchmark, mean=mean, std=std)
        resize, crop = (  # None where there is no such step
            None if step is None else _size(getattr(step, f"{key}_size", None) or step.size)
            for key, step in (("resize", resizing), ("crop", cropping))
        )
        sides = {crop} if isinstance(crop, int) else set(crop or resize or ())
        (side,) = sides  # a single one: the network's input is a square
        found: Any = "bilinear" if resizing is None else resizing.interpolation
        return Preprocess(side if resize is None else resize, side, mean, std, getattr(found, "value", found))
    except (AttributeError, TypeError, ValueError, OpenbenchError):
        return None


def _size(size: Any) -> Any:
    """An edge, or height and width: what Preprocess checks."""
    sides = (size,) if isinstance(size, int) else tuple(size)
    return sides[0] if len(sides) == 1 else sides


def _steps(transform: Any) -> Iterator[Any]:
    inner = transform if isinstance(transform, nn.Sequential) else getattr(transform, "transforms", None)
    if isinstance(inner, Iterable):
        for step in inner:
            yield from _steps(step)
    else:
        yield transform


def _floats(values: Any) -> tuple[float, ...]:
    """Constants as they are written: timm keeps them as float32 tensors, in which 0.485 is 0.48500001."""
    if isinstance(values, Tensor):
        return tuple(float(str(np.float32(value))) for value in values.flatten().tolist())
    return tuple(float(value) for value in ((values,) if isinstance(values, int | float) else values))


def _equal(transform: Any, expressed: Preprocess, sizes: Sequence[tuple[int, int]]) -> bool:
    """Whether both give the same pixels, to the last bit, for images of noise of some sizes."""
    rng = np.random.default_rng(0)
    for size in sizes:
        image = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        picture = Pillow.fromarray(image)
        try:
            made = transform(picture if expressed.channels == 3 else picture.convert("L"))
        except Exception:  # the transform is then run as it is, and says what is wrong
            return False
        if not isinstance(made, Tensor) or not torch.equal(made.detach().cpu(), apply(image, expressed)):
            return False
    return bool(sizes)


def _as_it_is(given: Any, benchmark: Preprocess, size: str) -> Prepared:
    """A transform that cannot be expressed, with what was measured of it."""
    code = code_of(given)
    names = sorted(f"{part.__module__}.{part.__qualname__}" for part in code)
    function = given
    if any(kind.__name__ == "ImageProcessingMixin" for kind in type(given).__mro__):  # of Hugging Face

        def function(image: Any) -> Any:
            return given(images=image, return_tensors="pt")["pixel_values"][0]

    parsed = [step for step in _steps(given) if type(step).__name__ == "Normalize"]
    greyed = any(type(step).__name__ in ("Grayscale", "RGB") for step in _steps(given))
    grey = bool(parsed) and len(_floats(parsed[-1].mean)) == 1 and not greyed
    own = OwnTransform(text_of(given)[:_SHOWN], digest([text_of(given), names], 64), "L" if grey else "RGB", function)
    notes = ["preprocess is run as it is: its steps have no equal here"]
    if _tried(_noise(96), own).shape[1] != _tried(_noise(64), own).shape[1]:
        notes.append(size)
        content = digest([own.content, benchmark.resize, benchmark.crop, benchmark.interpolation], 64)

        def resized(image: Any) -> Any:
            return function(Pillow.fromarray(cropped(np.asarray(image), benchmark)))

        own = OwnTransform(own.text, content, own.mode, resized)
    image = _noise(96)
    made = _tried(image, own)
    mean, std = _measured(*(_tried(np.full_like(image, value), own) for value in (0, 255)))
    found = OwnPreprocess(resize=made.shape[1], crop=made.shape[1], mean=mean, std=std, own=own)
    return Prepared(found, code, tuple(notes))


def _noise(side: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)


def _tried(image: NDArray[np.uint8], own: OwnTransform) -> NDArray[np.float32]:
    try:
        return transformed(image, own)
    except DataError as error:
        raise ConfigError(f"{error} — {WAYS}") from error


def _measured(black: NDArray[np.float32], white: NDArray[np.float32]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and the standard deviation by which pixels in [0, 1] are normalised; 0 and 1 where that is not so."""
    low, high = (image.reshape(len(image), -1).mean(axis=1).astype(float) for image in (black, white))
    span = high - low
    if not np.isfinite(span).all() or (span <= 0).any():
        return (0.0,) * len(span), (1.0,) * len(span)
    rounded = [[float(f"{value:.6g}") for value in values] for values in (-low / span + 0.0, 1 / span)]
    return tuple(rounded[0]), tuple(rounded[1])


def range_warnings(images: Tensor, preprocess: Preprocess, module: nn.Module | None) -> tuple[str, ...]:
    """Return warnings about images that are not in the range which the network learnt from.

    Args:
        images: normalised, of ID test, on the network's device.
        preprocess: which made them.
        module: the network, whose first batch norm knows the statistics of what it learnt from; None = not known.
    """
    reach = float(images.abs().max())
    if reach > _LARGEST:
        return (
            f"images reach {reach:.0f} after preprocess, where normalised pixels lie within about ±3 — scale pixels to "
            "[0, 1], as ToTensor() does",
        )
    return () if module is None else (*_published(module, preprocess), *_learnt(module, images))


def _published(module: nn.Module, preprocess: Preprocess) -> Iterator[str]:
    """What timm says of released weights against the preprocess."""
    settings = getattr(module, "pretrained_cfg", None)
    if not isinstance(settings, dict) or settings.get("num_classes") != getattr(module, "num_classes", None):
        return
    mean, std = (tuple(map(float, settings.get(key) or ())) for key in ("mean", "std"))
    near = all(
        len(a) == len(b) and all(abs(x - y) < 0.02 for x, y in zip(a, b, strict=True))
        for a, b in ((mean, preprocess.mean), (std, preprocess.std))
    )
    if mean and std and not near:
        yield (
            f"preprocess normalises by mean {preprocess.mean} and std {preprocess.std}, timm publishes this model with "
            f"mean {mean} and std {std}"
        )


def _learnt(module: nn.Module, images: Tensor) -> Iterator[str]:
    """What the first batch norm has seen in training against what it sees now."""
    norm = next((part for part in module.modules() if isinstance(part, nn.BatchNorm2d)), None)
    if norm is None or norm.running_mean is None or norm.running_var is None or not _counted(norm):
        return
    seen: list[Tensor] = []
    hook = norm.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs[0].detach().float()))
    with hook, torch.no_grad():
        module(images.to(norm.running_mean.device, norm.running_mean.dtype))
    if not seen:
        return
    now, std = seen[0].mean(dim=(0, 2, 3)), norm.running_var.float().sqrt() + 1e-6
    off = float(((now - norm.running_mean.float()) / std).abs().median())
    spread = float((seen[0].transpose(0, 1).flatten(1).std(dim=1) / std).median())
    if off > _FAR or not 1 / _FAR < spread < _FAR:
        yield (
            f"images do not look like those that the network learnt from: in its first batch norm they lie {off:.1f} "
            f"standard deviations away and spread {spread:.2g} times as wide — check mean and std of preprocess"
        )


def _counted(norm: nn.BatchNorm2d) -> bool:
    """Whether the statistics are of images: fresh ones are 0 and 1."""
    mean, var = norm.running_mean, norm.running_var
    return mean is not None and var is not None and not (bool((mean == 0).all()) and bool((var == 1).all()))
