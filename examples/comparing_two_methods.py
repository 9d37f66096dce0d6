"""
Is one method better than another?
==================================

Two scores of the same images are not independent, so the overlap of their intervals says little. This page compares
two methods as they should be compared: on the same images, with an interval for the difference.
"""

# %%
# Two methods on the same images
# ------------------------------
# Digits 0 to 5 are in-distribution, 8 and 9 near, noise far; the features are those of a small network.
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import openbench as ob

images, digits = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
rng = np.random.default_rng(0)
inside = rng.permutation(np.flatnonzero(digits <= 5))
train, test = inside[:700], inside[700:]

network = MLPClassifier((64,), max_iter=60, random_state=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)  # sixty epochs are enough here
    network.fit(images[train], digits[train])
(first, second), (first_bias, second_bias) = network.coefs_, network.intercepts_


def features(x):
    """What the last layer reads: (n, 64)."""
    return np.maximum(x @ first + first_bias, 0).astype(np.float32)


results = ob.evaluate_features(
    train=(features(images[train]), digits[train]),
    id_test=(features(images[test]), digits[test]),
    near={"eight": features(images[digits == 8]), "nine": features(images[digits == 9])},
    far={"noise": features(rng.random((400, 64), dtype=np.float32))},
    head=(second.T, second_bias),
    methods=["knn", "msp", "energy"],
    metrics={"replicates": 100, "correction": "simes"},
)
results

# %%
# The difference and its interval
# -------------------------------
# ``difference`` is the AUROC of the first minus that of the second, ``low`` and ``high`` its 95 % interval, ``p`` the
# two-sided p value of DeLong's paired test. ``near`` is the mean over its two sets, which share the ID images: their
# correlation is part of the interval.
compared = results["knn"].compare(results["msp"])
compared

# %%
# An interval that holds 0 means that these images do not tell the two apart. Each further comparison is one more chance
# to be misled: with three methods there are three pairs, so compare p with 0.05 / 3.
pairs = [("knn", "msp"), ("knn", "energy"), ("energy", "msp")]
for one, other in pairs:
    near = results[one].compare(results[other]).set_index("set").loc["near"]
    verdict = "differ" if near["p"] < 0.05 / len(pairs) else "are not told apart"
    print(
        f"{one} and {other} {verdict} on near OOD: "
        f"{100 * near['difference']:+.2f} [{100 * near['low']:+.2f}, {100 * near['high']:+.2f}], p = {near['p']:.2g}"
    )

# %%
# Where they differ
# -----------------
# The same AUROC can come from different curves: look at the left end, where few ID images are flagged.
results.plot("roc")

# %%
# What a threshold would do: share of the ID images that it flags, and of each OOD set that it lets through.
results["knn"].plot("threshold")

# %%
# Image by image
# --------------
# The scores are there as data, too. Of the digit 8, the ten that KNN finds most familiar:
scored = results["knn"].images()
scored.query("set == 'eight'").nsmallest(10, "score")[["set", "score", "prediction"]]
