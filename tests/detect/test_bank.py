"""Other banks than the exact one: the same after loading, measured beside it, refused where there is none."""

import faiss
import numpy as np
import pytest
import torch

from openbench.core.features import FeatureSet
from openbench.core.request import Field
from openbench.detect.calibration import Terms
from openbench.detect.detector import load_detector
from openbench.detect.from_benchmark import Sides, change, with_bank
from openbench.errors import ConfigError, MethodError
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP

from .tiny import Tiny, detector, images

NEW = images(40, 2)[0]


@pytest.mark.parametrize("bank", ["float16", "ivf", "ivf_float16"])
def test_a_bank_scores_the_same_to_the_bit_after_loading_and_image_by_image(tmp_path, bank):
    made = detector(with_bank(KNN(k=5), bank, "knn")).calibrate(images(99, 1), alpha=0.1)
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
    with pytest.raises(MethodError, match=r"KNN.precision — found 'float16' — allowed: float32 where normalise is F"):
        KNN(k=10, precision="float16", normalise=False)


def test_the_change_is_that_of_p_values_each_calibrated_on_its_own_scores():
    held_out = np.arange(9.0)
    exact = Sides(held_out, np.array([0.5, 3.5]), np.array([7.5, 8.5]))
    # One ID image moves up by two of ten ranks, one OOD image down by seven, past both ID images.
    used = Sides(held_out + 10, np.array([12.5, 13.5]), np.array([10.5, 18.5]))
    found = change("ivf", exact, used, Terms(alpha=0.2))
    assert (found.auroc_exact, found.auroc) == (1.0, 0.5)
    assert found.p_value_change == pytest.approx((0.2 + 0 + 0.7 + 0) / 4)
    assert found.p_value_change_largest == pytest.approx(0.7)
    assert (found.decisions_changed, found.images) == (0.25, 4)


def test_methods_without_a_bank_and_two_ways_of_saying_it_are_refused():
    assert with_bank(MSP(), "exact", "msp") == MSP()
    with pytest.raises(ConfigError, match="bank=ivf: method 'msp' keeps no bank"):
        with_bank(MSP(), "ivf", "msp")
    with pytest.raises(ConfigError, match=r"bank=ivf: method.index=hnsw is given too"):
        with_bank(KNN(index="hnsw"), "ivf", "knn")
