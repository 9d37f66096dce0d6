"""Image transforms of the user: torchvision's, timm's and open_clip's, and any function of an image."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from torch import Tensor, nn

from openbench import _compat
from openbench.backbones.anatomy import watched
from openbench.core.preprocess import OwnPreprocess, OwnTransform, Preprocess
from openbench.data.loading import apply, cropped, transformed
from openbench.digest import digest
from openbench.errors import ConfigError, OpenbenchError
from openbench.source import Code, code_in

BENCHMARK = "benchmark"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_MOST = 600  # characters of a transform in a record
_PLAIN = (str, bytes, bool, int, float, Tensor, np.ndarray, np.generic, ModuleType)
# Height, width: smaller and larger than usual crops, portrait and landscape, and of odd lengths.
_SIZES = ((32, 32), (64, 64), (37, 50), (131, 90), (256, 341))
_LARGEST = 30.0  # of normalised pixels: 0 to 1 becomes about −3 to 3, 0 to 255 does not
_FAR = 4.0  # standard deviations of a channel in training
WAYS = (
    "pass the torchvision transform that the network was trained with (e.g. Compose([ToTensor(), Normalize(mean, "
    "std)])), ob.Preprocess(resize=…, crop=…, mean=…, std=…), a function of a PIL image, or preprocess='benchmark' for "
    "the benchmark's own"
)


@dataclass(frozen=True)
class PreparedTransform:
    """How images reach a network.

    Args:
        preprocess: in openbench's terms, or the transform as it is.
        code: the classes and functions of a transform that is run as it is.
        notes: decisions made for the user.
    """

    preprocess: Preprocess
    code: tuple[Code, ...] = ()
    notes: tuple[str, ...] = ()


def prepared(transform: object, benchmark: Preprocess) -> PreparedTransform:
    """Return a transform as a Preprocess of equal pixels, else as a function that is run as it is.

    A transform that neither resizes nor crops leaves that to the benchmark, whose sets have images of several sizes.

    Args:
        transform: a Preprocess, `"benchmark"`, a transform of torchvision, timm or open_clip, an image processor of
            Hugging Face, or any function of a PIL image that returns a tensor (channels, h, w).
        benchmark: the benchmark's own.

    Raises:
        ConfigError: something else.
        DataError: a transform that fails, or that returns no image tensor.
    """
    if isinstance(transform, Preprocess):
        return PreparedTransform(transform)
    if transform == BENCHMARK:
        return PreparedTransform(benchmark)
    if isinstance(transform, type) or not callable(transform):
        raise ConfigError(f"preprocess is {transform!r}, which is not a transform — {WAYS}")
    names = {type(step).__name__ for step in _steps(transform)}
    sized = names & {"Resize", "CenterCrop", "ImageClassification"}
    size = f"resize {benchmark.resize} and crop {benchmark.crop} are the benchmark's: preprocess has neither"
    expressed = _expressed(transform, benchmark)
    # Without a size of its own it may fit images of any: it is compared on one that needs no resizing.
    sizes = _SIZES if sized else ((benchmark.crop, benchmark.crop),) * isinstance(benchmark.resize, int)
    if expressed is not None and _equal(transform, expressed, sizes):
        return PreparedTransform(expressed, notes=() if sized else (size,))
    return _as_it_is(transform, benchmark, size)


def published_preprocess(model: object) -> object | None:
    """Return the transform that a model was published with; None where it does not say, or was trained further.

    Args:
        model: of timm, if it has the published classes, or of open_clip.
    """
    settings = getattr(model, "pretrained_cfg", None)
    if isinstance(model, nn.Module) and isinstance(settings, Mapping):
        if getattr(model, "num_classes", 0) not in (0, settings.get("num_classes")):
            return None
        data: Any = _compat.library("timm.data")
        return data.create_transform(**data.resolve_data_config(pretrained_cfg=dict(settings)))
    if type(model).__module__.startswith("open_clip."):
        clip: Any = _compat.library("open_clip")
        settings = clip.transform.PreprocessCfg(**clip.get_model_preprocess_cfg(model))
        return clip.image_transform_v2(settings, False)
    return None


def code_of(value: object) -> tuple[Code, ...]:
    """Return the classes and functions that an object holds, in attributes, containers, partials and closures."""
    return code_in(value, _parts_of, _PLAIN)


def _parts_of(value: Any) -> list[Any]:
    if isinstance(value, type):
        return []
    if not inspect.isfunction(value):
        return list(getattr(value, "__dict__", {}).values())
    parts = []
    for cell in value.__closure__ or ():
        with suppress(ValueError):  # not filled yet
            parts.append(cell.cell_contents)
    return parts


def text_of(value: object) -> str:
    """Return an object as text, without memory addresses: the source of a function, else its repr."""
    text = repr(value)
    if inspect.isfunction(value):
        with suppress(OSError, TypeError):
            text = inspect.getsource(value)
    return _ADDRESS.sub("", text.strip())


def _expressed(transform: object, benchmark: Preprocess) -> Preprocess | None:
    """The chain Resize, CenterCrop, to tensor, Normalize that a transform looks like, for `_equal` to compare."""
    steps: dict[str, Any] = {type(step).__name__: step for step in _steps(transform)}
    preset = steps.get("ImageClassification")  # of released torchvision weights
    resizing, cropping, normalising = (preset or steps.get(name) for name in ("Resize", "CenterCrop", "Normalize"))
    try:
        mean, std = _floats(getattr(normalising, "mean", (0, 0, 0))), _floats(getattr(normalising, "std", (1, 1, 1)))
        if resizing is None and cropping is None:
            return replace(benchmark, mean=mean, std=std)
        resize, crop = (  # None where there is no such step
            None if step is None else _size(getattr(step, f"{key}_size", None) or step.size)
            for key, step in (("resize", resizing), ("crop", cropping))
        )
        sides = {crop} if isinstance(crop, int) else set(crop or resize or ())
        (side,) = sides  # a single one: the network's input is a square
        filter_: Any = "bilinear" if resizing is None else resizing.interpolation
        return Preprocess(side if resize is None else resize, side, mean, std, getattr(filter_, "value", filter_))
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
            pixels = transform(picture if expressed.channels == 3 else picture.convert("L"))
        except Exception:  # the transform is then run as it is, and says what is wrong
            return False
        if not isinstance(pixels, Tensor) or not torch.equal(pixels.detach().cpu(), apply(image, expressed)):
            return False
    return bool(sizes)


def _as_it_is(transform: Any, benchmark: Preprocess, size: str) -> PreparedTransform:
    """A transform that cannot be expressed, with its measured size, mean and standard deviation."""
    code = code_of(transform)
    names = sorted(f"{part.__module__}.{part.__qualname__}" for part in code)
    function = transform
    if any(kind.__name__ == "ImageProcessingMixin" for kind in type(transform).__mro__):  # of Hugging Face

        def function(image: Any) -> Any:
            return transform(images=image, return_tensors="pt")["pixel_values"][0]

    steps = {type(step).__name__: step for step in _steps(transform)}
    one = "Normalize" in steps and len(_floats(steps["Normalize"].mean)) == 1
    mode: Literal["L", "RGB"] = "L" if one and not steps.keys() & {"Grayscale", "RGB"} else "RGB"
    text, notes = text_of(transform), ["preprocess is run as it is: its steps have no equal here"]
    wrapped = OwnTransform(text[:_MOST], digest([text, names], 64), mode, function)
    if transformed(_noise(96), wrapped).shape[1] != transformed(_noise(64), wrapped).shape[1]:
        notes.append(size)
        content = digest([wrapped.content, benchmark.resize, benchmark.crop, benchmark.interpolation], 64)

        def resized(image: Any) -> Any:
            return function(Pillow.fromarray(cropped(np.asarray(image), benchmark)))

        wrapped = replace(wrapped, content=content, function=resized)
    side = transformed(_noise(96), wrapped).shape[1]
    mean, std = _measured(*(transformed(np.full_like(_noise(96), value), wrapped) for value in (0, 255)))
    return PreparedTransform(OwnPreprocess(resize=side, crop=side, mean=mean, std=std, own=wrapped), code, tuple(notes))


def _noise(side: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)


def _measured(black: NDArray[np.float32], white: NDArray[np.float32]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and the standard deviation by which pixels in [0, 1] are normalised; 0 and 1 where that is not so."""
    low, high = (image.reshape(len(image), -1).mean(axis=1).astype(float) for image in (black, white))
    span = high - low
    if not np.isfinite(span).all() or (span <= 0).any():
        return (0.0,) * len(span), (1.0,) * len(span)
    rounded = [[float(f"{value:.6g}") for value in values] for values in (-low / span + 0.0, 1 / span)]
    return tuple(rounded[0]), tuple(rounded[1])


def range_warnings(images: Tensor, module: nn.Module | None) -> tuple[str, ...]:
    """Return warnings about images that are not in the range of the training images.

    Args:
        images: of ID test, preprocessed, on the network's device.
        module: the network, whose first batch norm has the statistics of its training; None = not known.
    """
    largest = float(images.abs().max())
    if largest > _LARGEST:
        return (f"images reach {largest:.0f} after preprocess, where normalised pixels lie within ±3 — scale them",)
    parts = () if module is None else module.named_modules()
    place, norm = next((named for named in parts if isinstance(named[1], nn.BatchNorm2d)), ("", None))
    # A running mean of zeros is that of a network which was not trained.
    if module is None or norm is None or norm.running_mean is None or not norm.running_mean.any():
        return ()
    _, calls = watched(module, [place], images.to(norm.running_mean.device, norm.running_mean.dtype))
    if not calls:
        return ()
    seen, std = calls[place][0].float(), norm.running_var.float().sqrt() + 1e-6
    off = float(((seen.mean(dim=(0, 2, 3)) - norm.running_mean.float()) / std).abs().median())
    spread = float((seen.transpose(0, 1).flatten(1).std(dim=1) / std).median())
    if off <= _FAR and 1 / _FAR < spread < _FAR:
        return ()
    where = f"in its first batch norm they lie {off:.1f} deviations away and are {spread:.2g} times as wide"
    return (f"images are unlike the network's training images: {where} — check mean and std of preprocess",)
