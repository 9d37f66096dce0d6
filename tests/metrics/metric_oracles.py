"""Slow, literal definitions to compare the metrics with: every pair, every threshold, no shared code."""

from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from openbench.metrics.selective.risk import TprFpr


def thresholds(a, b):
    """Every threshold that matters; the first accepts nothing."""
    pooled = np.unique(np.concatenate([a, b]))
    return np.concatenate([[pooled[0] - 1.0], pooled])


def auroc(a, b):
    return np.mean((b[:, None] > a) + 0.5 * (b[:, None] == a))


def fpr95(a, b):
    return min(np.mean(a > t) for t in thresholds(a, b) if np.mean(b > t) >= 0.95)


def fpr95_id_positive(a, b):
    return min(np.mean(b <= t) for t in thresholds(a, b) if np.mean(a <= t) >= 0.95)


def detection_error(a, b):
    return min(0.5 * (np.mean(a > t) + np.mean(b <= t)) for t in thresholds(a, b))


def allowed(constraint, tpr, fpr):
    """Whether operating points satisfy a constraint, in its own words."""
    if isinstance(constraint, TprFpr):
        return (tpr >= constraint.tpr) & (fpr <= constraint.fpr)
    right, wrong = (1 - constraint.prior) * tpr, constraint.prior * fpr
    return (tpr >= constraint.recall) & (right / np.maximum(right + wrong, 1e-12) >= constraint.precision)


def random_pair(seed, n=60, m=40, decimals=None):
    """Overlapping scores; with `decimals`, heavily tied ones."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n), rng.normal(size=m) + 0.8
    return (a, b) if decimals is None else (a.round(decimals), b.round(decimals))


def class_scores(kind, probabilities, seed=0):
    """(n, c) class scores of a kind of prediction set, less 1, with one uniform per row."""
    p = np.asarray(probabilities, dtype=float)
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    drawn = kind.ascending(ranked)
    if kind.draws:
        drawn = drawn - np.random.default_rng(seed).random((len(p), 1)) * ranked
    found = np.empty_like(drawn)
    np.put_along_axis(found, order, drawn, axis=1)
    return found


# The synthetic problem of the reject-option paper: three classes on a line and one OOD bump. The published table
# follows from an OOD mean of 2; the text prints 3, which is a second case here.
WEIGHTS, MEANS, OOD_DEVIATION = np.array([0.3, 0.3, 0.4]), np.array([-1.0, 1.0, 3.0]), np.sqrt(0.2)


class TwoScores(NamedTuple):
    """Conditional risk r of the Bayes classifier, and likelihood ratio g = p_O / p_I."""

    risk: np.ndarray
    separation: np.ndarray


# The three single scores that the paper compares.
SCORES = {
    "A": lambda pair: pair.separation,
    "B": lambda pair: pair.risk + 0.2 * pair.separation,
    "C": lambda pair: pair.risk,
}


def densities(x, mean=2.0):
    """Class densities (weighted), (3, n), and the OOD density (n,)."""
    return WEIGHTS[:, None] * norm.pdf(x, MEANS[:, None]), norm.pdf(x, mean, OOD_DEVIATION)


def scores(x, mean=2.0):
    """The two ideal scores at inputs x."""
    classes, ood = densities(x, mean)
    return TwoScores(1 - classes.max(0) / classes.sum(0), ood / classes.sum(0))


def sample(n, m, seed, mean=2.0):
    """Both scores of n ID inputs, their losses, and both scores of m OOD inputs."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=WEIGHTS)
    x = rng.normal(MEANS[y])
    losses = (densities(x, mean)[0].argmax(0) != y).astype(float)
    return scores(x, mean), losses, scores(rng.normal(mean, OOD_DEVIATION, m), mean)


class Integrals(NamedTuple):
    """The curves of a score on the whole distribution."""

    tpr: np.ndarray
    fpr: np.ndarray
    risk: np.ndarray


def integrals(score, mean=2.0, points=200_001):
    """Quadrature on a grid of the input, sorted by a function of both scores."""
    x = np.linspace(-9, 13, points)
    (classes, ood), dx = densities(x, mean), x[1] - x[0]
    wrong, ids = classes.sum(0) - classes.max(0), classes.sum(0)
    order = np.argsort(score(scores(x, mean)))
    tpr = np.cumsum(ids[order]) * dx
    return Integrals(tpr, np.cumsum(ood[order]) * dx, np.cumsum(wrong[order]) * dx / tpr)
