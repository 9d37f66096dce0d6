"""How an image becomes the input of a network: a value, part of a backbone's digest. See `data.loading`."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from openbench.config.constraints import Checked, Count, Positive


@dataclass(frozen=True)
class Preprocess(Checked):
    """Convert to RGB, resize the shorter side, centre-crop, scale to [0, 1], normalise per channel.

    Args:
        resize: length of the shorter side in pixels after resizing; a pair (height, width) resizes to exactly that.
        crop: side of the centre crop in pixels.
        mean: per-channel mean of images in [0, 1]; its length is the number of input channels (1 or 3).
        std: per-channel standard deviation.
        interpolation: PIL resampling filter.
    """

    resize: Count | tuple[Count, Count]
    crop: Count
    mean: Annotated[tuple[float, ...], MinLen(1)] = (0.485, 0.456, 0.406)
    std: Annotated[tuple[Positive, ...], MinLen(1)] = (0.229, 0.224, 0.225)
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"

    @property
    def channels(self) -> int:
        """The number of input channels."""
        return len(self.mean)


@dataclass(frozen=True)
class OwnTransform:
    """A user's function from a decoded image to the network's input.

    Args:
        text: its source or repr, shortened.
        content: digest of its code and settings.
        mode: of the PIL images, `RGB` or `L`.
        function: PIL image → tensor (channels, h, w).
    """

    text: str
    content: str
    mode: Literal["RGB", "L"]
    function: InitVar[Callable[[Any], Any]]

    def __post_init__(self, function: Callable[[Any], Any]) -> None:
        """Keep the function beside the fields: records and digests hold plain values."""
        object.__setattr__(self, "_function", function)

    def __call__(self, image: Any) -> Any:
        """Return what the function makes of a PIL image."""
        return self._function(image)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class OwnPreprocess(Preprocess):
    """A transform that the fields of Preprocess cannot express; it is run as it is.

    Args:
        resize: side of the network's input, as measured.
        crop: the same.
        mean: per channel, measured on a black and a white image.
        std: likewise; methods that move an image by pixels divide by it.
        interpolation: unused.
        own: the transform.
    """

    own: OwnTransform | None = None
