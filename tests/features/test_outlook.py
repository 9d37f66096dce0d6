"""What a run says about the extraction that is still to come."""

import re
from pathlib import Path

import pytest

from openbench.core.request import Role
from openbench.engine import evaluate as cached
from openbench.engine.evaluate import CachedFeatures
from openbench.engine.provenance import Clock
from openbench.features.store import FeatureStore

from .feature_toys import toy_backbone, toy_split

SPLITS = [toy_split(seed=seed, role=role) for seed, role in enumerate((Role.ID_TEST, Role.ID_VAL, Role.NEAR))]
REQUEST = cached._BASE


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def features(tmp_path: Path, said: list[str]) -> CachedFeatures:
    store = FeatureStore(tmp_path / "cache", batch_size=8, progress=False)
    return CachedFeatures(store, toy_backbone(), Clock(), said.append)


def test_the_time_left_is_that_of_the_images_left(
    features: CachedFeatures, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    n = len(SPLITS[0])
    now = iter((0.0, 10.0, 10.0, 40.0, 40.0, 41.0))
    monkeypatch.setattr(cached, "monotonic", lambda: next(now))
    features.expect(SPLITS)
    assert said == [f"features: {3 * n} images of 3 sets to extract"]
    for split in SPLITS:
        features(split, REQUEST)
    assert said[1:] == [
        f"features: 1 of 3 sets done, {2 * n} images to go, about 20 s left",
        f"features: 2 of 3 sets done, {n} images to go, about 20 s left",
    ]


def test_what_is_cached_is_not_waited_for(features: CachedFeatures, said: list[str]) -> None:
    features(SPLITS[0], REQUEST)
    features.expect(SPLITS)
    assert re.fullmatch(r"features: \d+ images of 2 sets to extract", said[0])
    features(SPLITS[0], REQUEST)
    assert len(said) == 1
    assert features.reused.endswith(" (1 of 3 sets)")
    features(SPLITS[1], REQUEST)
    assert said[1].startswith("features: 1 of 2 sets done")


def test_what_another_job_has_made_meanwhile_does_not_count_as_made_in_no_time(
    features: CachedFeatures, said: list[str]
) -> None:
    features.expect(SPLITS)
    features.store.get(toy_backbone(), SPLITS[0], REQUEST)
    features(SPLITS[0], REQUEST)
    assert len(said) == 1


def test_nothing_is_said_where_nothing_or_one_set_is_to_come(features: CachedFeatures, said: list[str]) -> None:
    features.expect(SPLITS[:1])
    features(SPLITS[0], REQUEST)
    features.expect(SPLITS[:1])
    assert said == []
