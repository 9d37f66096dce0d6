"""What a method does not read is not asked for: training images, a classifier, the benchmark's number of classes."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from safetensors.torch import save_file

from openbench._compat import library
from openbench.engine.prepare import extract
from openbench.errors import DataError, MethodError, NotApplicableError
from openbench.methods.knn import KNN
from openbench.results.scores.stored import ScoreStore

from ..prepared import run_config  # noqa: TID252 — the tests are no package


def remove_training_images(root):
    for file in (root / "train").rglob("*.png"):
        file.unlink()


def test_a_method_that_is_not_fitted_runs_without_training_images_to_the_same_record(root, config, runtime, tmp_path):
    with_images = run_config(config("msp.MSP"), runtime)
    remove_training_images(root)
    assert run_config(config("msp.MSP"), runtime).status == "skipped"
    elsewhere = {**runtime, "results": tmp_path / "elsewhere"}
    without = run_config(config("msp.MSP"), elsewhere)
    assert without.status == "written"
    first, second = with_images.record.to_dict(), without.record.to_dict()
    assert {**first, "provenance": {}} == {**second, "provenance": {}}
    assert "id_train/train" not in first["counts"]
    assert first["benchmark"]["pristine"]


def test_a_method_that_is_fitted_names_itself_and_why_it_needs_them(root, config, runtime):
    remove_training_images(root)
    with pytest.raises(DataError, match=r"incomplete: id\.train \(needed by method 'knn', which is fitted on it\)"):
        run_config(config("knn.KNN"), runtime)


def test_other_training_images_under_the_same_names_are_another_run_of_a_method_that_reads_them(root, config, runtime):
    before = {name: run_config(config(name), runtime).record.run_id for name in ("msp.MSP", "knn.KNN")}
    Pillow.fromarray(np.zeros((16, 16, 3), np.uint8)).save(root / "train/n0/0.png")
    assert run_config(config("msp.MSP"), runtime).record.run_id == before["msp.MSP"]
    assert run_config(config("knn.KNN"), runtime).record.run_id != before["knn.KNN"]


def test_features_are_extracted_ahead_without_training_images(root, config, runtime):
    remove_training_images(root)
    passed = extract(config("msp.MSP"), runtime)
    assert passed.keys() == {"id_val/val", "id_test/test", "far/cars"}
    assert set(extract(config("msp.MSP"), runtime).values()) == {0}


def test_maps_are_extracted_in_the_pass_that_leaves_the_features(config, runtime):
    passed = extract(config("gram.Gram"), runtime)
    assert passed == {"id_train/train": 60, "id_val/val": 18, "id_test/test": 30, "far/cars": 20}


ABSENT = {"id/accuracy", "id/aurc", "id/e-aurc", "id/id_val_accuracy", "cars/oscr", "id/lac_coverage@0.05"}


def keys(record):
    return {f"{name}/{key}" for name, values in record.metrics.items() for key in values}


def test_features_of_a_network_of_other_classes_are_scored_without_accuracy(config, runtime):
    assert keys(run_config(config("knn.KNN"), runtime).record) >= ABSENT
    for classes in (4, 11):
        record = run_config(config("knn.KNN", classes=classes), runtime).record
        assert keys(record).isdisjoint(ABSENT)
        assert keys(record) >= {"cars/auroc", "far/fpr95", "id/n_id"}
        assert all(np.isfinite(value) for value in record.metrics["cars"].values() if not isinstance(value, str))
        scores = ScoreStore(runtime["cache"] / "scores").read(record.run_id)
        assert all(split.correct is None and (split.predictions == -1).all() for split in scores)


@pytest.mark.parametrize(
    ("method", "read"), [("msp.MSP", "logits"), ("vim.ViM", "logits, the head"), ("pro.PRO", "images")]
)
def test_what_needs_the_classifier_is_refused_before_anything_is_extracted(config, runtime, method, read):
    with pytest.raises(NotApplicableError, match=f"reads {read}.* has 11 output classes, benchmark 'own' has 6"):
        run_config(config(method, classes=11), runtime)
    assert not (runtime["cache"] / "features").exists()


def test_a_network_without_a_classifier_is_scored_by_its_features(config, runtime, tmp_path):
    timm = library("timm")
    torch.manual_seed(0)
    options = {"img_size": 16, "depth": 1, "embed_dim": 12}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, **options)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, tmp_path / "vit.safetensors")
    backbone = {
        "_target_": "openbench.backbones.libraries.timm_model",
        "name": "vit",
        "model": "vit_tiny_patch16_224",
        "weights": str(tmp_path / "vit.safetensors"),
        "num_classes": 0,
        "options": options,
    }
    record = run_config(config("knn.KNN", backbone=backbone), runtime).record
    assert record.backbone["num_classes"] == 0
    assert keys(record).isdisjoint(ABSENT)
    assert not list((runtime["cache"] / "features").rglob("logits.npy"))
    with pytest.raises(NotApplicableError, match="method 'msp' reads logits, but backbone 'vit' has no classifier"):
        run_config(config("msp.MSP", backbone=backbone), runtime)
    assert extract(config("knn.KNN", backbone=backbone), runtime)["id_test/test"] == 0


@dataclass
class Miscounting(KNN):
    """Scores of one class too many."""

    def class_scores(self, x):
        return x.features.new_zeros(len(x), 7)


def test_a_wrong_number_of_class_scores_is_noticed_before_the_test_sets_are_extracted(config, runtime):
    node = {"_name_": "miscounting", "_target_": f"{__name__}.Miscounting"}
    with pytest.raises(MethodError, match="7 columns for the 6 classes"):
        run_config({**config("knn.KNN"), "method": node}, runtime)
    folders = [folder for folder in (runtime["cache"] / "features").glob("*/*") if list(folder.glob("*.npy"))]
    assert len(folders) == 2  # what is fitted on, and ID validation
