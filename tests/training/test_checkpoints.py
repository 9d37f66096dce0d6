import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from openbench.backbones.network import Ensemble, NetworkBackbone, ensemble, finetuned
from openbench.core.request import Request, Role
from openbench.errors import CheckpointError, ConfigError, DataError
from openbench.training.augment.augmentations import HorizontalFlip, RandomCrop
from openbench.training.augment.reading import PictureFolder
from openbench.training.base import TrainingJob
from openbench.training.loop.weights import Trained, find_checkpoint, folder_of, get_or_train
from openbench.training.methods.contrastive import CSI
from openbench.training.methods.cross_entropy import ISH, CrossEntropy, FineTuning

from ..logged import logged  # noqa: TID252 — the tests are no package
from .training_toys import (
    CLASSES,
    CONFIG,
    NODE,
    PREPROCESS,
    RECIPE,
    ToyEntropy,
    ToyPrototypes,
    backbone,
    benchmark,
    job,
    setting,
    split,
    trained,
)


def test_equal_jobs_have_equal_digests_whatever_weights_the_network_holds() -> None:
    other = backbone()
    other.initialise(77)
    assert job(backbone=other).digest == job().digest


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"id_train": split(Role.ID_TRAIN, 69)},
        {"id_val": split(Role.ID_VAL, 41)},
        {"backbone": backbone(architecture="toy 2")},
        {"backbone": backbone(replace(PREPROCESS, mean=(0.5, 0.5, 0.5)))},
        {"method": CrossEntropy(RECIPE)},
        {"method": ToyEntropy(replace(RECIPE, epochs=5))},
        {"method": ToyEntropy(replace(RECIPE, precision="bf16"))},
        {"method": ToyEntropy(replace(RECIPE, augment=(RandomCrop(2), HorizontalFlip())))},
        {"method": ToyEntropy(replace(RECIPE, augment=(HorizontalFlip(), RandomCrop(1))))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whatever_shapes_the_weights_changes_the_digest(changes: dict[str, object]) -> None:
    assert job(**changes).digest != job().digest


def test_version_of_a_method_changes_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = job().digest
    monkeypatch.setattr(ToyEntropy, "version", 2)
    assert job().digest != before


def test_outliers_count_for_methods_that_use_them_and_for_no_others() -> None:
    other = benchmark(ood_train=split(Role.OOD_TRAIN, 25))
    of = {m: [TrainingJob.of(backbone(), b, m(), 0).digest for b in (benchmark(), other)] for m in METHODS}
    assert of[ToyEntropy][0] == of[ToyEntropy][1]
    assert of[ToyPrototypes][0] != of[ToyPrototypes][1]


METHODS = (ToyEntropy, ToyPrototypes)


def test_outliers_that_are_missing_are_an_error() -> None:
    with pytest.raises(DataError, match="benchmark 'toys' names none — choose some: dataset@outliers=NAME"):
        TrainingJob.of(backbone(), benchmark(ood_train=None), ToyPrototypes(), 0)


def test_a_backbone_for_other_classes_is_an_error() -> None:
    four = benchmark(classes=("a", "b", "c", "d"))
    with pytest.raises(ConfigError, match=rf"has {CLASSES} classes, benchmark 'toys' 4"):
        TrainingJob.of(backbone(), four, ToyEntropy(), 0)
    headless = backbone()
    headless.head_to_fit = "knn"
    with pytest.raises(ConfigError, match="head=knn is fitted on features, and weights is null — name weights"):
        TrainingJob.of(headless, benchmark(), ToyEntropy(), 0)


def test_checkpoint_is_found_once_training_has_ended_and_not_if_it_was_altered(tmp_path: Path) -> None:
    folder = folder_of(job(), tmp_path)
    assert find_checkpoint(job(), tmp_path) is None
    folder.mkdir()
    (folder / "best.safetensors").write_bytes(b"of an unfinished training")
    assert find_checkpoint(job(), tmp_path) is None
    made = trained(job(), tmp_path)
    assert find_checkpoint(job(), tmp_path) == made
    assert (made.weights, made.extras) == (folder / "best.safetensors", None)
    file = folder / "last.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=r"last\.safetensors' is missing or was altered"):
        find_checkpoint(job(), tmp_path)
    file.unlink()  # those of the last epoch may be left out
    assert find_checkpoint(job(), tmp_path) == made
    made.weights.unlink()
    with pytest.raises(CheckpointError, match=r"best\.safetensors' is missing or was altered"):
        find_checkpoint(job(), tmp_path)


def test_a_checkpoint_is_not_reused_if_the_pictures_it_was_augmented_with_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBENCH_DATA", str(tmp_path))
    file = tmp_path / "mixing/1.png"
    file.parent.mkdir()
    Image.fromarray(np.full((8, 8, 3), 200, np.uint8)).save(file)
    with pytest.raises(DataError) as caught:
        PictureFolder("mixing", "any").files()
    content = str(caught.value).split("set content=")[1].split()[0]
    folder = {"_target_": f"{PictureFolder.__module__}.PictureFolder", "name": "mixing", "content": content}
    mix = {"_target_": "openbench.training.augment.pixmix.PixMix", "folder": folder}
    config = {**CONFIG, "training": {**NODE, "recipe": {**NODE["recipe"], "augment": [mix]}}}
    get_or_train(backbone(), benchmark(), config, setting(tmp_path))
    get_or_train(backbone(), benchmark(), config, setting(tmp_path))
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file)
    with pytest.raises(DataError, match=f"instead of {content}"):
        get_or_train(backbone(), benchmark(), config, setting(tmp_path))
    shutil.rmtree(file.parent)  # whoever has the weights alone may use them
    get_or_train(backbone(), benchmark(), config, setting(tmp_path))


def test_ensure_trains_once_and_loads_the_kept_epoch(tmp_path: Path) -> None:
    with logged() as said:
        first, second = (get_or_train(backbone(), benchmark(), CONFIG, setting(tmp_path)) for _ in range(2))
    assert len(said) == 1
    assert "training for 2 epochs of 70 images on cpu" in said[0]
    assert first.backbone.trained
    assert first.backbone.digest == second.backbone.digest
    images = torch.rand(5, 3, 8, 8)
    outputs = [t.backbone.outputs(images, Request()).logits for t in (first, second)]
    assert torch.equal(*outputs)
    assert second.checkpoint.info["best_val_accuracy"] > 1 / CLASSES


def test_ensure_leaves_a_backbone_with_weights_as_it_is(tmp_path: Path) -> None:
    ready = get_or_train(backbone(), benchmark(), CONFIG, setting(tmp_path / "a")).backbone
    digest = ready.digest
    again = get_or_train(ready, benchmark(), {"training": {}, "seed": 0}, setting(tmp_path / "b", "force"))
    assert (again.backbone.digest, again.checkpoint) == (digest, None)
    assert not (tmp_path / "b").exists()


def test_a_training_that_leaves_no_checkpoint_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openbench.training.loop.weights.train", lambda *_: None)
    with pytest.raises(CheckpointError, match="seed 5 left no finished checkpoint in"):
        get_or_train(backbone(), benchmark(), CONFIG, setting(tmp_path))


def test_the_folder_says_what_is_trained_and_what_came_out_and_a_changed_digit_is_noticed(tmp_path: Path) -> None:
    found = get_or_train(backbone(), benchmark(), CONFIG, setting(tmp_path))
    folder = next(tmp_path.glob("*/job.json")).parent
    job, finished = (json.loads((folder / f"{name}.json").read_text()) for name in ("job", "finished"))
    assert job["digest"] == finished["digest"] == folder.name
    assert (job["backbone"], job["benchmark"]) == (found.backbone.name, benchmark().name)
    assert job["images"] == {"id_train": len(benchmark().id_train), "id_val": len(benchmark().id_val)}
    assert finished["selection"] == "val_accuracy"
    assert all((folder / name).is_file() for name in finished["files"])
    path, epochs = folder / "finished.json", f'"epochs": {finished["epochs"]}'
    path.write_text(path.read_text().replace(epochs, f"{epochs}0"))
    with pytest.raises(CheckpointError, match=r"has changed since it was written.*train=force"):
        get_or_train(backbone(), benchmark(), CONFIG, setting(tmp_path))


def test_never_refuses_what_is_not_trained(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="forbids training — train it first"):
        get_or_train(backbone(), benchmark(), CONFIG, setting(tmp_path, "never"))
    assert not any(tmp_path.iterdir())


def ensured(root: Path, seed: int = 0, members: int = 2, train: str = "auto") -> tuple[Trained, list[str]]:
    config = {**CONFIG, "seed": seed, "backbone": {"name": "ensemble", "member": {"name": "toy"}}}
    waiting = ensemble("ensemble", backbone(), members=members)
    with logged() as said:
        return get_or_train(waiting, benchmark(), config, setting(root, train)), said


def test_members_are_the_networks_of_their_seeds(tmp_path: Path) -> None:
    found, said = ensured(tmp_path, seed=3)
    alone = [get_or_train(backbone(), benchmark(), {**CONFIG, "seed": s}, setting(tmp_path)).backbone for s in (6, 7)]
    assert len(said) == 2, "each member is trained once, and found by runs of the network alone"
    assert isinstance(found.backbone, Ensemble)
    assert [m.digest for m in found.backbone.members] == [b.digest for b in alone]
    images = torch.rand(5, 3, 8, 8)
    mean = torch.stack([b.outputs(images, Request()).logits for b in alone]).mean(dim=0)
    torch.testing.assert_close(found.backbone.outputs(images, Request()).logits, mean, rtol=1e-4, atol=1e-5)
    assert all(str(member.checkpoint.weights) in found.source for member in found.members)


def test_what_is_trained_is_found_seeds_share_no_member_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    first, _ = ensured(tmp_path)
    again, said = ensured(tmp_path)
    assert said == []
    assert again.backbone.digest == first.backbone.digest
    with pytest.raises(CheckpointError, match=r"no checkpoint of toy on toys with CrossEntropy, seed 2"):
        ensured(tmp_path, members=3, train="never")
    other, said = ensured(tmp_path, seed=1)
    assert len(said) == 2
    digests = [member.digest for found in (first, other) for member in found.backbone.members]
    assert len(set(digests)) == 4


TINY_STEP = ISH(RECIPE, FineTuning(epochs=1, lr=1e-9))


def classifier(head: str) -> NetworkBackbone:
    start = backbone().initialise(9)
    start.load_state(start.module().state_dict(), "own")
    return finetuned("toy_finetuned", start, head=head, num_classes=start.num_classes, preprocess=PREPROCESS)


def test_no_other_training_comes_before_it(tmp_path: Path) -> None:
    made = TrainingJob.of(classifier("kept"), benchmark(), TINY_STEP, 0)
    assert made.initial is None
    checkpoint = trained(made, tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == [made.digest]
    # At that rate the weights stay where they were: at those of the network that it starts from.
    found, start = load_file(checkpoint.weights), backbone().initialise(9).module().state_dict()
    torch.testing.assert_close(found["fc.weight"], start["fc.weight"], atol=1e-6, rtol=0)
    torch.testing.assert_close(found["conv.weight"], start["conv.weight"], atol=1e-6, rtol=0)


def test_a_new_head_is_trained_first_and_so_is_a_contrastive_network() -> None:
    assert TrainingJob.of(classifier("new"), benchmark(), TINY_STEP, 0).initial.method == CrossEntropy(RECIPE)
    contrastive = CSI(replace(RECIPE, warmup_epochs=0), tuning=FineTuning(epochs=1))
    assert TrainingJob.of(classifier("kept"), benchmark(), contrastive, 0).initial is not None
