"""Slow, literal definitions to compare the metrics with: every pair, every threshold, no shared code."""

import numpy as np


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


def random_pair(seed, n=60, m=40, decimals=None):
    """Overlapping scores; with `decimals`, heavily tied ones."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=n), rng.normal(size=m) + 0.8
    return (a, b) if decimals is None else (a.round(decimals), b.round(decimals))
