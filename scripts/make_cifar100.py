"""Put CIFAR-100's official training file together from its images as PNG, and check its published md5.

    python scripts/make_cifar100.py PNGS HEADER OUTPUT

PNGS: a folder with one image per original file name, in any subfolders (bos_taurus_s_000507.png, …).
HEADER: a cut-off copy of the official file `train`, whose beginning lists file names and labels in order.
OUTPUT: where to write the file, which torchvision reads as cifar-100-python/train.
"""

import argparse
import hashlib
import pickletools
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from openbench.storage.files import write_whole

IMAGES, PIXELS = 50_000, 3 * 32 * 32
MD5 = "16019d7e3df5f24257cddd939b257f8d"  # as torchvision publishes it
LENGTH = b"T" + (IMAGES * PIXELS).to_bytes(4, "little")  # the opcode of a long string and the length of all pixels
_END = b"tbu."  # closes the array's state, builds it, sets the items of the dictionary, stops


def parse_header(cut: bytes) -> tuple[bytes, list[str]]:
    """Return the part of a cut-off file before its pixels, and the file names in order; nothing is unpickled."""
    end = cut.find(LENGTH)
    if end < 0:
        raise SystemExit("HEADER is cut off before the pixels — give a longer copy (1.65 MB are enough)")
    head = cut[:end]
    names = [arg for opcode, arg, _ in pickletools.genops(head + b".") if isinstance(arg, str) and arg.endswith(".png")]
    return head, names


def main() -> int:
    """Write the file if its md5 is the published one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("pngs", "header", "output"):
        parser.add_argument(name, type=Path, metavar=name.upper())
    arguments = parser.parse_args()
    head, names = parse_header(arguments.header.read_bytes())
    paths = {path.name: path for path in arguments.pngs.rglob("*.png")}
    if missing := [name for name in names if name not in paths]:
        raise SystemExit(f"PNGS lacks {len(missing)} of {len(names)} images, such as {missing[0]}")
    pixels = np.empty((len(names), PIXELS), dtype=np.uint8)
    for row, name in zip(pixels, names, strict=True):
        with Image.open(paths[name]) as image:
            row[:] = np.asarray(image.convert("RGB")).transpose(2, 0, 1).ravel()
    content = head + LENGTH + pixels.tobytes() + _END
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 != MD5:
        raise SystemExit(f"md5 {md5}, but {MD5} is published — the images are other ones, or re-encoded")
    write_whole(arguments.output, content)
    print(f"{arguments.output}: {len(content):,} bytes, md5 {md5}, as published")
    return 0


if __name__ == "__main__":
    sys.exit(main())
