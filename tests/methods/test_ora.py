import numpy as np
import pytest
import torch

from openbench.core.features import Head
from openbench.methods.geometry import ORA

from .problems import KINDS, assert_equal, f, given, problem, scores, y, z


def by_projection(data, over) -> np.ndarray:
    """Every projection made, every angle taken by arccos, class by class and sample by sample."""
    features, labels = f(data.train), y(data.train)
    mean = np.mean([features[labels == c].mean(axis=0) for c in np.unique(labels)], axis=0)
    result = []
    for row, logits in zip(f(data.test), z(data.test), strict=True):
        top = logits.argmax()
        angles = []
        for c in range(len(logits)):
            gap = data.weight[top] - data.weight[c]
            if c != top:
                on = row - (logits[top] - logits[c]) * gap / (gap @ gap)
                a, b = row - mean, on - mean
                angles.append(np.arccos(np.clip(a @ b / np.linalg.norm(a) / np.linalg.norm(b), -1, 1)))
        result.append(-over(angles) / np.pi)
    return np.array(result)


@pytest.mark.parametrize(("aggregation", "over"), [("max", max), ("mean", np.mean), ("min", min)])
@pytest.mark.parametrize(("kind", "n"), [(kind, 40 if kind == "many_classes" else 600) for kind in KINDS])
def test_equals_angles_to_projections(kind, n, aggregation, over):
    data = problem(kind, n)
    assert_equal(scores(ORA(aggregation), data), by_projection(data, over), rtol=5e-6)


def test_classes_with_equal_weights_and_a_feature_at_the_mean_have_angle_zero():
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    train = given(features=[[1.0, 2.0], [3.0, 4.0]], logits=torch.zeros(2, 2), labels=[0, 1])
    twins = [ORA(how).fit(train, Head(weight, torch.tensor([0.0, 5.0]))) for how in ("max", "mean", "min")]
    x = given(features=[[5.0, 1.0], [2.0, 3.0]], logits=[[0.0, 5.0]] * 2)
    assert [method.score(x).tolist() for method in twins] == [[0.0, 0.0]] * 3
    apart = ORA().fit(train, Head(torch.eye(2), torch.zeros(2)))
    assert apart.score(x)[1].item() == 0 > apart.score(x)[0].item()
