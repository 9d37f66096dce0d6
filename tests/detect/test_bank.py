"""Other banks of KNN than the exact one."""

import faiss
import numpy as np
import pytest
import torch

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.errors import MethodError
from openbench.methods.knn import KNN


def test_float16_takes_half_the_room_and_moves_scores_by_its_rounding():
    features = torch.randn(400, 32, generator=torch.Generator().manual_seed(0)) * 1e5  # beyond float16's numbers
    bank, x = FeatureSet({Field.FEATURES: features[:300]}), FeatureSet({Field.FEATURES: features[300:]})
    exact = KNN(k=10).fit(bank, None).score(x)
    half = KNN(k=10, precision="float16").fit(bank, None)
    assert half.bank_.nbytes * 2 == bank.features.nbytes
    # Each of two unit vectors is within 2**-11 of itself; the distance d then moves by as much, d² by 2 d times that.
    assert float((half.score(x) - exact).abs().max()) < 2 * float(exact.max().sqrt()) * 2**-11
    assert not torch.equal(half.score(x), exact)
    lists = KNN(k=10, index="ivf", probes=1000, precision="float16").fit(bank, None)
    np.testing.assert_allclose(lists.score(x), half.score(x), rtol=1e-5)
    assert {faiss.downcast_index(lists.faiss_).code_size, half.bank_[0].nbytes} == {32 * 2}  # bytes per image
    with pytest.raises(MethodError, match=r"KNN.precision — found 'float16', allowed: float32 where normalise is F"):
        KNN(k=10, precision="float16", normalise=False)
