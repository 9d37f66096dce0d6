"""Bring your own images
=====================

Folders of images become a benchmark: ID images with a subfolder per class, OOD images in any folder. The split, the
lists and the config are written for you, and what leaks is refused.
"""

# %%
# Photographs that you have; here they are digits of scikit-learn, written as files. The classes 0, 1 and 2 are ID, the
# digit 8 is near OOD, and the digit 6 is what methods may be tuned on.
import shlex
import tempfile
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

from openbench.__main__ import main

folder = Path(tempfile.mkdtemp())
place = folder.as_posix()  # with slashes on every system
digits = load_digits()
for number, (picture, label) in enumerate(zip(digits.images, digits.target, strict=True)):
    kind = f"photos/class_{label}" if label < 3 else {6: "sixes", 8: "eights"}.get(int(label))
    if kind:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray((picture * 15.9).astype("uint8")).resize((16, 16)).save(folder / kind / f"{number}.png")


def openbench(command: str) -> None:
    assert main(shlex.split(command)) == 0


# %%
# A benchmark of them. ID images are split 60 : 10 : 30 within each class; which image went where is written down, so
# that the split stays when images are added.
openbench(
    f"data new mine --id {place}/photos --near eights={place}/eights --ood-val {place}/sixes "
    f"--side 16 --epochs 3 --backbone resnet8_digits --to {place}/mine"
)

# %%
# Before anything is computed: counts, classes on two sides, the same image on two sides.
openbench(f"check --config-dir {place}/mine +benchmark=mine")

# %%
# And the table. The network is trained first, as it has no weights yet.
openbench(f"run --config-dir {place}/mine +benchmark=mine method=knn method.k=5 tune=none")
