"""Other banks of KNN than the exact one."""

import faiss
import numpy as np
import pytest
import torch

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.detect.saved import load_detector
from openbench.errors import MethodError
from openbench.methods.knn import KNN

from .tiny import Tiny, detector, images

NEW = images(40, 2)[0]


@pytest.mark.parametrize("index", ["exact", "ivf"])
def test_a_bank_scores_the_same_to_the_bit_after_loading_and_image_by_image(tmp_path, index):
    made = detector(KNN(k=5, index=index, precision="float16")).calibrate(images(99, 1), alpha=0.1)
    made.save(tmp_path / "made")
    loaded = load_detector(tmp_path / "made", model=Tiny())
    found = made.predict(NEW)
    assert loaded.predict(NEW).score.tobytes() == found.score.tobytes()
    assert loaded.predict(NEW).rows() == found.rows()
    # The calibration scores come from the same bank: a calibration image has its own score again.
    assert np.sort(made.predict(images(99, 1)[0]).score).tolist() == np.sort(made.calibration.scores).tolist()


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
