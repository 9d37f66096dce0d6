"""What a training says beside its loss is true: its defaults, its scorer, mixing, and that evaluating only looks."""

from dataclasses import fields, replace

import golden_trainings
import pytest
import torch

from openbench import paths
from openbench.config.build import build
from openbench.config.folders import shipped
from openbench.training.base import Batch, TrainingMethod

TRAININGS = golden_trainings.small()


def test_defaults_of_yaml_and_class_agree_but_for_the_recipe():
    off = {}
    for name in TRAININGS:
        made = build(shipped("training", name), "training")
        own = replace(type(made)(), recipe=made.recipe)
        off |= {
            f"{name}.{f.name}": (getattr(made, f.name), getattr(own, f.name))
            for f in fields(made)
            if getattr(made, f.name) != getattr(own, f.name)
        }
    assert off == {}


def test_the_scorer_of_a_training_is_a_method():
    folder = paths.config_dir() / "method"
    assert {n: m.scorer for n, m in TRAININGS.items() if not (folder / f"{m.scorer}.yaml").is_file()} == {}


def loss(method: TrainingMethod, change: dict) -> float:
    """The loss of a late batch whose labels were changed, from the same state and the same draws."""
    model, data, first = golden_trainings.begun(method)
    info = replace(first, epoch=first.epochs - 1, generator=torch.Generator().manual_seed(3))
    batch: Batch = golden_trainings.batch_of(method, data, torch.arange(12).repeat(method.views), info)
    return float(method.loss(model, replace(batch, **change)).detach())


def test_trainings_mix_exactly_where_the_loss_is_the_mean_of_both_labels():
    means = {}
    for name, method in TRAININGS.items():
        labels = torch.arange(12).repeat(method.views) % golden_trainings.CLASSES
        partners = labels.roll(1)
        own, other = (loss(method, {"labels": of}) for of in (labels, partners))
        mixed = loss(method, {"labels": labels, "partners": partners, "share": 0.3})
        means[name] = own != pytest.approx(other, rel=1e-3) and mixed == pytest.approx(
            0.3 * own + 0.7 * other, rel=1e-5
        )
    assert means == {name: method.mixes for name, method in TRAININGS.items()}


def test_evaluating_leaves_what_is_trained_as_it_is():
    changed = []
    for name, method in TRAININGS.items():
        model, *_ = golden_trainings.begun(method)
        before = {key: tensor.clone() for key, tensor in model.eval().state_dict().items()}
        with torch.no_grad():
            method.eval_model(model)
        after = model.state_dict()
        if after.keys() != before.keys() or not all(torch.equal(after[key], before[key]) for key in before):
            changed.append(name)
    assert changed == []
