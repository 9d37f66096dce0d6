"""Methods on few, constant, tiny, huge and signed features: finite scores, or an error that names the method."""

from collections.abc import Callable

import pytest
import torch

from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.request import Field
from openbench.errors import MethodError

from .discovered import again, reading_columns, scores
from .problems import Problem, changed, fitted_on, problem

SECONDS = {"cblof", "dagmm", "deep_svdd", "hbos", "iforest", "opengan"}  # that a fit takes, or compiling its library
SMALL = {"k": 2, "l": 2, "repeats": 3}  # where a method has them: few samples have few neighbours
METHODS = {
    name: again(method, SMALL)
    for name, method in reading_columns()
    if name not in SECONDS and not method.request.layers and Field.PERTURBED not in method.request.fields
}
# What may be refused: nothing is classified correctly once features are so small that the bias decides; a residual is
# rounding where the origin lies far from all features; a detector of PyOD divides by the variance of dead features.
AT_ANY_SCALE = {"GROOD", "LibraryDetector", "OpenMax", "PyOD", "ViM"}
# A covariance needs two samples of a class, a subspace more samples than dimensions, a neighbourhood its neighbours, a
# temperature one sample that is classified wrongly.
OF_A_HANDFUL = AT_ANY_SCALE | {
    "CFOOD",
    "COF",
    "GMM",
    "MDS",
    "MFSMDS",
    "OODD",
    "RMDS",
    "SOD",
    "ScaledMDS",
    "SSD",
    "TempScaling",
}
UNDERFLOWING = {"klm"}  # its templates hold probabilities of zero, from which others are infinitely far


def moved(x: FeatureSet, head: Head, features: torch.Tensor) -> FeatureSet:
    return changed(x, features=features, logits=head(features))


def wrong(data: Problem, change: Callable[[FeatureSet], FeatureSet], refusing: set[str]) -> dict[str, str]:
    """The methods that are neither finite on changed training samples nor refuse them by name, with what they do."""
    found = {}
    for name, method in METHODS.items():
        told = outcome(again(method), data, change)
        own = type(method).__name__
        if told and not (own in refusing and told.startswith((own, str(method.params().get("detector", own))))):
            found[name] = told
    return found


def outcome(method: Method, data: Problem, change: Callable[[FeatureSet], FeatureSet]) -> str:
    """What a method says that refuses; how many scores are not finite; nothing where all are."""
    train = fitted_on(method, data)
    try:
        found = scores(method.fit(train and change(train), data.head), data.test.without_labels())
    except MethodError as error:
        return str(error)
    bad = int((~found.isfinite()).sum())
    return f"{bad} of {len(found)} scores are not finite" if bad else ""


def test_the_methods_are_those_of_the_configs():
    assert len(METHODS) > 70
    assert {"knn", "kpca[kernel=cosine]", "neco[max_logit=False]", "weiper[form=msp]"} < METHODS.keys()


@pytest.mark.parametrize("kind", ["rectified", "signed", "dead", "two_classes", "many_classes"])
def test_scores_are_finite_at_every_scale_of_the_features(kind):
    data = problem(kind, n=120)
    found = {}
    for scale in (1e-6, 1.0, 1e4):
        train, val, test = (moved(x, data.head, scale * x.features) for x in (data.train, data.val, data.test))
        scaled = Problem(train, val, test, data.head)
        found |= {f"{name} ×{scale:g}": told for name, told in wrong(scaled, lambda x: x, AT_ANY_SCALE).items()}
    assert {name: told for name, told in found.items() if name.split()[0] not in UNDERFLOWING} == {}


@pytest.mark.parametrize("n", [2, 7])
def test_a_handful_of_training_samples_gives_finite_scores_or_an_error(n):
    assert wrong(problem(n=120), lambda x: x[:n], OF_A_HANDFUL) == {}
