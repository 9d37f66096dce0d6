"""The first table
===============

One command trains a small network on embedded images, extracts its features, tunes a method on validation data, and
prints a table. Nothing is downloaded. Lines that begin with ``openbench(`` are what you type after
``python -m openbench`` in a terminal.
"""

# %%
import shlex

from openbench.__main__ import main


def openbench(command: str) -> None:
    assert main(shlex.split(command)) == 0


# %%
# The benchmark ``digits`` has handwritten digits 0 to 5 as in-distribution (ID) data. Near OOD are the digits 8 and 9;
# far OOD are patches of photographs, and noise. 6 and 7 are validation OOD: methods are tuned on them, and on nothing
# else. Four epochs are few; they keep this lesson short.
openbench("run +benchmark=digits method=knn training.recipe.epochs=4")

# %%
# Read it from the top. The first lines say what was run and, of what was there already, who made it. AUROC is the
# probability that an OOD image gets a larger score than an ID image, with its 95 % interval over images. FPR@95 is the
# share of ID images that are flagged where 95 % of the OOD images are found. ``near`` and ``far`` are means over sets.
#
# A second method uses the same network and the same features: its cost is that of its score.
openbench("run +benchmark=digits method=vim training.recipe.epochs=4")

# %%
# Typed again, nothing is computed: the record is there, and the first line says so.
openbench("run +benchmark=digits method=vim training.recipe.epochs=4")

# %%
# All that is known about the last run: every setting, every trial, what made it, and the command that verifies it.
openbench("show record latest --view selective")

# %%
# A table over all records, best near AUROC first.
openbench("leaderboard --view board")

# %%
# What else there is: ``list method``, ``list benchmark``, ``list backbone``, and ``show method vim`` for a method's
# formula, parameters and source.
openbench("show method vim")
