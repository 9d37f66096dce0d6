"""Uploaded images of a server: its limits, its refusals, and decoding within the limits."""

import io
import re
import warnings
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from openbench.config.constraints import Checked, Count, NonNegative, Positive
from openbench.data.sources.base import DEEP

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
_JPEG = b"\xff\xd8"
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")  # of JPEG, with a segment after it, or the end of the image
_SCAN, _END = 0xDA, 0xD9
_SCANS = 100  # of a JPEG; encoders write about ten, and each is a pass over all pixels, however few its bytes


@dataclass(frozen=True)
class ServerLimits(Checked):
    """The limits of a server; together they bound its memory.

    Args:
        body_bytes: of one request, headers not counted.
        image_pixels: width times height of one image, read from its header before it is decoded.
        image_aspect: the longer side of an image over the shorter; a network's transform may scale the shorter one up.
        images: in one request.
        waiting: images that may wait for the network; more are turned away.
        waiting_pixels: of all images that are being decoded or wait; one image is always taken.
        connections: open at a time; more are turned away.
        upload_s: seconds in which the body of a request must have arrived; also those of an idle connection.
        answer_s: seconds in which it must have been answered, from when it arrived.
        batch: images per forward pass.
        batch_wait_ms: milliseconds that an image waits for others to join it.
        drain_s: seconds in which requests are finished after the server was told to stop.
    """

    named = "serve"

    body_bytes: Count = 10 << 20
    image_pixels: Count = 25_000_000
    image_aspect: Count = 20
    images: Count = 32
    waiting: Count = 256
    waiting_pixels: Count = 100_000_000
    connections: Count = 256
    upload_s: Positive = 10.0
    answer_s: Positive = 10.0
    batch: Count = 32
    batch_wait_ms: NonNegative = 2.0
    drain_s: Positive = 10.0


class RefusedError(Exception):
    """A refused request: a status, and a text that never repeats what was sent.

    Args:
        status: of HTTP.
        code: a word for programs.
        message: a sentence for people, in the server's own words and numbers.
    """

    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.status, self.code = status, code

    @property
    def body(self) -> dict[str, dict[str, str]]:
        """The body of the answer."""
        return {"error": {"code": self.code, "message": str(self)}}


def size_of(content: bytes, limits: ServerLimits) -> int:
    """Return the number of pixels of an image file, from its header; no decoder is kept, as WebP's has two canvases.

    Args:
        content: the file.
        limits: image_pixels, image_aspect.

    Raises:
        RefusedError: not an image of one of the formats, more than 8 bits of grey, or beyond the limits.
    """
    with closing(_opened(content, limits)) as image:
        return image.width * image.height


def _opened(content: bytes, limits: ServerLimits) -> Pillow.Image:
    if content.startswith(_JPEG) and _scans(content) > _SCANS:
        raise RefusedError(413, "too_many_scans", f"the image is a JPEG of more than {_SCANS} scans")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Pillow.DecompressionBombWarning)  # our own limit decides
            image = Pillow.open(io.BytesIO(content), formats=FORMATS)
    except Pillow.DecompressionBombError as error:
        raise RefusedError(413, "too_many_pixels", "the image has far too many pixels") from error
    except Exception as error:  # also damaged headers
        raise _not_an_image() from error
    if image.mode.startswith(DEEP):  # as `score`: nothing says what is black and what is white
        message = "the image is grey with more than 8 bits per pixel — scale it to 0…255 and send it as 8-bit grey"
        raise RefusedError(400, "too_deep", message)
    short, long = sorted(image.size)
    if short * long > limits.image_pixels:
        raise RefusedError(413, "too_many_pixels", f"the image has more than {limits.image_pixels:,} pixels")
    if long > short * limits.image_aspect:
        raise RefusedError(413, "too_elongated", f"the image is more than {limits.image_aspect} times as long as wide")
    return image


def _scans(content: bytes) -> int:
    """Return the number of scans of a JPEG, counted from marker to marker up to one more than the limit."""
    at = scans = 0
    while scans <= _SCANS and (marker := _MARKER.search(content, at)) and marker[1][0] != _END:
        scans += marker[1][0] == _SCAN
        at = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2], "big")
    return scans


def pixels_of(content: bytes, limits: ServerLimits) -> NDArray[np.uint8]:
    """Return the pixels (h, w, 3) of an image file; of several frames the first.

    Raises:
        RefusedError: as `size_of`, or it cannot be decoded.
    """
    image = _opened(content, limits)
    try:
        with closing(image):
            # The EXIF orientation is not applied: thresholds were calibrated on pixels as stored.
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except Exception as error:  # Pillow's decoders raise a dozen kinds for damaged files
        raise _not_an_image() from error


def _not_an_image() -> RefusedError:
    return RefusedError(400, "not_an_image", f"an upload is not a valid image — allowed: {', '.join(FORMATS)}")
