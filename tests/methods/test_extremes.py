"""Methods on few, constant, tiny, huge and signed features: finite scores, or an error that names the method."""

import pytest
import torch

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field
from openbench.errors import MethodError
from openbench.methods.cadref import CADRef
from openbench.methods.cfood import CFOOD
from openbench.methods.combood import CombOOD
from openbench.methods.grood import GROOD
from openbench.methods.kpca import KPCA
from openbench.methods.line import LINe
from openbench.methods.lts import LTS
from openbench.methods.nac import NAC
from openbench.methods.neco import NECO
from openbench.methods.optfs import OptFS
from openbench.methods.weiper import WeiPer

from .problems import problem

METHODS = {
    "CADRef": CADRef,
    "CARef": lambda: CADRef(False),
    "CFOOD": lambda: CFOOD(1.0),
    "CombOOD": lambda: CombOOD(k=2),
    "GROOD": GROOD,
    "KPCA": KPCA,
    "KPCA cosine": lambda: KPCA("cosine"),
    "LINe": LINe,
    "LTS": LTS,
    "NAC": NAC,
    "NECO": NECO,
    "NECO plain": lambda: NECO(standardise=False, max_logit=False),
    "OptFS": OptFS,
    "OptFS energy": lambda: OptFS(form="energy"),
    "WeiPer": lambda: WeiPer(repeats=3),
    "WeiPer msp": lambda: WeiPer("msp", repeats=3),
}


def moved(x: FeatureSet, head: Head, features: torch.Tensor) -> FeatureSet:
    return FeatureSet({**x.columns, Field.FEATURES: features, Field.LOGITS: head(features)})


def scored(name: str, train: FeatureSet, test: FeatureSet, head: Head) -> torch.Tensor | None:
    """Scores, or None where the method says that it cannot."""
    try:
        fitted = METHODS[name]().fit(train, head)
    except MethodError as error:
        names = (name.split()[0], type(METHODS[name]()).__name__)
        assert str(error).startswith(names)  # noqa: PT017 - one of two good outcomes
        return None
    return fitted.score(test.without_labels())


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("kind", ["rectified", "signed", "dead", "two_classes", "many_classes"])
@pytest.mark.parametrize("name", METHODS)
def test_scores_are_finite_at_every_scale_of_the_features(name, kind, scale):
    data = problem(kind, n=120)
    found = scored(name, *(moved(x, data.head, scale * x.features) for x in (data.train, data.test)), data.head)
    assert found is None or bool(found.isfinite().all())
    # A mean energy below zero, and features so small that the bias decides every class, wrongly.
    assert found is not None or name in ("CADRef", "GROOD")


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("name", METHODS)
def test_a_handful_of_training_samples_gives_finite_scores_or_an_error(name, n):
    data = problem(n=120)
    found = scored(name, data.train[:n], data.test, data.head)
    assert found is None or bool(found.isfinite().all())
    assert found is not None or n == 1 or name in ("CADRef", "GROOD")


@pytest.mark.parametrize("value", [0.0, 0.7])
@pytest.mark.parametrize("name", METHODS)
def test_training_samples_that_are_all_equal_give_finite_scores_or_an_error(name, value):
    data = problem(n=120)
    train = moved(data.train, data.head, torch.full((120, 24), value))
    found = scored(name, train, data.test, data.head)
    assert found is None or bool(found.isfinite().all())
