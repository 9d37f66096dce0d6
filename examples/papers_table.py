"""A paper's table
===============

A *study* is a file that names the runs of a table, its rows and columns, and where the published figures stand.
openbench has those of its field's papers; a table of your own is one too.
"""

# %%
import shlex
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from openbench.__main__ import main

folder = Path(tempfile.mkdtemp())
mine, tables = folder / "mine.yaml", folder / "tables"


def openbench(command: str) -> None:
    assert main(shlex.split(command)) == 0


# %%
# One that needs no images
# ------------------------
# ``list study`` names all. This one is a problem with known densities, so that its scores are ideal and no network is
# run: ours beside the paper's figures, and a mark that says what the difference means.
openbench("study reject_option/synthetic --table")

# %%
# The others name runs. Without ``--run`` or ``--table`` a study says what it needs, what is done and what is to do:
# ``study openood_v1.5/table1 --columns CIFAR-10``.

# %%
# A table of your own
# -------------------
# The words of a sweep make the file: ``openset_digits`` has six digits that the network knows, and four that it does
# not. One seed and two epochs keep this lesson short; ``seed=0,1,2`` would give means and standard deviations.
settings = "+benchmark=openset_digits method=msp,knn seed=0 training.recipe.epochs=2"
openbench(f"new study {mine.as_posix()} -m {settings}")
text = mine.read_text(encoding="utf-8")
print(text)

# %%
# The file is yours to edit. This benchmark has no far sets, so that another column is of more use.
text = text.replace("far auroc: far.auroc", "near FPR@95: near.fpr95")
mine.write_text(text, encoding="utf-8")

# %%
# What is to do. Nothing has been computed yet, so that nothing is known of the time.
openbench(f"study {mine.as_posix()}")

# %%
# ``--run`` makes the runs that are missing; killed, the same command goes on. One network is trained, and both methods
# read its features.
openbench(f"study {mine.as_posix()} --run")

# %%
# The table, and the same as files for a paper.
openbench(f"study {mine.as_posix()} --table --to {tables.as_posix()}")

# %%
print(next(tables.rglob("*.tex")).read_text(encoding="utf-8"))

# %%
# The picture that lies beside them:
picture = plt.imread(next(tables.rglob("*.png")))
plt.figure(figsize=(picture.shape[1] / 150, picture.shape[0] / 150))
plt.imshow(picture)
plt.axis("off")
plt.tight_layout(pad=0)
plt.show()
