"""The probe of a method of one's own: fitted on a few hundred cached rows, it scores a dozen before it is reused.

Its sources do not tell all: it may read a global, a file or an environment variable. What it scored is in the record.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openbench.core.benchmark import Benchmark, Split
from openbench.core.features import FeatureSet
from openbench.core.live import LiveMethod
from openbench.core.method import Method
from openbench.core.request import Mixing, Request, Texts
from openbench.core.search import with_params
from openbench.engine.evaluate import CachedFeatures, Fitting, Scoring, fit, score_split
from openbench.errors import NotApplicableError, OpenbenchError

_FIT, _SCORED = 384, 12  # rows
_ROUNDING = 1e-3  # of the largest score


@dataclass(frozen=True)
class _Few:
    """A few hundred rows of each split, spread over it."""

    features: CachedFeatures

    def __call__(self, split: Split, request: Request) -> FeatureSet:
        return self.features(split, request)[_spread(len(split), _FIT)]

    def scores(self, method: LiveMethod, split: Split) -> NDArray[np.float32]:
        raise NotApplicableError("a method that runs the network itself reads no cached rows")

    def texts(self, texts: Texts) -> Tensor:
        return self.features.texts(texts)

    def mixed(self, split: Split, others: Split, mixing: Mixing) -> Tensor:
        return self.features.mixed(split, others, mixing)[_spread(len(split), _FIT)]


def ask(method: Method, benchmark: Benchmark, features: CachedFeatures) -> list[float]:
    """Return what a method scores a dozen rows of ID test, with its default hyper-parameters; nothing if it cannot.

    Args:
        method: unfitted; it is not changed.
        benchmark: whose rows it is fitted on and scores.
        features: of the network.
    """
    few, device = _Few(features), features.backbone.device
    try:
        fitted = fit(with_params(method, {}), Fitting.of(benchmark, features.backbone.head), few, device)
        scores = score_split(fitted, benchmark.id_test, Scoring(few, device))
    except OpenbenchError:  # e.g. more neighbours than rows
        return []
    return [float(f"{x:.6g}") for x in np.nan_to_num(scores[_spread(len(scores), _SCORED).numpy()])]


def same(then: Sequence[float], now: Sequence[float]) -> bool:
    """Return whether two answers are the same within rounding; nothing is the same as anything."""
    if not then or not now:
        return True
    first, second = np.array(then), np.array(now)
    return first.shape == second.shape and bool(np.abs(first - second).max() <= _ROUNDING * np.abs(first).max())


def _spread(n: int, most: int) -> Tensor:
    return torch.arange(0, n, max(1, -(-n // most)))
