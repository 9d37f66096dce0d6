import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from openbench.core.features import Head
from openbench.methods.shaping import ASH, SCALE

from .problems import assert_equal, f, given, problem, scores


@pytest.mark.parametrize("percentile", [0, 65, 85, 90, 96])  # 96: one of 24 is kept
@pytest.mark.parametrize("kind", ["rectified", "hot", "two_classes", "many_classes", "dead"])
def test_equals_scaling_sample_by_sample(kind, percentile):
    data = problem(kind)
    scaled = []
    for row in f(data.test):
        kept = np.sort(row)[int(np.round(24 * percentile / 100)) :]
        scaled.append(row * np.exp(row.sum() / kept.sum()))
    expected = -logsumexp(np.array(scaled) @ data.weight.T + data.bias, axis=1)
    assert_equal(scores(SCALE(percentile), data), expected)


@pytest.mark.parametrize("shift", [-10.0, -3.0, -1.0, 0.0])
@pytest.mark.parametrize("percentile", [65, 85, 95])
def test_signed_features_whose_kept_part_cancels_have_finite_scores(shift, percentile):
    generator = torch.Generator().manual_seed(0)
    features = shift + torch.randn(2000, 64, generator=generator)
    head = Head(torch.randn(5, 64, generator=generator), torch.zeros(5))
    x = given(features=features)
    for method in (SCALE(percentile), ASH(variant="s", percentile=percentile)):
        assert method.fit(None, head).score(x).isfinite().all()
