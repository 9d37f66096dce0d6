"""How an image becomes the input of a network: a value, part of a backbone's digest. See `data.sources.transforms`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from openbench.config.checked import Checked
from openbench.config.constraints import Count, NotEmpty, Positive


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
    mean: Annotated[tuple[float, ...], NotEmpty()] = (0.485, 0.456, 0.406)
    std: Annotated[tuple[Positive, ...], NotEmpty()] = (0.229, 0.224, 0.225)
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"

    @property
    def channels(self) -> int:
        """The number of input channels."""
        return len(self.mean)
