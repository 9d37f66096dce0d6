"""KNN's training features kept as they are searched."""

import pytest
import torch

from openbench.methods.knn import KNN
from openbench.testing.toy import declared, planted


@pytest.mark.parametrize("normalise", [True, False])
def test_scores_are_the_same_to_the_bit_when_prepared(normalise):
    toy = planted()
    method = KNN(k=5, normalise=normalise).fit(toy.for_fit(KNN.needs), None)
    x = declared(toy.ood_test, KNN.needs).without_labels()
    plain = method.score(x)
    assert torch.equal(method.prepare().score(x), plain)
    # Another fit forgets it.
    other = method.fit(declared(toy.val, KNN.needs), None).score(x)
    assert torch.equal(other, KNN(k=5, normalise=normalise).fit(declared(toy.val, KNN.needs), None).score(x))
