"""Detectors on disk: what comes back is the same to the bit, and what was changed is refused."""

import json
import pickle
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from openbench.__main__ import main
from openbench.config.build import build
from openbench.config.folders import shipped
from openbench.core.method import Method
from openbench.core.request import Request
from openbench.detect.detector import Detector
from openbench.detect.network import NetworkGraph
from openbench.detect.saved import (
    MANIFEST,
    ONNX,
    TENSORS,
    _of_graph,
    licences,
    load_detector,
    packed_method,
    refuse_unsavable,
)
from openbench.digest import bytes_sha256
from openbench.errors import CheckpointError, ConfigError, LeakageError, NotApplicableError, NotFittedError
from openbench.methods.knn import KNN
from openbench.storage.checksum import KEY, stated

from .tiny import CLASSES, PREPROCESS, Tiny, calibrated, detector, images, network

NEW = images(30, 2)[0]
SHIPPED = "tiny_resnet"


def same(a, b, given=NEW) -> bool:
    first, second = a.predict(given), b.predict(given)
    return first.score.tobytes() == second.score.tobytes() and first.rows() == second.rows() and a.promise == b.promise


def test_scores_are_the_same_to_the_bit_from_a_folder_that_was_moved_and_from_a_zip(saved, tmp_path):
    made, path = saved
    shutil.copytree(path, tmp_path / "moved")
    assert same(made, load_detector(tmp_path / "moved"))
    digest = made.save(tmp_path / "detector.zip")
    loaded = load_detector(tmp_path / "detector.zip", digest=digest)
    assert same(made, loaded)
    assert loaded.about["licences"]["weights"].startswith("not known")  # random weights are not the released ones
    with pytest.raises(CheckpointError, match="another detector"):
        load_detector(path, digest="0" * 64)
    with pytest.raises(CheckpointError, match=r"has no 'detector.json' — give the folder or the zip"):
        load_detector(tmp_path)


def test_the_licence_of_released_weights_is_told_of_these_only():
    node = {**shipped("backbone", "resnet20_cifar10"), "_name_": "resnet20_cifar10"}
    told = licences(node, "cifar10")
    assert told["weights"].startswith("ResNet-20, CIFAR-10: BSD 2-clause (https://github.com/")
    assert told["images"].startswith("CIFAR-10")
    assert licences({**node, "sha256": None, "precision": "bf16"})["weights"] == told["weights"]
    assert licences({**node, "weights": "mine.pt"})["weights"].startswith("not known to openbench")


def test_a_loaded_detector_can_be_calibrated_again_and_still_knows_its_training_images(saved):
    loaded = load_detector(saved[1])
    with pytest.raises(LeakageError, match="3 of 3 images"):
        loaded.calibrate(images(120, 0)[0][:3], alpha=0.5)
    assert loaded.calibrate(images(30, 5), alpha=0.2).predict(NEW).alpha == 0.2


# One method for each kind of thing that methods learn; what it learns is of that kind.
KINDS = {
    "vim": "vim",  # tensors
    "react": "react",  # a head
    "gram": "gram",  # mappings of them
    "ecod": "ecod",  # a value with fields
    "combood": "combood",  # parts that are methods, one of which holds a bank
    "grood": "grood",  # a value of its own module
    "ivf": KNN(k=5, index="ivf", precision="float16"),  # an index of faiss
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_method_learnt_comes_back_with_a_network_of_ones_own(kind, tmp_path):
    made = detector(KINDS[kind]).calibrate(images(199, 1), alpha=0.1)
    made.save(tmp_path / "made")
    torch.manual_seed(8)
    loaded = load_detector(tmp_path / "made", model=Tiny())
    assert same(made, loaded)
    # A calibration image has its own score again.
    assert np.sort(made.predict(images(199, 1)[0]).score).tolist() == np.sort(made.calibration.scores).tolist()
    # Products over a transposed matrix round otherwise on some processors.
    for name, value in vars(made.learnt[1]).items():
        assert not torch.is_tensor(value) or vars(loaded.learnt[1])[name].stride() == value.stride()


def test_the_class_of_a_network_is_asked_for_and_another_is_refused(tmp_path):
    calibrated("vim").save(tmp_path / "vim")
    with pytest.raises(CheckpointError, match=r"'tiny'.*pass one.*: load_detector\(path, model=MyNet"):
        load_detector(tmp_path / "vim")

    class Other(Tiny):
        def forward(self, x):
            return super().forward(2 * x)

    with pytest.raises(CheckpointError, match="for a fixed input differ"):
        load_detector(tmp_path / "vim", model=Other())


def test_a_network_of_ones_own_comes_back_as_onnx_without_its_class(tmp_path):
    pytest.importorskip("onnxruntime", reason="extra onnx")
    for method in ("vim", "react", "knn_msp"):
        made = calibrated(method)
        made.save(tmp_path / method, network="onnx")
        loaded = load_detector(tmp_path / method)
        first, second = made.predict(NEW), loaded.predict(NEW)
        np.testing.assert_allclose(second.score, first.score, rtol=1e-4, atol=1e-5)
        assert np.abs(first.p_value - second.p_value).max() <= 1.01 / 200  # a step
        assert loaded.calibrate(images(30, 5), alpha=0.2).predict(NEW).alpha == 0.2
    with pytest.raises(ConfigError, match="the detector has 'tiny' — leave it out"):
        load_detector(tmp_path / "vim", model=Tiny())
    graph = tmp_path / "vim" / ONNX
    whole = graph.read_bytes()
    graph.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    with pytest.raises(CheckpointError, match=rf"'{ONNX}' has changed"):
        load_detector(tmp_path / "vim")
    with pytest.raises(NotApplicableError, match="reads input gradients"):
        calibrated("odin").save(tmp_path / "odin", network="onnx")
    with pytest.raises(ConfigError, match=r"save.network.*allowed: weights, onnx"):
        made.save(tmp_path / "odin", network="pt2")
    assert not (tmp_path / "odin").exists()


def test_a_network_without_classifier_comes_back_as_onnx(tmp_path):
    pytest.importorskip("onnxruntime", reason="extra onnx")
    model = Tiny()
    model.head = torch.nn.Identity()
    made = Detector(model, "knn", preprocess=PREPROCESS, classes=CLASSES).fit(images(120, 0))
    made.calibrate(images(99, 1)[0]).save(tmp_path / "headless", network="onnx")
    loaded = load_detector(tmp_path / "headless")
    np.testing.assert_allclose(loaded.predict(NEW).score, made.predict(NEW).score, rtol=1e-4, atol=1e-5)
    assert not loaded.learnt[0].classifies


def test_a_graph_that_differs_from_torch_is_not_written(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="extra onnx")
    plain = NetworkGraph.forward

    def drifting(self, x):
        logits, features = plain(self, x)
        return logits + (0.1 if torch.jit.is_tracing() else 0.0), features

    monkeypatch.setattr(NetworkGraph, "forward", drifting)
    with pytest.raises(NotApplicableError, match=r"cannot be saved as ONNX \(logits is off by up to 0\.1\)"):
        calibrated("vim").save(tmp_path / "made", network="onnx")
    assert not list(tmp_path.iterdir())


PART = SimpleNamespace(name="tiny", architecture="tiny", preprocess={"resize": 8, "crop": 8}, own_preprocess="")


def test_a_graph_that_names_other_files_is_refused():
    pytest.importorskip("onnxruntime", reason="extra onnx")
    for content, message in (
        (b"\x0a\x88\x00location\x12\x0b/etc/passwd", "names other files"),
        (b"\x0a\x03abc", "cannot be read by onnxruntime"),
    ):
        with pytest.raises(CheckpointError, match=message):
            _of_graph(content, PART, None, {})


@pytest.mark.parametrize(
    ("calibration", "given"),
    [
        ({"groups": ["a", "b", "b"] * 33, "delta": 0.2, "coverage": 0.7}, {"groups": "b"}),
        ({"weights": np.linspace(1, 2, 99)}, {"weights": 1.5}),
    ],
)
def test_groups_weights_and_the_terms_come_back(tmp_path, calibration, given):
    made = detector("mls").calibrate(images(99, 1)[0], alpha=0.1, **calibration)
    made.save(tmp_path / "made")
    loaded = load_detector(tmp_path / "made", model=Tiny())
    assert loaded.predict(NEW, **given).rows() == made.predict(NEW, **given).rows()
    assert loaded.calibration.terms == made.calibration.terms


@dataclass
class Mine(Method):
    """A method that openbench does not ship."""

    needs = Request()
    reference = "none"
    scale: float = 1.0

    def score(self, x):
        return -self.scale * x.logits.amax(dim=1)


def test_a_method_and_a_transform_of_ones_own_are_asked_for(tmp_path):
    def prepare(image):
        return (torch.from_numpy(np.array(image.resize((8, 8)))).permute(2, 0, 1) / 255 - 0.5) / 0.25

    made = Detector(network(), Mine(2.0), preprocess=prepare, classes=CLASSES).calibrate(images(30, 1), alpha=0.1)
    made.save(tmp_path / "mine")
    with pytest.raises(CheckpointError, match=r"preprocess=transform"):
        load_detector(tmp_path / "mine", model=Tiny())
    with pytest.raises(CheckpointError, match=r"method=MyMethod"):
        load_detector(tmp_path / "mine", model=Tiny(), preprocess=prepare)
    big = [Image.fromarray(NEW[0]).resize((20, 20))]
    assert same(made, load_detector(tmp_path / "mine", model=Tiny(), preprocess=prepare, method=Mine(2.0)), big)
    with pytest.raises(CheckpointError, match=r"scale.*3\.0"):
        load_detector(tmp_path / "mine", model=Tiny(), preprocess=prepare, method=Mine(3.0))


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(NotFittedError, match="before calibrate"):
        detector().save(tmp_path / "a")
    function = Detector(lambda x: network()(x), "msp", preprocess=PREPROCESS).calibrate(images(30, 1))
    with pytest.raises(NotApplicableError, match="cannot be saved"):
        function.save(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        calibrated().save(tmp_path / "b")
    assert [place.name for place in tmp_path.iterdir()] == ["b"]


def test_a_network_with_the_head_of_its_training_comes_back_and_one_with_further_parts_is_refused(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))
    words = ["fit", "+benchmark=openset_digits", "training.recipe.epochs=1", "training.recipe.batch_size=256"]
    for training, code in (("arpl", 0), ("rotpred", 2)):
        assert main([*words, f"training={training}", f"out={tmp_path / training}"]) == code
    assert "does not build it — save it as a graph: network=onnx" in capsys.readouterr().err
    assert main([*words, "training=rotpred", "method=rotpred", f"out={tmp_path / 'rotpred'}"]) == 2
    assert "and network=onnx: a graph has no maps of its layers" in capsys.readouterr().err
    assert (tmp_path / "arpl").is_dir()
    assert not (tmp_path / "rotpred").exists()


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_a_part_that_is_damaged_or_missing_is_refused(saved, tmp_path, name):
    copy = Path(shutil.copytree(saved[1], tmp_path / "copy"))
    whole = (copy / name).read_bytes()
    place = len(whole) // 3
    damaged = (whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole[:-1], b"[" * 10**6)
    for content in (*damaged, b'{"a": NaN, "content_sha256": "a"}', None):
        (copy / name).unlink() if content is None else (copy / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=name):
            load_detector(copy)


def edited(folder, key, value) -> None:
    """Change a value of the manifest, and state a digest that fits."""
    content = json.loads((folder / MANIFEST).read_text())
    del content[KEY]
    *place, last = key.split("/")
    inner = content
    for part in place:
        inner = inner[part]
    inner[last] = value
    (folder / MANIFEST).write_bytes(stated(content))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema_version", 1, "copy' of 'openbench .*: key 'schema_version' is 1: .* — fit and calibrate"),
        ("extra", 1, "key 'extra'"),
        ("batch_size", "8", "key 'batch_size'"),
        ("calibration/terms", {"alpha": 2.0}, "calibrate.alpha"),
        ("calibration/groups", ["a"], "cannot be loaded"),
        ("method/node/_target_", "os.system", "no code is loaded"),
        ("method/node/_target_", "Path", "cannot be loaded"),
        ("method/version", 99, "when the detector was saved"),
        ("method/state", {"score": 1}, "has no state"),
        ("method/state", {"bank_": {"is": "Path", "x": 1}}, "cannot be loaded .KeyError: 'Path'"),
        ("method/state", {"elsewhere_": {"is": "tensor"}}, "cannot be loaded"),
        ("method", {}, "cannot be loaded"),
        ("network/config", "../../etc", "not in this openbench"),
        ("network/keys", {"model": {"_target_": "os.system"}}, "no key 'model'"),
        ("network/preprocess", {"resize": 8, "crop": 9}, "another one in this openbench"),
        ("network/preprocess", {"resize": {"_target_": "os.system"}, "crop": 8}, "cannot be loaded"),
        ("parts", {"../../etc/passwd": "0" * 64}, "'tensors.safetensors' has changed"),
    ],
)
def test_an_edited_manifest_is_refused_even_under_a_digest_that_fits(saved, tmp_path, key, value, message):
    shutil.copytree(saved[1], tmp_path / "copy")
    edited(tmp_path / "copy", key, value)
    with pytest.raises(CheckpointError, match=message):
        load_detector(tmp_path / "copy")


def test_hostile_tensors_are_refused_even_under_a_digest_that_fits(saved, tmp_path):
    shutil.copytree(saved[1], tmp_path / "copy")
    header = b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}'
    for content in (pickle.dumps(Path), len(header).to_bytes(8, "little") + header + bytes(4), bytes([255] * 16)):
        (tmp_path / "copy" / TENSORS).write_bytes(content)
        edited(tmp_path / "copy", f"parts/{TENSORS}", bytes_sha256(content))
        with pytest.raises(CheckpointError, match="cannot be loaded"):
            load_detector(tmp_path / "copy")


def test_a_zip_that_is_compressed_or_none_is_refused(saved, tmp_path, capsys):
    saved[0].save(tmp_path / "sound.zip")
    with zipfile.ZipFile(tmp_path / "sound.zip") as pack, zipfile.ZipFile(tmp_path / "bomb.zip", "w", 8) as bomb:
        for name in pack.namelist():
            bomb.writestr(name, pack.read(name))
    assert main(["score", str(tmp_path / "bomb.zip"), __file__]) == 2
    assert "bomb.zip' is compressed" in capsys.readouterr().err
    (tmp_path / "no.zip").write_bytes(b"PK")
    for name, message in (("no.zip", "cannot be loaded"), ("nowhere", "not found")):
        with pytest.raises(CheckpointError, match=message):
            load_detector(tmp_path / name)


def test_a_method_that_learnt_an_object_is_refused():
    method = build(shipped("method", "dagmm"), "dagmm", Method)
    with pytest.raises(NotApplicableError, match="DAGMM cannot be saved: it learns networks of its own"):
        refuse_unsavable(method)
    method.network_ = torch.nn.Linear(2, 2)
    with pytest.raises(NotApplicableError, match=r"'method.network_' is a torch.nn.*never pickled"):
        packed_method(method, {})
