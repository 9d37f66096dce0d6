"""A detector as an ONNX graph, run by onnxruntime beside torch."""

import numpy as np
import pytest
import torch

from openbench.api.models.outputs import onnx_session
from openbench.detect._export import OUTPUTS
from openbench.detect.detector import Detector
from openbench.errors import NotApplicableError
from openbench.methods.knn import KNN

from .tiny import PREPROCESS, calibrated, detector, images, network

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
NEW = images(40, 2)[0]
X = (torch.from_numpy(NEW).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
METHODS = ("react", "ash", "mds", "vim", "knn", "fdbd")


def run(path):
    """The outputs of a graph by name."""
    return dict(
        zip(OUTPUTS, onnx_session(path, torch.device("cpu")).run(list(OUTPUTS), {"images": X.numpy()}), strict=True)
    )


@pytest.mark.parametrize("method", METHODS)
def test_onnxruntime_computes_what_torch_does(method, tmp_path):
    made = calibrated(method)
    assert made.to_onnx(tmp_path / "detector.onnx") is None  # any number of images
    found, wanted = run(tmp_path / "detector.onnx"), made.predict(NEW)
    spread = np.ptp(made.calibration.scores)
    np.testing.assert_allclose(found["score"], wanted.score, atol=1e-4 * spread)
    # A calibration score may be closer than the two differ: one rank.
    assert np.abs(found["p_value"] - wanted.p_value).max() <= 1.001 / 200
    assert (found["p_value"] == wanted.p_value).mean() >= 0.9
    assert (found["is_ood"] == wanted.is_ood).mean() >= 0.95
    assert found["logits"].argmax(axis=1).tolist() == wanted.label.tolist()


@pytest.mark.parametrize(
    ("place", "by", "message"),
    [
        (0, 0.5, r"score is off by up to 0\.5"),
        (1, 0.1, "p-values or decisions do not follow"),
        (3, 0.01, r"logits is off by up to 0\.01"),
    ],
)
def test_a_graph_that_differs_from_torch_is_not_written(place, by, message, tmp_path, monkeypatch):
    from openbench.detect import _export as export

    made = calibrated("react")
    plain = export.DetectorGraph.forward

    def drifting(self, x):
        outputs = list(plain(self, x))
        outputs[0] = outputs[0] + 1000  # far from 0, as scores may be
        outputs[place] = outputs[place] + (by if torch.jit.is_tracing() else 0.0)
        return tuple(outputs)

    monkeypatch.setattr(export.DetectorGraph, "forward", drifting)
    with pytest.raises(NotApplicableError, match=f"differs from torch: {message}"):
        made.to_onnx(tmp_path / "detector.onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_one_graph_is_refused(tmp_path):
    made = {
        "input gradients": calibrated("odin"),
        "made of other methods": calibrated("knn_msp"),
        "faiss": detector(KNN(k=5, index="faiss_flat")).calibrate(images(30, 1)),
        "groups or weights": detector("mls").calibrate(images(30, 1), groups=["a"] * 30),
        "not a torch.nn.Module": Detector(lambda x: network()(x), "msp", preprocess=PREPROCESS).calibrate(
            images(30, 1)
        ),
    }
    for why, one in made.items():
        with pytest.raises(NotApplicableError, match=why):
            one.to_onnx(tmp_path / "detector.onnx")
    assert not list(tmp_path.iterdir())
