"""Small image files are decoded for the first backbone; the others read the array it left beside the features."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from openbench.core.benchmark import Split
from openbench.core.request import Field, Request
from openbench.data.sources.items import FileItems
from openbench.features.store import FeatureStore

from .feature_toys import toy_backbone, toy_split

LOGITS = Request(fields=frozenset({Field.LOGITS}))


@pytest.fixture
def files(tmp_path: Path) -> Split:
    """The toy split as files."""
    split = toy_split()
    paths = []
    for index in range(len(split)):
        paths.append(tmp_path / f"{index}.png")
        Pillow.fromarray(split.items[index]).save(paths[-1])
    return replace(split, items=FileItems(paths))


def test_a_second_backbone_decodes_nothing(files: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FeatureStore(tmp_path / "cache" / "features", batch_size=8, progress=False)
    store.get(toy_backbone(0), files, LOGITS)
    [array] = (tmp_path / "cache" / "images").glob("*.npy")
    assert np.array_equal(np.load(array)[3], files.items[3])
    first, read = files.items[0], []
    monkeypatch.setattr(FileItems, "__getitem__", lambda self, index: read.append(index) or first)
    store.get(toy_backbone(1), files, LOGITS)
    assert set(read) <= {0}  # the first is looked at for its shape


def test_features_are_those_of_the_arrays(files: Split, tmp_path: Path) -> None:
    backbone = toy_backbone()
    of_files = FeatureStore(tmp_path / "a" / "features", batch_size=8, progress=False).get(backbone, files, LOGITS)
    of_arrays = FeatureStore(tmp_path / "b" / "features", progress=False).get(backbone, toy_split(), LOGITS)
    assert of_files.logits == pytest.approx(of_arrays.logits, abs=1e-6)
