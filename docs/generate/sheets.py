"""Strips of images on the benchmarks' pages, of the sets whose images anybody may publish.

They lie in `docs/sheets`, with their licences, and are made of data at hand, from docs/:

    OPENBENCH_DATA=/data python -m generate.sheets cifar10_32px mnist notmnist
    python -m generate.sheets digits     # all sets of a benchmark, in a folder of its own
"""

import base64
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from generate.markdown import table
from openbench.cli.commands.data import benchmark_config
from openbench.core.benchmark import Split
from openbench.core.request import Role
from openbench.data.build import open_benchmark
from openbench.data.checking.contact_sheet import spaced
from openbench.data.dataset import Located

STORED = Path(__file__).parents[1] / "sheets"
IMAGES = 16
ZOOMED = 32  # pixels; smaller images are enlarged in whole steps


def sheet(benchmark: str, sets: Sequence[Located]) -> str:
    """Return a section with a strip for each set that has one, and whose images they are; empty if none has.

    Raises:
        ValueError: `docs/sheets/README.md` does not say whose images a strip shows.
    """
    found = {}
    for one in sets:
        name = one.path.partition(".")[2] if one.role in (Role.NEAR, Role.FAR, Role.CSID) else one.name
        own, general = f"{benchmark}/{one.role}-{name}.png", f"{one.name}.png"
        if (STORED / own).exists():
            found[f"{one.role}/{name}"] = own
        elif (STORED / general).exists():
            found[one.name] = general
    if not found:
        return ""
    figures = "".join(_figure(name, (STORED / path).read_bytes()) for name, path in found.items())
    owners = table(("images of", "licence"), list(dict.fromkeys(credit(path) for path in found.values())))
    return f"## Pictures\n\n```{{raw}} html\n{figures}\n```\n\n{owners}\n\n{_CAPTION}"


def credit(path: str) -> tuple[str, str]:
    """Return whose images a strip shows, and their licence, as `docs/sheets/README.md` has it.

    Args:
        path: of the strip, below `docs/sheets`; the longest beginning of it that the table names counts.
    """
    text = (STORED / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    known = {start: (what, licence) for starts, what, licence in rows for start in re.findall(r"`(.+?)`", starts)}
    return known[max((start for start in known if path.startswith(start)), key=len)]


_CAPTION = (
    "Evenly spaced images, small ones enlarged, of sets that anybody may publish. Of every set, "
    "`python -m openbench data stats BENCHMARK --to sheets` draws a sheet from your own copy."
)


def strip(split: Split) -> bytes:
    """Return images side by side as PNG."""
    images = [split.items[int(index)] for index in spaced(len(split), IMAGES)]
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    zoom = max(1, ZOOMED // max(height, width))
    padded = [np.pad(_grey(image), ((0, height - len(image)), (0, width - image.shape[1]))) for image in images]
    page = Pillow.fromarray(np.hstack([np.pad(one, 1, constant_values=255) for one in padded]))
    kept = io.BytesIO()
    page.resize((page.width * zoom, page.height * zoom), Pillow.Resampling.NEAREST).save(kept, "PNG", optimize=True)
    return kept.getvalue()


def _grey(image: np.ndarray) -> np.ndarray:
    """The one channel of an image without colour: all sets that are shown have none."""
    return image if image.ndim == 2 else image[..., 0]


def _figure(name: str, content: bytes) -> str:
    picture = f'<img alt="Images of {name}" src="data:image/png;base64,{base64.b64encode(content).decode()}">'
    return f'<figure class="strip">{picture}<figcaption>{name}</figcaption></figure>'


def main(benchmark: str, *names: str) -> None:
    """Store strips of some data sets of a benchmark; of all its sets where none is named."""
    for split in open_benchmark(benchmark_config([benchmark, "benchmark.incomplete=allow"], None)).splits():
        own = STORED / benchmark / f"{split.role}-{split.name}.png"
        if not names or split.name in names:
            place = STORED / f"{split.name}.png" if names else own
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(strip(split))


if __name__ == "__main__":
    main(*sys.argv[1:])
