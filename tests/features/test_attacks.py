"""Attacked images against Foolbox, their ball, the losses, and what the cache depends on."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from openbench.core.features import FeatureSet
from openbench.core.request import Field, Request, Role
from openbench.errors import NotApplicableError
from openbench.features.attacks import ADVERSARIAL, Attack, acceptance, attacked, cross_entropy
from openbench.features.store import FeatureStore
from openbench.methods.gaussians import MDS
from openbench.methods.gradients import ODIN
from openbench.methods.knn import KNN
from openbench.methods.logits import Energy

from .feature_toys import toy_backbone, toy_split

OUTPUTS = Request(fields=frozenset({Field.FEATURES, Field.LOGITS, Field.LABELS}))
STEP = Attack(of="id", steps=4, random_start=False)


def pixels_of(split, store=None):
    return np.stack([split.items[index] for index in range(len(split))])


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return FeatureStore(tmp_path, batch_size=5, progress=False)


@pytest.mark.parametrize(
    ("name", "attack", "slack"),
    [
        ("LinfPGD", STEP, 0.0),
        ("LinfPGD", replace(STEP, steps=1, step_size=8), 0.0),  # FGSM
        ("L2PGD", replace(STEP, norm="l2", epsilon=64, step_size=24), 0.5),  # of a grey level: rounded to 8 bits
    ],
)
def test_pixels_equal_those_of_foolbox(
    name: str, attack: Attack, slack: float, store: FeatureStore, monkeypatch
) -> None:
    monkeypatch.setattr(pytest.importorskip("numba").config, "DISABLE_JIT", 0)
    foolbox = pytest.importorskip("foolbox")
    backbone, split = toy_backbone(), toy_split(12)
    ours = attacked(store, backbone, split, attack, loss=partial(cross_entropy, backbone), target="cross-entropy")
    p = backbone.preprocess
    model = foolbox.PyTorchModel(
        backbone.network.eval(), bounds=(0, 1), preprocessing={"mean": p.mean, "std": p.std, "axis": -3}, device="cpu"
    )
    clean = torch.from_numpy(pixels_of(split)).permute(0, 3, 1, 2).float() / 255
    peer = getattr(foolbox.attacks, name)(abs_stepsize=attack.step_size / 255, steps=attack.steps, random_start=False)
    labels = foolbox.criteria.Misclassification(torch.from_numpy(split.labels))
    (theirs,) = (peer.run(model, clean, labels, epsilon=attack.epsilon / 255),)
    difference = theirs.permute(0, 2, 3, 1).numpy() * 255 - pixels_of(ours)
    assert np.abs(pixels_of(ours).astype(int) - pixels_of(split)).max() > 1
    assert np.abs(difference).max() <= slack + 1e-3


@pytest.mark.parametrize(
    ("norm", "epsilon", "most"), [("linf", 8.0, 8.0), ("l2", 64.0, 64.5)]
)  # rounding adds to the L2 norm
def test_attacked_images_stay_in_the_ball_whatever_the_batches(norm, epsilon, most, store, tmp_path) -> None:
    attack = Attack(of="id", norm=norm, epsilon=epsilon, steps=3)
    backbone, split = toy_backbone(), toy_split(12)
    loss = partial(cross_entropy, backbone)
    first = attacked(store, backbone, split, attack, loss=loss, target="ce")
    whole = FeatureStore(tmp_path / "b", batch_size=12, progress=False)
    again = attacked(whole, backbone, split, attack, loss=loss, target="ce")
    change = (pixels_of(first).astype(float) - pixels_of(split)).reshape(12, -1)
    size = np.abs(change).max(axis=1) if norm == "linf" else np.linalg.norm(change, axis=1)
    assert size.min() > 2
    assert size.max() <= most
    assert np.abs(pixels_of(first).astype(int) - pixels_of(again)).max() <= (0 if norm == "linf" else 1)
    assert (first.name, first.role) == (ADVERSARIAL, Role.NEAR_ATTACKED)


@pytest.mark.parametrize("method", [Energy(), KNN(k=3), MDS()])
def test_the_detectors_own_score_falls(method, store: FeatureStore) -> None:
    backbone, split = toy_backbone(), toy_split(12, seed=4, role=Role.FAR)
    fitted = method.fit(store.get(backbone, toy_split(37), OUTPUTS), backbone.head)
    moved = attacked(store, backbone, split, Attack(), loss=partial(acceptance, fitted, backbone), target="run")
    scores = [fitted.score(FeatureSet(store.get(backbone, s, OUTPUTS).columns)) for s in (split, moved)]
    assert bool((scores[1] < scores[0]).all())
    assert (moved.name, moved.role) == (split.name, Role.FAR_ATTACKED)


class Counted(Energy):
    """A score outside torch's graph."""

    def score(self, x: FeatureSet) -> torch.Tensor:
        return torch.from_numpy(x.logits.numpy().max(axis=1))


@pytest.mark.parametrize("method", [ODIN(), Counted()])
def test_a_score_without_a_gradient_is_refused(method, store: FeatureStore) -> None:
    backbone, split = toy_backbone(), toy_split(3, role=Role.NEAR)
    with pytest.raises(NotApplicableError, match=r"has no gradient by the images \(.+\) — write attack.of=id"):
        attacked(store, backbone, split, Attack(), loss=partial(acceptance, method, backbone), target="run")


def test_the_digest_depends_on_images_network_attack_and_target(store: FeatureStore) -> None:
    backbone, other, split = toy_backbone(), toy_backbone(1), toy_split(4)

    def digest_of(network=backbone, attack=STEP, target="ce", images=split):
        return attacked(store, network, images, attack, loss=partial(cross_entropy, network), target=target).digest

    digests = {
        digest_of(),
        digest_of(network=other),
        digest_of(attack=replace(STEP, epsilon=4)),
        digest_of(target="run"),
        digest_of(images=toy_split(4, seed=1)),
    }
    assert len(digests) == 5
