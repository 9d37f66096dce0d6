"""An uploaded file to pixels, or a refusal; nothing is decoded before its header has been found to fit the limits."""

import io
import warnings

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from openbench.detect.serve.refused import RefusedError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")


def size_of(content: bytes, most: int) -> int:
    """Return the pixels of an image file, from its header.

    Args:
        content: the file.
        most: pixels that are taken.

    Raises:
        RefusedError: not an image of one of the formats, or it has more pixels.
    """
    with _opened(content) as image:
        pixels = image.width * image.height
    if pixels > most:
        raise RefusedError(413, "too_many_pixels", f"the image has more than {most:,} pixels")
    return pixels


def pixels_of(content: bytes) -> NDArray[np.uint8]:
    """Return the pixels (h, w, 3) of an image file; of several frames the first.

    Raises:
        RefusedError: it cannot be decoded.
    """
    with _opened(content) as image:
        try:
            image.load()
            # An orientation of EXIF is not applied: thresholds were made of pixels as they are stored.
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
        except Exception as error:  # Pillow's decoders raise a dozen kinds for damaged files
            raise _not_an_image() from error


def _opened(content: bytes) -> Pillow.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Pillow.DecompressionBombWarning)  # our own limit decides
            return Pillow.open(io.BytesIO(content), formats=FORMATS)
    except Pillow.DecompressionBombError as error:
        raise RefusedError(413, "too_many_pixels", "the image has far too many pixels") from error
    except Exception as error:  # also damaged headers
        raise _not_an_image() from error


def _not_an_image() -> RefusedError:
    return RefusedError(400, "not_an_image", f"an upload is not a sound image — allowed: {', '.join(FORMATS)}")
