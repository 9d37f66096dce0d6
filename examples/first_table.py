"""The first table
===============

Six lines of Python: a network, a benchmark, three methods, and a table. Nothing is downloaded. After this lesson you
can read the table, get its numbers as data, and do the same from a terminal.
"""

# %%
# The benchmark ``digits`` has handwritten digits 0 to 5 as in-distribution (ID) data. Near OOD are the digits 8 and 9;
# far OOD are patches of photographs, and noise. 6 and 7 are validation OOD: methods are tuned on them, and on nothing
# else. The network is trained first; four epochs are few, and keep this lesson short.
import openbench as ob

results = ob.evaluate(
    "resnet8_digits", benchmark="digits", methods=["msp", "knn", "vim"], overrides=["training.recipe.epochs=4"]
)
print(results)

# %%
# AUROC is the probability that an OOD image gets a larger score than an ID image, with its 95 % interval over images.
# FPR@95 is the share of ID images that are flagged where 95 % of the OOD images are found. ``near`` and ``far`` are
# means over sets. All methods score one extraction of features, so a further method costs no forward pass.
#
# The numbers are pandas: here and in all of Python they are fractions in [0, 1].
print(results.table()[["near_auroc", "near_auroc_low", "near_auroc_high", "far_auroc", "tuned"]])

# %%
# One method: its metrics by set and group, and how much it differs from another one on the same images.
print(results["knn"].metrics["near"]["auroc"])
print(results["knn"].compare(results["msp"]))

# %%
# Your own network stands in the place of the name, with the transform of its images: ``ob.evaluate(model,
# benchmark="cifar10", methods=["msp", "knn"], preprocess=transform)``. Where images of a benchmark are missing,
# ``incomplete="allow"`` goes on with those that are here, and the table says so.
#
# The same in a terminal, where a line that begins with ``openbench(`` is what you type after ``python -m openbench``.
# The record is there already: nothing is computed.
import shlex

from openbench.__main__ import main


def openbench(command: str) -> None:
    assert main(shlex.split(command)) == 0


openbench("run +benchmark=digits method=vim training.recipe.epochs=4")

# %%
# A table over all records, best near AUROC first.
openbench("leaderboard --view board")

# %%
# What else there is: ``list method``, ``list benchmark``, ``list backbone``, and ``show method vim`` for a method's
# formula, parameters and source. ``show record latest`` has every setting and trial of the last run.
openbench("show method vim")
