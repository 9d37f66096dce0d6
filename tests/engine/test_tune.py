from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from openbench.core.benchmark import Validation
from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method
from openbench.core.request import Field, Request, Role
from openbench.core.search import grid, with_params
from openbench.engine.evaluate import Fitting, Scoring, fit, score
from openbench.engine.tune import TuneContext, tune
from openbench.errors import FieldError, MethodError

from .toy import Tilt, split

CPU = torch.device("cpu")


@dataclass
class Mean(Method):
    needs: ClassVar[Request] = Request(
        fields=frozenset({Field.FEATURES, Field.LABELS}), fit_on=Role.ID_TRAIN, head=True
    )
    reference: ClassVar[str] = "test"

    def fit(self, train, head):
        assert train.labels.dtype == torch.int64
        self.mean_, self.head_ = train.features.mean(0), head
        return self

    def score(self, x):
        return (x.features - self.learnt("mean_")).norm(dim=1)


@dataclass
class Source:
    """Random columns per split, and a log of what was asked for."""

    shift: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)

    def __call__(self, split, request):
        self.asked.append((split.role, request.perturb))
        g = torch.Generator().manual_seed(len(split.digest) + sum(map(ord, split.digest)))
        z = torch.randn(len(split), 2, generator=g) + self.shift.get(split.role, 0.0)
        columns = {Field.LOGITS: z, Field.FEATURES: z * 2, Field.LABELS: torch.as_tensor(split.labels)}
        return FeatureSet(columns)


VALIDATION = Validation(split("a", Role.ID_VAL, 40), split("b", Role.OOD_VAL, 50))
FITTING = Fitting(split("a", Role.ID_TRAIN, 30), VALIDATION.id_val, Head(torch.eye(2), torch.zeros(2)))


def context(source):
    return TuneContext(VALIDATION, FITTING, Scoring(source, CPU, 7))


def test_the_best_validation_auroc_wins_and_every_trial_is_kept():
    source = Source({Role.OOD_VAL: torch.tensor([0.0, 1.5])})
    tuned = tune(Tilt(), {"angle": [0.0, 90.0, 180.0, 270.0]}, context(source))
    assert tuned.params == {"angle": 90.0}
    z = [source(s, Request()).logits.double() for s in (VALIDATION.id_val, VALIDATION.ood_val)]
    truth = [0] * 40 + [1] * 50
    for trial in tuned.trials:
        a = np.deg2rad(trial["params"]["angle"])
        s = np.concatenate([v.numpy() @ [np.cos(a), np.sin(a)] for v in z])
        assert trial["auroc"] == pytest.approx(roc_auc_score(truth, s), abs=1e-6)


def test_tuning_asks_for_validation_splits_only():
    source = Source()
    tune(Mean(), {}, context(source))
    assert {role for role, _ in source.asked} == {Role.ID_TRAIN, Role.ID_VAL, Role.OOD_VAL}


@dataclass
class Drawn(Mean):
    """Distance to the mean plus a sum of logits, weighed at scoring time; counts its fits."""

    read_by_score: ClassVar[frozenset[str]] = frozenset({"weight"})
    fits: ClassVar[list] = []
    offset: float = 0.0
    weight: float = 0.0

    def __post_init__(self):
        self.require(self.weight < 9, "weight", "below 9")

    def fit(self, train, head):
        self.fits.append(self.offset)
        super().fit(train, head)
        self.mean_ = self.mean_ + self.offset
        return self

    def score(self, x):
        self.stored_ = getattr(self, "stored_", self.weight)  # must not reach the next setting
        return super().score(x) + self.stored_ * x.features.sum(dim=1)


@dataclass
class DrawnAnew(Drawn):
    """The same, fitted at every setting."""

    read_by_score: ClassVar[frozenset[str]] = frozenset()
    fits: ClassVar[list] = []


@pytest.mark.parametrize("keys", [("weight", "offset"), ("offset", "weight")])
def test_settings_that_differ_in_what_score_reads_share_a_fit_and_give_the_trials_of_separate_ones(keys):
    values = {"weight": [0.0, -1.0, 9.0, 2.0], "offset": [0.5, -3.0]}
    space = {key: values[key] for key in keys}
    seen, found = [], []
    for kind in (Drawn, DrawnAnew):
        kind.fits.clear()
        source = Source({Role.OOD_VAL: torch.tensor([-1.0, 0.5])})
        how = TuneContext(VALIDATION, FITTING, Scoring(source, CPU, 7), report=lambda *args: seen.append(args))
        found.append(tune(kind(), space, how))
    assert (Drawn.fits, len(DrawnAnew.fits)) == ([0.5, -3.0], 6)
    assert found[0].params == found[1].params
    shared, separate = ([(t["params"], t.get("auroc")) for t in tuned.trials] for tuned in found)
    assert shared == separate
    assert len({auroc for _, auroc in shared}) > 4
    assert [t["params"] for t in found[0].trials] == grid(space, list(keys))
    assert [done for done, _, _ in seen] == list(range(1, 9)) * 2
    assert all(trial in found[0].trials for _, _, trial in seen[:8])


def test_the_method_that_a_search_ends_with_is_handed_on_where_it_is_the_best_one():
    source = Source({Role.OOD_VAL: torch.tensor([0.0, 1.5])})
    tuned = tune(Drawn(), {"weight": [0.0, 2.0, -1.0]}, context(source))
    again = fit(with_params(Drawn(), tuned.params), FITTING, source, CPU)
    x = source(VALIDATION.id_val, Request())
    assert tuned.fitted.params() == again.params()
    np.testing.assert_array_equal(score(tuned.fitted, x, 7, "a"), score(again, x, 7, "a"))
    first = tune(Drawn(), {"offset": [-1.0, 50.0]}, context(source))
    assert first.params == {"offset": -1.0}
    assert first.fitted is None
    assert tune(DrawnAnew(), {"weight": [2.0, 0.0]}, context(source)).fitted is None  # the last fit is another one


def test_an_infeasible_setting_is_recorded_and_not_chosen():
    tuned = tune(Tilt(), {"angle": [720.0, 45.0]}, context(Source()))
    assert tuned.params == {"angle": 45.0}
    assert "at most 360" in tuned.trials[0]["infeasible"]
    with pytest.raises(MethodError, match="no setting in `_space_` is feasible"):
        tune(Tilt(), {"angle": [720.0, 1000.0]}, context(Source()))


def scored_by(kind, value):
    """Run a method whose score is what a function returns."""
    method = type("Odd", (kind,), {"score": lambda self, x: value(x)})()
    return score(method, Source()(VALIDATION.id_val, Request()), 7, "a (id_val)")


@pytest.mark.parametrize(
    ("kind", "value", "error", "message"),
    [
        (Tilt, lambda x: x.features[:, 0], FieldError, "'features' read but not there"),
        (Mean, lambda x: x.labels.float(), FieldError, "in fit only"),
        (Tilt, lambda x: x.logits[:, 0] * np.nan, MethodError, r"Odd.score on a \(id_val\): 40 of 40 scores are NaN"),
        (Tilt, lambda x: x.logits, MethodError, r"shape \(7, 2\) — \(7,\) expected"),
    ],
)
def test_undeclared_columns_and_scores_that_are_none_are_refused(kind, value, error, message):
    with pytest.raises(error, match=message):
        scored_by(kind, value)
