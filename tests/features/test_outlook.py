"""What a run says about the extraction that is still to come."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from openbench.core.request import Role
from openbench.engine import evaluate as cached
from openbench.engine.evaluate import CachedFeatures
from openbench.engine.provenance import Clock
from openbench.features.store import FeatureStore

from ..logged import logged  # noqa: TID252 — the tests are no package
from .feature_toys import toy_backbone, toy_split

SPLITS = [toy_split(seed=seed, role=role) for seed, role in enumerate((Role.ID_TEST, Role.ID_VAL, Role.NEAR))]
REQUEST = cached._BASE


@pytest.fixture
def said() -> Iterator[list[str]]:
    with logged() as lines:
        yield lines


@pytest.fixture
def features(tmp_path: Path) -> CachedFeatures:
    store = FeatureStore(tmp_path / "cache", batch_size=8, progress=False)
    return CachedFeatures(store, toy_backbone(), Clock())


def test_what_is_cached_is_not_waited_for(features: CachedFeatures, said: list[str]) -> None:
    features(SPLITS[0], REQUEST)
    features.expect(SPLITS)
    assert re.fullmatch(r"features: \d+ images of 2 sets to extract", said[0])
    assert features.reused.endswith(" (1 of 3 sets)")


def test_nothing_is_said_where_nothing_or_one_set_is_to_come(features: CachedFeatures, said: list[str]) -> None:
    features.expect(SPLITS[:1])
    features(SPLITS[0], REQUEST)
    features.expect(SPLITS[:1])
    assert said == []
