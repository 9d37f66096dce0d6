"""Which source files a method comes from that openbench does not ship."""

import hashlib
import importlib
import sys
from pathlib import Path

import pytest

from openbench.core.source import foreign_classes, foreign_sources
from openbench.methods.double_score import DoubleScore
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar

from openbench.core.live import LiveMethod
from openbench.methods.msp import MSP


@dataclass
class Mine(MSP):
    reference: ClassVar[str] = "-"


class Base:
    pass


@dataclass
class Live(LiveMethod, Base):
    reference: ClassVar[str] = "-"

    def score_images(self, images, backbone):
        return images.mean(dim=(1, 2, 3))
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "mine_of_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("mine_of_test")
    del sys.modules["mine_of_test"]


def test_a_method_of_ours_has_no_foreign_source():
    assert foreign_sources(KNN()) == {}
    assert foreign_sources(DoubleScore(MSP(), KNN())) == {}


def test_a_users_class_is_named_by_the_bytes_of_its_file(mine):
    sha256 = hashlib.sha256(Path(mine.__file__).read_bytes()).hexdigest()
    assert foreign_sources(mine.Mine()) == {"mine_of_test": sha256}
    assert foreign_sources(DoubleScore(MSP(), mine.Mine())) == {"mine_of_test": sha256}
    assert foreign_classes(mine.Live()) == [mine.Live, mine.Base]


def test_cached_scores_of_a_users_live_method_are_named_by_its_source(mine):
    """An edit under the same version would else go on with the scores of the code before."""
    before = mine.Live().identity()
    Path(mine.__file__).write_text(SOURCE + "\n# edited\n")
    assert mine.Live().identity() != before
