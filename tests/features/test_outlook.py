"""What a run says about the extraction that is still to come."""

import re
from pathlib import Path

from openbench.core.request import Role
from openbench.engine import evaluate as cached
from openbench.engine.evaluate import CachedFeatures
from openbench.engine.provenance import Clock
from openbench.features.store import FeatureStore

from ..logged import logged  # noqa: TID252 — the tests are no package
from .feature_toys import toy_backbone, toy_split

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
