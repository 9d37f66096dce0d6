"""Tuning without OOD data: held-out classes from the cached features, and what may not be tuned so."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from openbench.config.folders import shipped
from openbench.core.features import FeatureSet, Head
from openbench.core.method import LiveMethod, Method
from openbench.core.preprocess import Preprocess
from openbench.core.request import CLASSES, Field, Mixing, Perturb, Request, Role, Texts
from openbench.core.search import ChosenMethod
from openbench.digest import digest
from openbench.engine import run as engine
from openbench.engine.evaluate import Fitting, Scoring, fit, score_split
from openbench.engine.run import RunSpec
from openbench.engine.tune import Tuning, check_held_out, folds_of, held_out, tune
from openbench.errors import OpenbenchError
from openbench.methods.double_score import DoubleScore
from openbench.methods.logits import Energy
from openbench.methods.msp import MSP

from .toy import split, toy

CPU = torch.device("cpu")
NAMES = ("ant", "bee", "cat", "dog", "eel")
C, D = len(NAMES), 4
HEAD = Head(torch.arange(float(C * D)).reshape(C, D).sin(), torch.linspace(-1, 1, C))


class Unreadable:
    """Images of an OOD set: nobody may look at one."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        raise AssertionError("an OOD image was read")


def ids(role, n=40):
    part = split(str(role), role, n)
    return replace(part, labels=np.arange(n) * 7 % C, classes=NAMES)


def unreadable(role):
    return replace(split(str(role), role, 30), items=Unreadable())


BENCHMARK = replace(
    toy(near={"n": unreadable(Role.NEAR)}, far={"f": unreadable(Role.FAR)}, ood_val=unreadable(Role.OOD_VAL)),
    classes=NAMES,
    id_train=ids(Role.ID_TRAIN, 60),
    id_val=ids(Role.ID_VAL),
    id_test=ids(Role.ID_TEST),
)


class Pixels:
    """Features are the means of four blocks of pixels, logits those of the head: columns of images that are read."""

    def __call__(self, read, request):
        images = torch.from_numpy(np.stack([read.items[i] for i in range(len(read))]))
        features = images.float().reshape(len(read), D, -1).mean(2) / 64
        columns = {Field.FEATURES: features, Field.LOGITS: HEAD(features), Field.LABELS: torch.as_tensor(read.labels)}
        return FeatureSet({name: columns[name] for name in request.fields})

    def texts(self, texts):
        return torch.eye(C, D) if texts.words == CLASSES else torch.ones(7, D)


def silent(done, total, trial):
    """Report nothing."""


SCORING = Scoring(Pixels(), CPU, 16)
FITTING = Fitting(BENCHMARK.id_train, BENCHMARK.id_val, HEAD, BENCHMARK.ood_val)


@dataclass
class Everything(Method):
    """Reads whatever a method may: features, logits, labels and the classifier."""

    needs: ClassVar[Request] = Request(
        frozenset({Field.FEATURES, Field.LOGITS, Field.LABELS}), fit_on=Role.ID_TRAIN, head=True
    )
    reference: ClassVar[str] = "test"
    weight: float = 1.0

    def fit(self, train, head):
        names = train.labels.unique()
        assert names.tolist() == list(range(train.logits.shape[1]))
        self.means_ = torch.stack([train.features[train.labels == k].mean(0) for k in names])
        self.logits_, self.head_ = train.logits.mean(0), head
        return self

    def score(self, x):
        nearest = torch.cdist(x.features, self.means_).min(1).values
        return self.weight * nearest - (x.logits - self.logits_).max(1).values + self.head_(x.features).min(1).values


def columns(read):
    """(features, logits, labels) of a split as float64, without the code under test."""
    images = np.stack([read.items[i] for i in range(len(read))]).astype(float)
    features = images.reshape(len(read), D, -1).mean(2) / 64
    return features, features @ HEAD.weight.double().numpy().T + HEAD.bias.double().numpy(), read.labels


def expected(weight, held):
    """The AUROC of a fold: every array is cut by hand."""
    kept = [k for k in range(C) if k not in held]
    features, logits, labels = columns(BENCHMARK.id_train)
    means = np.stack([features[labels == k].mean(0) for k in kept])
    mean_logits = logits[np.isin(labels, kept)][:, kept].mean(0)
    f, z, y = columns(BENCHMARK.id_val)
    nearest = np.linalg.norm(f[:, None] - means, axis=2).min(1)
    head = f @ HEAD.weight.double().numpy()[kept].T + HEAD.bias.double().numpy()[kept]
    scores = weight * nearest - (z[:, kept] - mean_logits).max(1) + head.min(1)
    return roc_auc_score(np.isin(y, held), scores)


def contexts(folds=2, seed=3):
    return [held_out(held, BENCHMARK, FITTING, SCORING, silent) for held in folds_of(C, folds, seed)]


def test_a_trial_is_the_mean_auroc_of_folds_whose_rows_columns_and_classifier_are_left_out():
    space = {"weight": [0.5, 1.0, 5.0]}  # not 0: scores would be tied
    tuned = tune(Everything(), space, *contexts())
    truth = [np.mean([expected(w, held) for held in folds_of(C, 2, 3)]) for w in space["weight"]]
    assert [trial["auroc"] for trial in tuned.trials] == pytest.approx(truth, abs=1e-9)
    assert tuned.params == {"weight": space["weight"][int(np.argmax(truth))]}
    assert tuned.fitted is None  # that of a fold lacks classes


def test_names_of_held_out_classes_are_not_among_the_texts():
    source = held_out(np.array([1, 3]), BENCHMARK, FITTING, SCORING, silent).scoring.features
    assert source.texts(Texts(CLASSES)).tolist() == torch.eye(C, D)[[0, 2, 4]].tolist()
    assert len(source.texts(Texts("wordnet_nouns"))) == 7


def test_each_class_is_held_out_once_by_a_draw_of_the_seed():
    for classes, folds, sizes in ((10, 5, [2] * 5), (5, 2, [3, 2]), (4, 9, [1] * 4)):
        found = folds_of(classes, folds, 0)
        assert [len(part) for part in found] == sizes
        assert sorted(np.concatenate(found)) == list(range(classes))
    assert [part.tolist() for part in folds_of(10, 5, 0)] == [part.tolist() for part in folds_of(10, 5, 0)]
    assert [part.tolist() for part in folds_of(10, 5, 0)] != [part.tolist() for part in folds_of(10, 5, 1)]


@pytest.mark.parametrize("strategy", ["held_out_classes", "synthetic"])
def test_no_ood_image_is_read(strategy):
    spec = RunSpec(BENCHMARK, Backbone(), Everything(), "m", {"weight": [0.0, 1.0]}, Tuning(strategy))
    assert len(engine._tune(spec, FITTING, SCORING).trials) == 2
    with pytest.raises(AssertionError, match="an OOD image was read"):
        engine._tune(replace(spec, tuning=Tuning("validation")), FITTING, SCORING)


class Backbone:
    preprocess = Preprocess(4, 4)


def test_a_setting_that_one_fold_refuses_is_infeasible():
    @dataclass
    class Picky(Everything):
        def fit(self, train, head):
            self.require(self.weight < 5 or len(train) > 30, "weight", "below 5")
            return super().fit(train, head)

    trials = tune(Picky(), {"weight": [1.0, 5.0]}, *contexts()).trials
    assert [sorted(trial) for trial in trials] == [["auroc", "params"], ["infeasible", "params"]]


def asks(**request):
    @dataclass
    class Asks(MSP):
        needs: ClassVar[Request] = Request(**request)

    return Asks()


@dataclass
class Live(LiveMethod):
    reference: ClassVar[str] = "test"

    def score_images(self, images, backbone):
        return images.sum(dim=(1, 2, 3))


FEATURES = frozenset({Field.FEATURES})


@pytest.mark.parametrize(
    "method",
    [
        Live(),
        asks(perturb=Perturb()),
        asks(second_pass=Perturb()),
        asks(fields=FEATURES | {Field.MIXED}, mixing=Mixing()),
        asks(layers=("confidence",)),
        DoubleScore(MSP(), Energy()),
    ],
)
def test_what_needs_the_held_out_classes_is_refused(method):
    with pytest.raises(OpenbenchError, match="'m' has a search of its own, or reads what comes of a network with all"):
        check_held_out(ChosenMethod("m", method, {}), BENCHMARK, 5)
    check_held_out(ChosenMethod("m", asks(layers=("stage3",)), {}), BENCHMARK, 5)


def test_two_classes_and_labels_must_be_left():
    chosen = ChosenMethod("m", MSP(), {})
    check_held_out(chosen, BENCHMARK, 2)  # three are held out, two are left
    few = replace(BENCHMARK.id_val, labels=BENCHMARK.id_val.labels % 3)
    three = replace(
        BENCHMARK, classes=NAMES[:3], id_val=few, **{s: replace(few, role=Role(s)) for s in ("id_train", "id_test")}
    )
    with pytest.raises(OpenbenchError, match="has 3 classes, and a fold of 2 leaves fewer than 2"):
        check_held_out(chosen, three, 2)
    check_held_out(chosen, three, 3)
    unlabelled = replace(BENCHMARK.id_val, labels=np.full(40, -1))
    with pytest.raises(OpenbenchError, match="no labelled ID validation images"):
        check_held_out(chosen, replace(BENCHMARK, id_val=unlabelled), 5)


def test_strategy_folds_recipes_and_seed_are_part_of_the_identity():
    words = ("held_out_classes", "synthetic", "validation", "none", "oracle")
    typed = [(word, {}) for word in words]
    typed += [("held_out_classes", {"folds": 4}), ("held_out_classes", {"seed": 1})]
    typed += [("synthetic", {"recipes": ["noise"]}), ("synthetic", {"seed": 1})]
    nodes = [{**(shipped("tune", word) or {}), **values} for word, values in typed]
    assert len({digest(node) for node in nodes}) == len(typed)
    # Those of earlier records have what they had.
    assert [sorted(key for key in node if key[0] != "_") for node in nodes[2:5]] == [["strategy"]] * 3


def test_a_trial_of_the_oracle_has_the_auroc_of_each_set():
    benchmark = replace(BENCHMARK, near={name: split(name, Role.NEAR, 30) for name in ("n", "mm")}, far={})
    spec = RunSpec(benchmark, Backbone(), Everything(), "m", {"weight": [0.0, 1.0]}, Tuning("oracle"))
    for trial in engine._tune(spec, FITTING, SCORING).trials:
        method = fit(Everything(**trial["params"]), FITTING, SCORING.features, CPU)
        ids, *oods = (score_split(method, s, SCORING) for s in (benchmark.id_test, *benchmark.near.values()))
        truth = [roc_auc_score([0] * 40 + [1] * 30, np.concatenate([ids, ood])) for ood in oods]
        assert list(trial["sets"].values()) == pytest.approx(truth, abs=1e-9)
        assert list(trial["sets"]) == ["n", "mm"]
