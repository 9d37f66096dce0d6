"""CoVer: copies as ImageNet-C's code makes them, one base fitted on clean images, and the mean of its scores."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from openbench.core.method import version_of
from openbench.core.request import Corruption, Field, Request, Role
from openbench.data.sources import corruptions, imagenet_c
from openbench.data.sources.corruptions import CommonCorruptions
from openbench.data.sources.imagenet_c import corrupt
from openbench.engine.evaluate import Fitting, Scoring, fit, score_split
from openbench.errors import ConfigError, FieldError, MethodError
from openbench.features.changed_images import corrupted
from openbench.features.store import FeatureStore
from openbench.methods import cover
from openbench.methods.cover import CoVer
from openbench.methods.double_score import DoubleScore
from openbench.methods.knn import KNN
from openbench.methods.logits import Energy
from openbench.methods.msp import MSP

from ..features.feature_toys import toy_backbone, toy_split  # noqa: TID252 — the tests are no package
from .problems import given

FEATURES = frozenset({Field.FEATURES, Field.LOGITS})


@pytest.fixture
def store(tmp_path):
    return FeatureStore(tmp_path, batch_size=16, progress=False)


def on_copies(backbone, split, kind, severity):
    """The outputs of images corrupted one by one, without a draw."""
    images = np.stack([corrupt(split.items[i], kind, severity, np.random.default_rng(0)) for i in range(len(split))])
    p = backbone.preprocess
    pixels = torch.tensor(images).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (p.mean, p.std))
    return backbone.outputs(((pixels - mean) / std).float(), Request())


def test_columns_of_a_corrupted_input_are_the_networks_outputs_of_the_copies(store):
    backbone, split = toy_backbone(), toy_split()
    found = store.get(backbone, split, Request(FEATURES, corruption=Corruption("brightness", 3)))
    expected = on_copies(backbone, split, "brightness", 3)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    clean = store.get(backbone, split, Request(FEATURES))
    assert float((found.features - clean.features).abs().max()) > 0.01
    assert backbone.passes == 3 * len(split)  # one by hand
    again = store.get(backbone, split, Request(FEATURES, corruption=Corruption("brightness", 3)))
    assert torch.equal(again.features, found.features)
    assert backbone.passes == 3 * len(split)


def test_copies_of_a_later_version_of_the_corruptions_are_others(monkeypatch):
    def name() -> str:
        return corrupted(toy_split(), Corruption("fog", 2), toy_backbone().preprocess).digest

    first = name()
    assert name() == first
    monkeypatch.setattr(Corruption, "version", 2)
    assert name() != first


def test_copies_by_code_without_a_commit_are_kept_apart(store, monkeypatch):
    backbone, split = toy_backbone(), toy_split()
    copies = corrupted(split, Corruption("fog", 2), backbone.preprocess)

    def places() -> tuple[str, str]:
        of_a_run = replace(store)
        return tuple(of_a_run._folder(backbone, s).parent.name for s in (split, copies))

    monkeypatch.setattr("openbench.source._changed", dict)
    clean = places()
    monkeypatch.setattr("openbench.source._changed", lambda: {"imagenet_c.py": Path(imagenet_c.__file__)})
    assert places()[0] == clean[0], "clean images are read without that file"
    assert places()[1] != clean[1]


def test_a_raised_version_of_the_corruptions_raises_that_of_the_method_and_of_sets_made_of_them(monkeypatch):
    before = version_of(CoVer(MSP()))
    assert CommonCorruptions.version == Corruption.version
    monkeypatch.setattr(Corruption, "version", Corruption.version + 1)
    assert version_of(once_more(cover).CoVer(MSP())) > before
    assert once_more(corruptions).CommonCorruptions.version == Corruption.version


def once_more(module: ModuleType) -> ModuleType:
    """A copy of a module, whose classes read the numbers of others as they are now."""
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_once_more", module.__file__)
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def test_a_drawn_corruption_is_the_same_whatever_the_batch(tmp_path):
    request = Request(FEATURES, corruption=Corruption("gaussian_noise", 1))
    first, other = (
        FeatureStore(tmp_path / str(size), batch_size=size, progress=False).get(toy_backbone(), toy_split(), request)
        for size in (37, 5)
    )
    torch.testing.assert_close(first.features, other.features, rtol=1e-4, atol=1e-4)


class Source:
    """Columns of the toy backbone, and what was asked for."""

    def __init__(self, store):
        self.store, self.asked = store, []

    def __call__(self, split, request):
        self.asked.append((split.role, request.corruption))
        return self.store.get(toy_backbone(), split, request)


def test_the_score_is_the_mean_over_the_image_and_its_copies(store):
    train, val, test = (
        toy_split(40, seed, role) for seed, role in enumerate((Role.ID_TRAIN, Role.ID_VAL, Role.ID_TEST))
    )
    source = Source(store)
    method = fit(
        CoVer(KNN(k=3), ["brightness", "contrast"], [1, 4]), Fitting(train, val, toy_backbone().head), source, "cpu"
    )
    assert source.asked == [(Role.ID_TRAIN, None)], "one fit, on images as they are"
    found = score_split(method, test, Scoring(source, torch.device("cpu")))
    base = KNN(k=3).fit(store.get(toy_backbone(), train, KNN().request), None)
    scores = [base.score(store.get(toy_backbone(), test, Request(FEATURES))).numpy()]
    for kind in ("brightness", "contrast"):
        for severity in (1, 4):
            features = on_copies(toy_backbone(), test, kind, severity).features
            scores.append(base.score(given(features=features)).numpy())
    np.testing.assert_allclose(found, np.mean(scores, axis=0), rtol=1e-3, atol=1e-5)


def test_what_cannot_be_copied_is_refused(store):
    with pytest.raises(MethodError, match="CoVer: base DoubleScore runs the network or has parts"):
        CoVer(DoubleScore(MSP(), Energy()))
    with pytest.raises(FieldError, match="severity — found 0, allowed: a whole number from 1 to 5"):
        Corruption("fog", 0)
    with pytest.raises(ConfigError, match=r"corruption — found 'fogg', allowed: .*fog"):
        store.get(toy_backbone(), toy_split(), Request(FEATURES, corruption=Corruption("fogg", 1)))
