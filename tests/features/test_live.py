"""Scores of methods that run the network: their names in the cache, costs, what is refused, what is to be extracted."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import pytest
import torch

from openbench import source
from openbench.core.features import FeatureSet, Head
from openbench.core.method import LiveMethod
from openbench.core.request import Field, Request, Role
from openbench.core.search import with_params
from openbench.data.loading import batches
from openbench.engine import evaluate as cached
from openbench.engine.evaluate import CachedFeatures, Fitting, Scoring, fit, score_split
from openbench.engine.provenance import Clock
from openbench.errors import MethodError
from openbench.features import extract
from openbench.features.store import FeatureStore
from openbench.methods.gradients import PRO

from ..logged import logged  # noqa: TID252 — the tests are no package
from .feature_toys import toy_backbone, toy_split

SPLIT = toy_split()


@dataclass
class Steepness(LiveMethod):
    """Norm of the gradient of the largest logit by the image, times a factor."""

    reference: ClassVar[str] = "test"
    factor: float = 1.0

    def score_images(self, images, backbone):
        x = images.clone().requires_grad_(True)
        with backbone.frozen() as network, torch.enable_grad():
            (gradient,) = torch.autograd.grad(network(x).amax(dim=1).sum(), x)
        return self.factor * gradient.flatten(1).norm(dim=1)


@dataclass
class Away(LiveMethod):
    """Distance of features from the mean of a split."""

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "test"

    def fit(self, train: FeatureSet | None, head: Head | None) -> Self:
        self.mean_ = train.features.mean(dim=0)
        return self

    def score_images(self, images, backbone):
        features = backbone.outputs(images, Request(fields=frozenset({Field.FEATURES}))).features
        return (features - self.learnt("mean_")).norm(dim=1)


@pytest.fixture
def features(tmp_path: Path) -> CachedFeatures:
    return CachedFeatures(FeatureStore(tmp_path / "cache", batch_size=8, progress=False), toy_backbone(), Clock())


def scores(method, features):
    return score_split(method, SPLIT, Scoring(features, torch.device("cpu"), 8))


def fitting(seed: int) -> Fitting:
    return Fitting(toy_split(20, seed, Role.ID_TRAIN), toy_split(10, 5, Role.ID_VAL), toy_backbone().head)


def columns(features: CachedFeatures) -> list[str]:
    return sorted(path.name for path in features.store.root.rglob("scores.*.npy"))


def test_scores_are_those_of_the_images(features):
    found = scores(Steepness(2.0), features)
    images = torch.cat(list(batches(SPLIT, features.backbone.preprocess, 5))).double().requires_grad_(True)
    network = toy_backbone().module().double().eval()
    network(images).max(dim=1).values.sum().backward()
    np.testing.assert_allclose(found, 2 * images.grad.flatten(1).norm(dim=1), rtol=1e-4)


def test_scores_are_made_again_by_changed_code_that_scores(features, monkeypatch):
    monkeypatch.setattr(source, "_changed", dict)
    scores(PRO(), features)
    assert len(columns(features)) == 1
    monkeypatch.setattr(source, "_changed", lambda: {"openbench/features/extract.py": Path(extract.__file__)})
    scores(PRO(), replace(features, store=replace(features.store)))  # as another run has it
    assert len(columns(features)) == 2


def test_a_second_run_costs_no_pass_and_other_hyper_parameters_do(features):
    first = scores(Steepness(), features)
    assert features.backbone.passes == len(SPLIT)
    assert np.array_equal(first, scores(Steepness(), features))
    assert features.backbone.passes == len(SPLIT)
    assert np.allclose(scores(with_params(Steepness(), {"factor": 3.0}), features), 3 * first)
    assert features.backbone.passes == 2 * len(SPLIT)
    assert len(columns(features)) == 2


def test_what_was_fitted_on_another_split_is_another_column(features):
    by_seed = {seed: scores(fit(Away(), fitting(seed), features, torch.device("cpu")), features) for seed in (1, 2)}
    assert len(columns(features)) == 2
    for seed, found in by_seed.items():
        request = Request(fields=frozenset({Field.FEATURES}))
        train, x = (features(s, request).features.double() for s in (fitting(seed).id_train, SPLIT))
        np.testing.assert_allclose(found, np.linalg.norm(x - train.mean(dim=0), axis=1), rtol=1e-4)


@pytest.mark.parametrize(("wrong", "message"), [(float("nan"), "1 of 8 scores"), (None, r"shape \(8, 1\)")])
def test_nan_and_wrong_shapes_are_refused_and_not_cached(features, wrong, message):
    @dataclass
    class Broken(Steepness):
        def score_images(self, images, backbone):
            scores = images[:, 0, 0, 0].clone()
            if wrong is None:
                return scores[:, None]
            scores[2] = wrong
            return scores

    with pytest.raises(MethodError, match=rf"Broken.score_images on toy \(id_test\): {message}"):
        scores(Broken(), features)
    assert columns(features) == []


SPLITS = [toy_split(seed=seed, role=role) for seed, role in enumerate((Role.ID_TEST, Role.ID_VAL, Role.NEAR))]
REQUEST = cached._BASE


def test_what_is_cached_is_not_waited_for(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path / "cache", batch_size=8, progress=False)
    features = CachedFeatures(store, toy_backbone(), Clock())
    with logged() as said:
        features.expect(SPLITS[:1])  # nothing is said of a single set
        features(SPLITS[0], REQUEST)
        features.expect(SPLITS)
    assert re.fullmatch(r"features: \d+ images of 2 sets to extract", *said)
    assert features.reused.endswith(" (1 of 3 sets)")
