"""The double score against its formula, the engine's choice of its weight, and that test splits stay out of reach."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from openbench.core.benchmark import Validation
from openbench.core.features import FeatureSet, Head
from openbench.core.method import Method, leaves, version_of
from openbench.core.request import Field, Perturb, Request, Role
from openbench.core.search import with_params
from openbench.engine.evaluate import Fitting, Scoring, fit, score_split
from openbench.engine.tune import TestSplits, TuneContext
from openbench.errors import ConfigError, MethodError, NotFittedError
from openbench.methods.double_score import DoubleScore
from openbench.methods.gradients import ODIN
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP
from tests.engine.toy import split

from .problems import given

CPU = torch.device("cpu")
MUS = [0.0, 0.1, 0.3, 1.0, 3.0, 10.0]


@dataclass
class Column(Method):
    """Reads one logit: a score whose values a test can plant."""

    needs: ClassVar[Request] = Request()
    reference: ClassVar[str] = "test"
    index: int = 0

    def score(self, x):
        return x.logits[:, self.index]


@dataclass
class Source:
    """Logits and features per split, other ones for perturbed inputs, and a log of what was read."""

    asked: list = field(default_factory=list)

    def __call__(self, split, request):
        self.asked.append((split.role, request.fit_on, request.perturb))
        g = torch.Generator().manual_seed(sum(map(ord, split.digest)) + 1000 * (request.perturb is not None))
        shift = 0.0 if split.role.is_id else 1.5
        z = torch.randn(len(split), 3, generator=g) * torch.tensor([1.0, 5.0, 1.0]) + shift
        columns = {Field.LOGITS: z, Field.FEATURES: torch.randn(len(split), 4, generator=g) + 3 * shift}
        wanted = {name: column for name, column in columns.items() if name in request.fields}
        return FeatureSet({**wanted, Field.LABELS: torch.as_tensor(split.labels)})


ID_VAL, OOD_VAL = split("a", Role.ID_VAL, 90), split("b", Role.OOD_VAL, 80)
FITTING = Fitting(split("a", Role.ID_TRAIN, 60), ID_VAL, Head(torch.eye(3, 4), torch.zeros(3)))
ID_TEST, NEAR, FAR = split("a", Role.ID_TEST, 70), split("n", Role.NEAR, 50), split("f", Role.FAR, 40)


def context(source, on=None):
    return TuneContext(on or Validation(ID_VAL, OOD_VAL), FITTING, Scoring(source, CPU, 7))


def columns(source, of):
    z = source(of, Request()).logits.double().numpy()
    return z[:, 0], z[:, 1]


def combined(source, of, mu):
    """The formula in numpy: z-scores on ID validation, then the weighted sum."""
    (risk, ood), (risk_val, ood_val) = columns(source, of), columns(source, ID_VAL)
    return (risk - risk_val.mean()) / risk_val.std() + mu * (ood - ood_val.mean()) / ood_val.std()


def wrong(source, of):
    return source(of, Request()).logits.numpy().argmax(1) != of.labels


def least_risk(source, id_split, ood_splits, mu, fpr):
    """Every threshold in turn: mean loss of what is accepted, where 80 % of ID and not too much of OOD is."""
    ids, losses = combined(source, id_split, mu), wrong(source, id_split)
    ood = np.concatenate([combined(source, of, mu) for of in ood_splits])
    found = [np.inf]
    for threshold in np.concatenate([ids, ood]):
        taken = ids <= threshold
        if taken.mean() >= 0.8 and (ood <= threshold).mean() <= fpr:
            found.append(losses[taken].mean())
    return min(found)


def test_scores_are_the_weighted_sum_of_standard_scores():
    source = Source()
    fitted = fit(DoubleScore(Column(0), Column(1), mu=0.4), FITTING, source, CPU)
    np.testing.assert_allclose(
        score_split(fitted, NEAR, Scoring(source, CPU, 7)), combined(source, NEAR, 0.4), atol=1e-5
    )


def test_each_part_is_fitted_on_its_own_split_and_reads_its_own_inputs():
    source = Source()
    fitted = fit(DoubleScore(ODIN(10.0, 0.1), KNN(k=3)), FITTING, source, CPU)
    fits = {role for role, fit_on, perturb in source.asked if fit_on == role and perturb is None}
    assert fits == {Role.ID_TRAIN}
    source.asked.clear()
    score_split(fitted, FAR, Scoring(source, CPU, 7))
    assert [perturb for _, _, perturb in source.asked] == [Perturb(10.0, 0.1), None]
    with pytest.raises(MethodError, match="read different inputs"):
        fitted.score(source(FAR, Request()))


def test_parts_that_read_differently_moved_features_are_not_scored_on_one_feature_set():
    @dataclass
    class Moved(Column):
        epsilon: float = 0.1

        @property
        def request(self):
            return Request(frozenset({Field.PERTURBED}), second_pass=Perturb(epsilon=self.epsilon))

    x = given(perturbed=torch.zeros(4, 3))
    with pytest.raises(MethodError, match="read different inputs"):
        DoubleScore(Moved(0, 0.1), Moved(1, 0.2)).score(x)
    with pytest.raises(NotFittedError):  # of one step they can be scored together, once fitted
        DoubleScore(Moved(0, 0.1), Moved(1, 0.1)).score(x)


@pytest.mark.parametrize("fpr", [None, 0.75])
def test_the_weight_of_least_validation_risk_is_chosen(fpr):
    source = Source()
    tuned = DoubleScore(Column(0), Column(1), fpr=fpr).search({"mu": MUS}, context(source))
    bound = fpr
    if fpr is None:  # the larger share of OOD that either part accepts where it accepts 80 % of ID
        shares = []
        for a, b in zip(columns(source, ID_VAL), columns(source, OOD_VAL), strict=True):
            truth, certain = np.repeat([1, 0], [90, 80]), np.r_[-a, -b]
            accepted_ood, accepted_id, _ = roc_curve(truth, certain, drop_intermediate=False)
            shares.append(accepted_ood[np.argmax(accepted_id >= 0.8)])
        bound = max(shares)
    risks = [least_risk(source, ID_VAL, (OOD_VAL,), mu, bound + 1e-12) for mu in MUS]
    assert min(risks) < max(risks)
    assert tuned.params == {"mu": MUS[int(np.argmin(risks))]}
    assert [t.get("risk", np.inf) for t in tuned.trials] == pytest.approx(risks)


def test_of_equal_risks_the_largest_auroc_decides():
    @dataclass
    class Right(Source):
        """A classifier without mistakes; beside its logits a score that says nothing of OOD, and one that does."""

        def __call__(self, split, request):
            x = super().__call__(split, request)
            sure = 100.0 * torch.nn.functional.one_hot(x.labels % 3, 3)
            z = torch.cat([sure, torch.roll(x.logits[:, :1], 1), x.logits[:, 2:]], dim=1)
            z[:, 3] -= z[:, 3].mean()
            return given(logits=z, labels=x.labels)

    tuned = DoubleScore(Column(3), Column(4)).search({"mu": MUS}, context(Right()))
    assert {t["risk"] for t in tuned.trials} == {0.0}
    best = max(tuned.trials, key=lambda t: t["auroc"])
    assert tuned.params == best["params"] != {"mu": 0.0}


def test_choosing_the_weight_reads_validation_and_fits_each_part_once():
    source = Source()
    DoubleScore(MSP(), KNN(k=3)).search({"mu": MUS}, context(source))
    read = [role for role, _, _ in source.asked]
    assert set(read) == {Role.ID_TRAIN, Role.ID_VAL, Role.OOD_VAL}
    assert read.count(Role.ID_TRAIN) == 1


def test_the_method_with_the_chosen_weight_comes_fitted():
    method = DoubleScore(Column(0), Column(1))
    tuned = method.search({"mu": [3.0, 0.3, 10.0]}, context(Source()))
    fresh = fit(with_params(method, tuned.params), FITTING, Source(), CPU)
    assert tuned.fitted.params() == fresh.params()
    found, expected = (score_split(m, ID_TEST, Scoring(Source(), CPU, 7)) for m in (tuned.fitted, fresh))
    np.testing.assert_array_equal(found, expected)


def test_the_oracle_chooses_on_all_test_sets_but_keeps_the_units_of_validation():
    source = Source()
    on = context(source, TestSplits(ID_TEST, (NEAR, FAR)))
    tuned = DoubleScore(Column(0), Column(1), fpr=0.9).search({"mu": MUS}, on)
    risks = [least_risk(source, ID_TEST, (NEAR, FAR), mu, 0.9) for mu in MUS]
    assert [t["risk"] for t in tuned.trials] == pytest.approx(risks)
    assert risks[MUS.index(tuned.params["mu"])] == min(risks) < max(risks)
    assert Role.OOD_VAL not in {role for role, _, _ in source.asked}


def test_a_rate_per_ood_set_bounds_the_choice_on_that_set():
    method = DoubleScore(Column(0), Column(1), fpr={"n": 0.6, "f": 0.9})
    for ood, rate in ((NEAR, 0.6), (FAR, 0.9)):
        found, alone = (
            m.search({"mu": MUS}, context(Source(), TestSplits(ID_TEST, (ood,))))
            for m in (method, DoubleScore(Column(0), Column(1), fpr=rate))
        )
        assert found.trials == alone.trials


RATES = {"fpr": {"n": 0.6, "far": 0.9}}


@pytest.mark.parametrize(
    ("given", "on", "space", "message"),
    [
        (RATES, None, {}, "rates for n, far, the weight is chosen on b — .* tune=oracle_per_set"),
        (RATES, TestSplits(ID_TEST, (NEAR, FAR)), {}, "chosen on n and f"),
        (RATES, TestSplits(ID_TEST, (FAR,)), {}, "no rate for the OOD set 'f' — give one"),
        ({"tpr": 1.0, "fpr": 0.0}, None, {}, r"accepts 1 of ID and at most 0 of OOD — raise method.fpr"),
        ({}, None, {"tpr": [0.7, 0.8]}, "`_space_` names mu, tpr — allowed: mu"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused_with_the_way_out(given, on, space, message):
    with pytest.raises((ConfigError, MethodError), match=message):
        DoubleScore(Column(0), Column(1), **given).search({"mu": MUS, **space}, context(Source(), on))


def test_a_part_that_is_no_method_is_refused():
    with pytest.raises(MethodError, match=r"risk — found .* allowed: a node with the `_target_` of a Method"):
        DoubleScore(risk={"k": 3}, ood=MSP())


def test_a_constant_part_is_refused():
    @dataclass
    class Constant(Column):
        def score(self, x):
            return torch.zeros(len(x))

    with pytest.raises(MethodError, match=r"the ood score has mean 0\.0 and standard deviation 0\.0"):
        fit(DoubleScore(Column(0), Constant()), FITTING, Source(), CPU)


def test_a_part_of_a_newer_version_makes_a_newer_composite():
    @dataclass
    class Newer(Column):
        version: ClassVar[int] = 3

    # Parts of a first version leave the composite its own: the ids of its records do not move when parts are counted.
    assert version_of(DoubleScore(Column(0), Column(1))) == DoubleScore.version
    assert version_of(DoubleScore(Column(0), Newer(1))) == DoubleScore.version + 2
    assert version_of(DoubleScore(DoubleScore(Column(0), Newer(1)), Newer(1))) == DoubleScore.version + 4


def test_a_feature_set_with_all_columns_can_be_scored_at_once():
    source = Source()
    fitted = fit(DoubleScore(MSP(), KNN(k=3), mu=0.4), FITTING, source, CPU)
    x = source(FAR, Request(fields=frozenset({Field.LOGITS, Field.FEATURES})))
    np.testing.assert_allclose(fitted.score(x), score_split(fitted, FAR, Scoring(source, CPU, 7)), atol=1e-5)


def test_parts_may_be_composites():
    inner = DoubleScore(Column(0), Column(1), mu=0.0)
    source = Source()
    fitted = fit(DoubleScore(inner, Column(2), mu=0.0), FITTING, source, CPU)
    assert [type(leaf) for leaf in leaves(fitted)] == [Column, Column, Column]
    found = score_split(fitted, FAR, Scoring(source, CPU, 7))
    np.testing.assert_allclose(found, combined(source, FAR, 0.0), atol=1e-5)
