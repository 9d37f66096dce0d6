import numpy as np
import pytest
import torch
from scipy.special import logit, softmax
from scipy.stats import entropy

from openbench.core.features import FeatureSet
from openbench.methods.trained import Ensemble

from .problems import assert_equal


def members(n: int = 50, m: int = 4, c: int = 6, scale: float = 2.0) -> FeatureSet:
    logits = scale * torch.randn(n, m, c, generator=torch.Generator().manual_seed(0))
    return FeatureSet({}, {"members": logits[..., None]})


@pytest.mark.parametrize("c", [2, 6, 1000])
def test_equals_probabilities_averaged_sample_by_sample(c):
    x = members(c=c)
    p = softmax(x.map("members")[..., 0].double().numpy(), axis=2)
    mean = np.array([sample.mean(axis=0) for sample in p])
    assert_equal(Ensemble().score(x), -logit(mean.max(axis=1)))
    assert_equal(Ensemble("entropy").score(x), entropy(mean, axis=1))
    apart = [np.mean([entropy(one, mean[i]) for one in sample]) for i, sample in enumerate(p)]
    assert_equal(Ensemble("disagreement").score(x), apart)
    assert_equal(Ensemble().class_scores(x), 1 - mean)


def test_scores_differ_where_probabilities_round_to_one():
    lead = torch.linspace(20, 700, 500)
    one = torch.stack([torch.zeros(500), lead], dim=1)
    x = FeatureSet({}, {"members": torch.stack([one, one], dim=1)[..., None]})
    torch.testing.assert_close(Ensemble().score(x), -lead)


def test_members_that_agree_are_one_network_and_disagree_in_nothing():
    logits = torch.randn(20, 1, 6, generator=torch.Generator().manual_seed(1))
    x = FeatureSet({}, {"members": logits.expand(20, 5, 6)[..., None]})
    assert_equal(Ensemble().score(x), -logit(softmax(logits[:, 0].double().numpy(), axis=1).max(axis=1)))
    assert float(Ensemble("disagreement").score(x).abs().max()) < 1e-7
