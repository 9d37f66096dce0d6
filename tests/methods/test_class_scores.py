"""Class-conditional scores against independent references, and prediction sets made of them."""

import importlib
import pkgutil
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from scipy.special import softmax
from sklearn.covariance import EmpiricalCovariance

import openbench.methods
from openbench.core.features import FeatureSet
from openbench.core.method import LiveMethod, Method
from openbench.core.request import Field, Request
from openbench.engine.evaluate import Scoring, class_scores
from openbench.errors import MethodError
from openbench.methods.gaussians import MDS, ScaledMDS
from openbench.methods.gradients import IODIN, ODIN
from openbench.methods.knn import KNN
from openbench.methods.logits import Energy, TempScaling
from openbench.methods.msp import MSP
from openbench.methods.shaping import ReAct
from openbench.metrics import MetricOptions, SetScores, evaluate

from .problems import problem, y

P = problem("rectified")
PRESENT = [0, 1, 2, 4, 5]  # class 3 has no samples
FEATURES, LOGITS = P.test.features.double().numpy(), P.test.logits.double().numpy()


def test_softmax_methods_give_what_a_class_lacks_to_certainty():
    np.testing.assert_allclose(MSP().class_scores(P.test), 1 - softmax(LOGITS, axis=1), atol=1e-6)
    scaled = TempScaling("converged").fit(P.val, None)
    t = float(scaled.temperature_)
    assert t != pytest.approx(1.0, abs=0.01)
    np.testing.assert_allclose(scaled.class_scores(P.test), 1 - softmax(LOGITS / t, axis=1), atol=1e-6)


@pytest.mark.parametrize("method", [MDS(), ScaledMDS(beta=0.0)])
def test_mds_measures_the_distance_to_each_class_mean(method):
    found = method.fit(P.train, None).class_scores(P.test).numpy()
    train, labels = P.train.features.double().numpy(), y(P.train)
    means = np.stack([train[labels == c].mean(axis=0) if c in PRESENT else np.zeros(24) for c in range(6)])
    precision = EmpiricalCovariance(assume_centered=True).fit(train - means[labels]).precision_
    expected = [[mahalanobis(x, mean, precision) ** 2 for mean in means[PRESENT]] for x in FEATURES[:40]]
    np.testing.assert_allclose(found[:40, PRESENT], expected, rtol=2e-3)


@pytest.mark.parametrize("method", [KNN(k=3), MDS(), ScaledMDS()])
def test_a_class_without_training_samples_never_fits(method):
    found = method.fit(P.train, None).class_scores(P.test)
    assert torch.isinf(found[:, 3]).all()
    assert torch.isfinite(found[:, PRESENT]).all()


def test_knn_fitted_without_labels_has_no_class_scores():
    bare = replace(P.train, columns={Field.FEATURES: P.train.features})
    assert KNN(k=3).fit(bare, None).class_scores(P.test) is None


FROM_LOGITS = {
    "msp": (MSP(), 1.0),
    "msp, exact": (MSP(exact=True), 1.0),
    "odin": (ODIN(temperature=2.0), 2.0),
    "odin, hot": (ODIN(temperature=1000.0), 1000.0),
    "odin, probability": (ODIN(temperature=10.0, scale="probability"), 10.0),
    "iodin": (IODIN(temperature=3.0), 3.0),
}


@pytest.mark.parametrize("name", FROM_LOGITS)
def test_class_scores_made_of_probabilities_turn_back_into_them(name):
    method, temperature = FROM_LOGITS[name]
    found = method.class_probabilities(method.class_scores(P.test))
    np.testing.assert_allclose(found, softmax(LOGITS / temperature, axis=1), atol=2e-7)


def test_probabilities_of_a_head_method_are_those_of_its_reshaped_features():
    fitted = ReAct(80.0).fit(P.val, P.head)
    clipped = FEATURES.clip(max=np.percentile(P.val.features.numpy(), 80.0))
    found = fitted.class_probabilities(fitted.class_scores(P.test))
    np.testing.assert_allclose(found, softmax(clipped @ P.weight.T + P.bias, axis=1), atol=1e-5)


def test_only_distances_and_densities_are_not_made_of_probabilities():
    for module in pkgutil.iter_modules(openbench.methods.__path__):
        importlib.import_module(f"openbench.methods.{module.name}")
    pending, known = [Method], set()
    while pending:
        known.add(kind := pending.pop())
        pending += kind.__subclasses__()
    ours = {kind for kind in known if kind.__module__.startswith("openbench.methods.")}
    with_scores = {kind for kind in ours if kind.class_scores not in (Method.class_scores, LiveMethod.class_scores)}
    without = {kind.__name__ for kind in with_scores if kind.class_probabilities is Method.class_probabilities}
    assert without == {"GMM", "KNN", "MDS", "MFSMDS", "NearestMean", "ScaledMDS", "Gram"}


@dataclass
class Wide(Method):
    needs: ClassVar[Request] = Request()
    reference: ClassVar[str] = "test"
    bad: str = "nan"

    def score(self, x):
        return x.logits[:, 0]

    def class_scores(self, x):
        return x.logits * float("nan") if self.bad == "nan" else x.logits[:, 0]


@dataclass
class Images:
    """As much of a split as scoring reads."""

    name: str = "a"
    role: str = "id_test"


def source(split, request):
    return FeatureSet({name: P.test.columns[name] for name in {*request.fields, Field.LABELS}})


SCORING = Scoring(source, torch.device("cpu"), 7)


def test_the_engine_scores_classes_in_batches_without_labels():
    found = class_scores(MSP(), Images(), SCORING)
    np.testing.assert_allclose(found, MSP().class_scores(P.test), atol=1e-7)
    assert found.dtype == np.float32


def test_a_method_without_a_class_conditional_form_reads_nothing():
    assert class_scores(Energy(), Images(), Scoring(None, torch.device("cpu"))) is None


@pytest.mark.parametrize(
    ("bad", "message"), [("nan", r"class_scores on a \(id_test\): .* are NaN"), ("flat", r"\(7, c\) exp")]
)
def test_bad_class_scores_are_an_error_that_names_method_and_split(bad, message):
    with pytest.raises(MethodError, match=f"Wide.*{message}"):
        class_scores(Wide(bad), Images(), SCORING)


def ids(role, rows, by_class):
    x = P.val if role == "id_val" else P.test
    return SetScores("c", role, np.arange(len(x.labels), dtype=float), labels=y(x), **{rows: by_class})


OPTIONS = MetricOptions(families=("ranking", "prediction_sets"), alphas=(0.1,))
OOD = SetScores("n", "near", np.array([1.0, 2.0]))


def sets_of(rows, val, test):
    """The prediction sets made of columns (n, c) of ID validation and test."""
    return evaluate([ids("id_val", rows, val), ids("id_test", rows, test), OOD], OPTIONS)["id"]


def test_sets_of_softmaxed_mds_scores_are_smaller_than_those_of_the_scores_themselves():
    # A distance in units of its own says little about an input far from all classes; its softmax compares classes.
    fitted = MDS().fit(P.train, None)
    val, test = (fitted.class_scores(x).double().numpy() for x in (P.val, P.test))
    found = sets_of("class_scores", val, test)
    p, labels = softmax(-val, axis=1), y(P.val)
    q = np.sort(1 - p[np.arange(len(p)), labels])[int(np.ceil((len(p) + 1) * 0.9)) - 1]
    sets = 1 - softmax(-test, axis=1) <= q
    assert found["score_lac_size@0.1"] == pytest.approx(sets.sum(axis=1).mean())
    assert found["score_lac_size@0.1"] < found["score_size@0.1"]
