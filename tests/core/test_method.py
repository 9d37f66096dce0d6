"""What every method inherits: its name in the cache, its parts, the energy of reshaped features."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from openbench.core import method as method_module
from openbench.core.features import FeatureSet, Head
from openbench.core.method import HeadMethod, LiveMethod, leaves, version_of
from openbench.core.request import Field, Perturb, Request, Role
from openbench.core.scores import SetScores
from openbench.digest import digest
from openbench.errors import MethodError, NotFittedError
from openbench.methods.double_score import DoubleScore
from openbench.methods.gradients import ODIN, PRO
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP


@dataclass
class Doubled(HeadMethod):
    reference: ClassVar[str] = "-"

    def reshape(self, features):
        return 2 * features


@dataclass
class Fitted(LiveMethod):
    reference: ClassVar[str] = "-"
    needs: ClassVar[Request] = Request(fields=frozenset(), fit_on=Role.ID_TRAIN)
    width: float = 0.5

    def score_images(self, images, backbone):
        return images.mean(dim=(1, 2, 3))


def test_the_energy_of_reshaped_features_is_the_same_for_few_and_many_rows(monkeypatch):
    monkeypatch.setattr(method_module, "_BLOCK", 3)
    f, w, b = np.arange(14.0).reshape(7, 2) / 10, np.array([[1.0, 2.0], [0.0, -1.0]]), np.array([0.5, 0.0])
    x = FeatureSet({Field.FEATURES: torch.tensor(f, dtype=torch.float32)})
    energy = Doubled().fit(None, Head(torch.tensor(w).float(), torch.tensor(b).float()))
    z = 2 * f @ w.T + b
    np.testing.assert_allclose(energy.score(x), -np.log(np.exp(z).sum(axis=1)), rtol=1e-6)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(energy.class_scores(x), 1 - p, atol=1e-6)
    np.testing.assert_allclose(energy.class_probabilities(energy.class_scores(x)), p, atol=1e-6)
    with pytest.raises(MethodError, match="needs the classifier head"):
        Doubled().fit(None, None)
    with pytest.raises(NotFittedError, match="before fit"):
        Doubled().score(x)


def test_cached_scores_of_a_live_method_are_named_by_what_shapes_them_once_it_is_fitted():
    method = Fitted(width=0.25)
    with pytest.raises(NotFittedError, match="before it was fitted"):
        method.identity()
    method.fitted_on_ = "split"
    named = method.identity()
    assert {key: named[key] for key in ("version", "params", "fitted_on")} == {
        "version": 1,
        "params": {"width": 0.25},
        "fitted_on": "split",
    }
    assert named["method"].endswith(".Fitted")


def test_a_live_method_has_no_scores_of_columns():
    with pytest.raises(MethodError, match="it scores images"):
        Fitted().score(FeatureSet({Field.LOGITS: torch.zeros(1, 2)}))
    assert Fitted().class_scores(FeatureSet({Field.LOGITS: torch.zeros(1, 2)})) is None


def test_the_version_of_a_composite_rises_with_that_of_its_parts(monkeypatch):
    double = DoubleScore(MSP(), DoubleScore(KNN(), MSP()))
    before = version_of(double)
    assert before == DoubleScore.version + (DoubleScore.version - 1) + (KNN.version - 1) + 2 * (MSP.version - 1)
    monkeypatch.setattr(KNN, "version", KNN.version + 3)
    assert version_of(double) == before + 3
    assert [type(leaf) for leaf in leaves(double)] == [MSP, KNN, MSP]


def test_parts_are_there_only_after_they_were_fitted():
    double = DoubleScore(MSP(), MSP())
    with pytest.raises(NotFittedError, match="before its parts were fitted"):
        _ = double.fitted_parts
    with pytest.raises(MethodError, match=r"^DoubleScore\.fit: each part is fitted on its own split"):
        double.fit(FeatureSet({Field.LOGITS: torch.arange(6.0).view(2, 3)}), None)
    double.fit_parts(lambda part: part, lambda part: torch.arange(4.0))
    assert [type(part) for part in double.fitted_parts.values()] == [MSP, MSP]


def test_parts_that_read_other_inputs_are_not_scored_from_one_set_of_columns():
    x = FeatureSet({Field.LOGITS: torch.eye(3)})
    for parts in ((MSP(), ODIN()), (ODIN(epsilon=0.1), ODIN(epsilon=0.2))):
        double = DoubleScore(*parts).fit_parts(lambda part: part, lambda part: torch.arange(4.0))
        with pytest.raises(MethodError, match="read different inputs"):
            double.score(x)


def test_a_request_asks_for_logits_unless_told_and_its_later_fields_do_not_rename_older_caches():
    assert Request().fields == {Field.LOGITS}
    names = ["logits", "features", "maps", "labels", "perturbed", "mixed", "patches", "text"]
    assert [str(name) for name in Field] == names
    older = {"__type__": "Perturb", "temperature": 1000, "epsilon": 0.0014, "kind": "sign"}
    assert digest(Perturb()) == digest(older)
    assert digest(Perturb(share=0.5)) == digest({**older, "share": 0.5})


@pytest.mark.parametrize(
    ("role", "predictions", "correct"),
    [
        (Role.ID_TEST, [0, 1, 1], [True, False, True]),
        (Role.ID_TEST, [-1, 1, 1], [False, False, True]),  # an image without a prediction among others
        (Role.ID_TEST, [0, 0, 0], [True, True, False]),  # the first class is one like another
        (Role.ID_TEST, [-1, -1, -1], None),  # a network of other classes
        (Role.NEAR, [0, 1, 1], None),
        (Role.ID_TEST, [], []),
    ],
)
def test_predictions_are_correct_where_something_is_classified(role, predictions, correct):
    n = len(predictions)
    labels, predictions = np.array([0, 0, 1][:n]), np.array(predictions, np.int64)
    found = SetScores.of_split("x", role, np.zeros(n, np.float32), labels, predictions)
    assert (found.correct if correct is None else found.correct.tolist()) == correct


def test_live_methods_outside_openbench_are_identified_by_their_source():
    foreign = Fitted()
    foreign.fitted_on_ = "split"
    content = Path(__file__).read_bytes()
    assert hashlib.sha256(content).hexdigest() in foreign.identity()["sources"].values()
    assert "sources" not in PRO().identity()
