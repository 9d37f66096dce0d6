"""Detectors without a network: features in place of images."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from openbench.__main__ import main
from openbench.detect.detector import Detector
from openbench.detect.saved import load_detector
from openbench.errors import DataError, LeakageError, NotApplicableError
from openbench.methods.knn import KNN

RNG = np.random.default_rng(0)
TRAIN, HELD, NEW, FAR = (RNG.normal(size=(n, 6)) + shift for n, shift in ((200, 2), (99, 2), (500, 2), (50, -2)))


@pytest.fixture(scope="module")
def detector():
    return Detector(None, KNN(k=5)).fit(TRAIN).calibrate(HELD, alpha=0.1)


def test_scores_are_those_of_the_method_and_decisions_keep_the_rate(detector):
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (TRAIN, NEW)]
    expected = NearestNeighbors(n_neighbors=5).fit(unit[0]).kneighbors(unit[1])[0][:, -1]
    found = detector.predict(NEW)
    np.testing.assert_allclose(np.argsort(found.score), np.argsort(expected.astype(np.float32)))
    assert 0.05 < found.is_ood.mean() < 0.15
    assert detector.predict(FAR).is_ood.all()


def test_one_sample_is_scored_as_among_others(detector):
    assert detector.predict(NEW[3]).score == pytest.approx(detector.predict(NEW).score[3], rel=1e-4)


def test_a_classifier_of_the_features_gives_classes_and_prediction_sets():
    W = RNG.normal(size=(3, 6))
    labels = (HELD @ W.T).argmax(axis=1)
    found = Detector(None, "msp", head=(W, None)).calibrate((HELD, labels)).predict(NEW)
    assert found.label.tolist() == (NEW @ W.T).argmax(axis=1).tolist()
    assert found.prediction_set is not None


@pytest.mark.parametrize("head", [None, (RNG.normal(size=(3, 6)), RNG.normal(size=3))])
def test_a_saved_detector_reads_rows_again(head, tmp_path, capsys):
    method = KNN(k=5) if head is None else "vim"
    data = TRAIN if head is None else (TRAIN, (TRAIN @ head[0].T + head[1]).argmax(axis=1))
    before = Detector(None, method, head=head).fit(data).calibrate(HELD, alpha=0.1)
    before.save(tmp_path / "detector")
    after = load_detector(tmp_path / "detector")
    for name in ("score", "p_value", "is_ood", "label"):
        np.testing.assert_array_equal(getattr(after.predict(NEW), name), getattr(before.predict(NEW), name))
    with pytest.raises(DataError, match="takes rows of 6 numbers, found 7"):
        after.predict(np.ones((2, 7)))
    (tmp_path / "a.png").touch()
    assert main(["score", str(tmp_path / "detector"), str(tmp_path / "a.png")]) == 2
    assert "reads features, not images" in capsys.readouterr().err


def test_what_does_not_fit_is_refused(detector, tmp_path):
    with pytest.raises(DataError, match="takes rows of 6 numbers, found 7"):
        detector.predict(np.ones((2, 7)))
    with pytest.raises(DataError, match="features has NaN or infinity in 1 of 2 rows, the first in row 1"):
        detector.predict([[0.0] * 6, [np.nan] * 6])
    with pytest.raises(LeakageError, match=r"20 of 20 images were given to fit"):
        Detector(None, KNN(k=5)).fit(TRAIN).calibrate(TRAIN[:20])
    with pytest.raises(NotApplicableError, match="there is no network, only features — leave out onnx"):
        detector.save(tmp_path / "detector", network="onnx")
    with pytest.raises(DataError, match="head: W has 4 columns for 6 features"):
        Detector(None, "msp", head=(np.ones((3, 4)), None)).calibrate(HELD)
    with pytest.raises(NotApplicableError, match=r"'react' reads the head, .* has no classifier — pass one, head="):
        Detector(None, "react").fit(TRAIN)
    with pytest.raises(NotApplicableError, match="method 'odin' reads logits, input gradients"):
        Detector(None, "odin").fit(TRAIN)
