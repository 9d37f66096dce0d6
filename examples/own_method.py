"""
A method of your own
====================

A score for out-of-distribution detection is a small class: it says what it reads, learns from training features, and
scores others. This page writes one, checks it, and compares it with two published ones, in seconds and without a GPU.
"""

# %%
# Features to work on
# -------------------
# Handwritten digits 0 to 5 are in-distribution; 8 and 9 are near, noise is far, 6 and 7 are there for tuning. A small
# network of scikit-learn makes the features: any others will do, as arrays.
import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

import openbench as ob
from openbench.core.method import Method
from openbench.core.request import Field, Request, Role

images, digits = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
rng = np.random.default_rng(0)
inside = rng.permutation(np.flatnonzero(digits <= 5))
train, val, test = inside[:600], inside[600:750], inside[750:]

network = MLPClassifier((64,), max_iter=60, random_state=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)  # sixty epochs are enough here
    network.fit(images[train], digits[train])
(first, second), (first_bias, second_bias) = network.coefs_, network.intercepts_


def features(x):
    """What the last layer reads: (n, 64)."""
    return np.maximum(x @ first + first_bias, 0).astype(np.float32)


# %%
# The method
# ----------
# The distance to the nearest class mean. ``needs`` says what is read, and nothing else is handed over; what ``fit``
# learns has a name that ends in ``_``; scores are larger for what looks more out-of-distribution.


@dataclass
class NearestMean(Method):
    """Distance to the nearest class mean.

    score(x) = min_c ‖f − μ_c‖_p.

    Args:
        p: order of the norm.

    Reference: an example, NOT PUBLISHED, 2026.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "an example, NOT PUBLISHED, 2026"

    p: float = 2.0

    def fit(self, train, head):
        """Learn the class means."""
        onehot = torch.nn.functional.one_hot(train.labels).to(train.features)
        self.means_ = onehot.T @ train.features / onehot.sum(dim=0)[:, None]
        return self

    def score(self, x):
        """Return the distances (n,)."""
        return torch.cdist(x.features, self.learnt("means_").to(x.features), p=self.p).min(dim=1).values


# %%
# Is it right?
# ------------
# These are the checks that every method of openbench passes: the sign, the batch, the declared inputs, and more. What
# is wrong is told all at once, with the lines.
print(ob.testing.check_method(NearestMean))

# %%
# How good is it?
# ---------------
# An object goes wherever the name of a method goes.
results = ob.evaluate_features(
    train=(features(images[train]), digits[train]),
    id_val=(features(images[val]), digits[val]),
    id_test=(features(images[test]), digits[test]),
    ood_val=features(images[np.isin(digits, (6, 7))]),
    near={"eight": features(images[digits == 8]), "nine": features(images[digits == 9])},
    far={"noise": features(rng.random((400, 64), dtype=np.float32))},
    head=(second.T, second_bias),
    methods={"nearest_mean": NearestMean(), "nearest_mean_l1": NearestMean(p=1.0), "knn": "knn", "msp": "msp"},
    metrics={"replicates": 100, "correction": "simes"},
)
results.table()[["near_auroc", "near_auroc_low", "near_auroc_high", "far_auroc", "tuned"]]

# %%
# Where the scores of the digits and of the others lie:
results["nearest_mean"].plot("scores")

# %%
# From here to a benchmark
# ------------------------
# ``python -m openbench new method nearest_mean`` writes this class, its config and its test as files, and prints the
# command that runs it on a benchmark.
