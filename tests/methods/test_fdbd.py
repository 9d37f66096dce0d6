import numpy as np
import pytest
import torch

from openbench.core.features import Head
from openbench.methods.geometry import FDBD

from .problems import KINDS, assert_equal, f, problem, scores, z


def by_loops(data, distance: bool) -> np.ndarray:
    """Each boundary's distance on its own: the point–plane distance of f to {w_c·f + b_c = w_ŷ·f + b_ŷ}."""
    mean = f(data.train).mean(axis=0) if distance else 0.0
    result = []
    for row, logits in zip(f(data.test), z(data.test), strict=True):
        top = logits.argmax()
        planes = [
            abs(logits[top] - logits[c]) / np.sqrt(((data.weight[top] - data.weight[c]) ** 2).sum())
            for c in range(len(logits))
            if c != top
        ]
        result.append(-np.sum(planes) / np.linalg.norm(row - mean))
    return np.array(result)


@pytest.mark.parametrize("distance", [True, False])
@pytest.mark.parametrize(("kind", "n"), [(kind, 40 if kind == "many_classes" else 600) for kind in KINDS])
def test_equals_distances_to_planes(kind, n, distance):
    data = problem(kind, n)
    assert_equal(scores(FDBD(distance), data), by_loops(data, distance), rtol=2e-5)


def test_classes_with_equal_weights_have_no_boundary():
    data = problem()
    weight, bias = data.head.weight.clone(), data.head.bias.clone()
    weight[5], bias[5] = weight[0], -100.0
    twins = FDBD().fit(data.train, Head(weight, bias)).score(data.test)
    assert bool(twins.isfinite().all())
    assert torch.all(twins <= 0)
