"""The orientation that a camera writes beside an image's pixels: it is not applied, so whoever has some is told."""

import io

from PIL import Image as Pillow

from openbench.core.benchmark import Items
from openbench.data.sources.items import FORMATS

_TAG = 0x0112  # of EXIF
_UPRIGHT = 1
_OTHERS = range(2, 9)  # mirrored, turned by a quarter or a half, or both
ADVICE = (
    "images with an EXIF orientation: networks see the pixels as they are stored — to have them seen upright, save "
    "them turned (Pillow's ImageOps.exif_transpose)"
)


def is_turned(items: Items, index: int) -> bool:
    """Whether the image at a position carries an EXIF orientation other than upright; False if it cannot be read."""
    # Asked of each image of a benchmark, and to ask whether an object follows a Protocol takes longer than to hash one.
    if located := getattr(items, "located", None):  # they are those of several sets
        items, index = located(index)
    if not (encoded := getattr(items, "encoded", None)):  # they are no image files, nor bytes of such
        return False
    try:
        image = encoded(index)
        with Pillow.open(io.BytesIO(image) if isinstance(image, bytes) else image, formats=FORMATS) as found:
            return found.getexif().get(_TAG, _UPRIGHT) in _OTHERS
    except Exception:  # Pillow raises a dozen kinds of error for damaged EXIF data; the pixels may be sound
        return False


def not_applied(count: int) -> str:
    """What is said of so many such images: one or more."""
    images = "1 image carries" if count == 1 else f"{count:,} images carry"
    return f"{images} an EXIF orientation, which is not applied"
