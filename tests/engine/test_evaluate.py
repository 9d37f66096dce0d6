"""What fitting and scoring read."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from openbench.core.features import FeatureSet, Head
from openbench.core.method import LiveMethod, Method
from openbench.core.request import Field, Mixing, Perturb, Request, Role
from openbench.engine.evaluate import Fitting, Scoring, fit, for_layers, score_split
from openbench.features.extract import column_of
from openbench.methods.double_score import DoubleScore
from openbench.methods.knn import KNN
from openbench.methods.maps import Gram, RankFeat
from openbench.methods.msp import MSP

from .toy import split

CPU = torch.device("cpu")
STEP, BESIDE = Perturb(10.0, 0.1), Perturb(kind="flat", share=0.5)


@dataclass
class Stepped(Method):
    """Reads logits of a moved input, and features of another beside them."""

    needs: ClassVar[Request] = Request(
        frozenset({Field.LOGITS, Field.PERTURBED, Field.LABELS}), Role.ID_TRAIN, perturb=STEP, second_pass=BESIDE
    )
    reference: ClassVar[str] = "test"

    def fit(self, train, head):
        return self

    def score(self, x):
        return x.logits[:, 0]


def test_fit_reads_the_input_as_it_is_and_score_the_moved_one():
    asked = []

    def source(read, request):
        asked.append((read.role, request.perturb, request.second_pass))
        column = torch.arange(2.0 * len(read)).reshape(-1, 2)
        return FeatureSet({Field.LOGITS: column, Field.PERTURBED: column, Field.LABELS: torch.as_tensor(read.labels)})

    fitting = Fitting(split("a", Role.ID_TRAIN), split("a", Role.ID_VAL), Head(torch.eye(2), torch.zeros(2)))
    method = fit(Stepped(), fitting, source, CPU)
    score_split(method, split("f", Role.FAR), Scoring(source, CPU, 3))
    # The step beside belongs to the column, not to the scoring: both read it.
    assert asked == [(Role.ID_TRAIN, None, BESIDE), (Role.FAR, STEP, BESIDE)]


@dataclass
class Pruning(Method):
    """Prunes the classifier that it is given."""

    needs: ClassVar[Request] = Request(frozenset({Field.LOGITS}), head=True)
    reference: ClassVar[str] = "test"

    def fit(self, train, head):
        head.weight.zero_()
        head.bias.fill_(7.0)
        return self

    def score(self, x):
        return x.logits[:, 0]


def test_a_method_that_changes_its_classifier_does_not_change_that_of_the_next():
    fitting = Fitting(split("a", Role.ID_TRAIN), split("a", Role.ID_VAL), Head(torch.eye(2), torch.zeros(2)))
    fit(Pruning(), fitting, lambda read, request: FeatureSet({}), CPU)
    assert fitting.head.weight.equal(torch.eye(2))
    assert fitting.head.bias.equal(torch.zeros(2))


@dataclass
class Mixed(LiveMethod):
    """Runs the network after it has learnt from mixed images."""

    needs: ClassVar[Request] = Request(
        frozenset({Field.FEATURES, Field.MIXED}), fit_on=Role.ID_VAL, mixing=Mixing((0.5,))
    )
    reference: ClassVar[str] = "test"

    def fit(self, train, head):
        return self

    def score_images(self, images, backbone):
        return images.sum(dim=(1, 2, 3))


class Columns:
    """The same features of every split."""

    def __call__(self, read, request):
        return FeatureSet({Field.FEATURES: torch.eye(len(read), 2)})

    def mixed(self, read, others, mixing):
        return torch.eye(len(read), 2)


def test_scores_of_a_network_are_not_reused_where_other_images_were_mixed_into_what_was_learnt():
    head = Head(torch.eye(2), torch.zeros(2))

    def column(name):
        train, val = split("a", Role.ID_TRAIN), split("b", Role.ID_VAL)
        return column_of(fit(Mixed(), Fitting(train, val, head, split(name, Role.OOD_VAL)), Columns(), CPU))

    assert column("v") == column("v")
    assert column("v") != column("w")


def test_a_composite_learns_from_its_fitted_parts_scores_of_id_validation():
    def source(read, request):
        column = torch.arange(2.0 * len(read)).reshape(-1, 2) * (10 if read.role == Role.ID_VAL else 1)
        return FeatureSet({Field.LOGITS: column, Field.PERTURBED: column, Field.LABELS: torch.as_tensor(read.labels)})

    fitting = Fitting(split("a", Role.ID_TRAIN), split("a", Role.ID_VAL), Head(torch.eye(2), torch.zeros(2)))
    method = fit(DoubleScore(Stepped(), Stepped(), mu=1.0), fitting, source, CPU)
    scores = np.arange(0.0, 12, 2)  # of both parts on the far set, a tenth of those on validation
    mean, std = 10 * scores.mean(), 10 * scores.std()
    found = score_split(method, split("f", Role.FAR), Scoring(source, CPU, 3))
    np.testing.assert_allclose(found, 2 * (scores - mean) / std, rtol=1e-6)


THREE = ("stage1", "stage2", "stage3", "confidence")


def test_every_stage_means_those_that_the_backbone_has():
    found = for_layers(Gram(powers=3), THREE)
    assert found.params() == {**Gram(powers=3).params(), "layers": ["stage1", "stage2", "stage3"]}
    assert found.request.layers == ("stage1", "stage2", "stage3")


def test_parts_of_a_composite_are_looked_into():
    found = for_layers(DoubleScore(MSP(), Gram(), mu=2.0), THREE)
    assert (found.mu, found.ood.layers, found.risk) == (2.0, ["stage1", "stage2", "stage3"], MSP())


def test_named_layers_and_methods_that_read_none_stay():
    for method in (Gram(["stage4"]), KNN(7), RankFeat()):
        assert for_layers(method, THREE) is method
