"""Layer weights by regression: the optimum of the stated objective, from validation alone, distances taken once."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from openbench.core.benchmark import Validation
from openbench.core.features import FeatureSet, Head
from openbench.core.request import Field, Role
from openbench.core.search import with_params
from openbench.engine.evaluate import Fitting, Scoring, fit, score_split
from openbench.engine.tune import TuneContext
from openbench.errors import ConfigError, MethodError
from openbench.methods.maps import MDSEnsemble, logistic_weights
from tests.engine.toy import split

LAYERS = ["stage1", "stage2"]
CPU = torch.device("cpu")


VALIDATION = Validation(split("some", Role.ID_VAL, 60), split("some", Role.OOD_VAL, 80))
FITTING = Fitting(split("some", Role.ID_TRAIN, 50), VALIDATION.id_val, Head(torch.eye(2), torch.zeros(2)))


@dataclass
class Source:
    """Pooled maps; OOD validation differs in the second layer, weakly, and the first is noise. Logs what is asked."""

    asked: list = field(default_factory=list)

    def __call__(self, split, request):
        self.asked.append(split.role)
        g = torch.Generator().manual_seed(sum(map(ord, split.digest)))
        maps = {layer: torch.randn(len(split), 3, generator=g) for layer in LAYERS}
        maps["stage1"] *= 1 + 3 * torch.rand(len(split), 1, generator=g)
        if split.role == Role.OOD_VAL:
            maps["stage2"] += 1.5
        return FeatureSet({Field.LABELS: torch.from_numpy(split.labels.copy())}, maps)


def context(source, reports=None):
    report = (lambda *seen: reports.append(seen)) if reports is not None else (lambda *seen: None)
    return TuneContext(VALIDATION, FITTING, Scoring(source, CPU, 7), report)


def objective(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Penalised log loss with intercept; each side's losses weigh n/(2·its size)."""
    weight = np.where(y == 1, len(y) / (2 * y.sum()), len(y) / (2 * (1 - y).sum()))
    losses = np.logaddexp(0, np.where(y == 1, -1, 1) * (x @ w[1:] + w[0]))
    return float((weight * losses).sum() + 0.5 * w[1:] @ w[1:])


def test_weights_minimise_the_balanced_penalised_log_loss():
    rng = np.random.default_rng(0)
    inside, outside = rng.gamma(2, size=(80, 3)), rng.gamma(3, size=(30, 3)) * [1, 2, 50]
    x = np.concatenate([inside, outside])
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    y = np.repeat([0, 1], [80, 30])
    best = minimize(objective, np.zeros(4), args=(standard, y), method="BFGS", options={"gtol": 1e-8}).x
    np.testing.assert_allclose(logistic_weights(inside, outside), best[1:] / x.std(axis=0), rtol=1e-3)


def test_regression_beats_equal_weights_and_is_recorded_as_numbers():
    reports = []
    tuned = MDSEnsemble(LAYERS).search({"weights": ["equal", "logistic"]}, context(Source(), reports))
    equal, logistic = tuned.trials
    assert equal["params"] == {"weights": "equal"}
    assert tuned.params == logistic["params"]
    assert len(tuned.params["weights"]) == 2
    assert tuned.params["weights"][1] > 0
    assert logistic["auroc"] > equal["auroc"] + 0.02
    assert [(done, total) for done, total, _ in reports] == [(1, 2), (2, 2)]


def test_the_auroc_of_a_trial_is_that_of_the_method_with_its_weights():
    tuned = MDSEnsemble(LAYERS).search({"weights": ["equal", "logistic", [1.0, 0.0]]}, context(Source()))
    for trial in tuned.trials:
        method = fit(with_params(MDSEnsemble(LAYERS), trial["params"]), FITTING, Source(), CPU)
        s = [score_split(method, split, Scoring(Source(), CPU, 7)) for split in (VALIDATION.id_val, VALIDATION.ood_val)]
        truth = np.repeat([0, 1], [len(part) for part in s])
        assert trial["auroc"] == pytest.approx(roc_auc_score(truth, np.concatenate(s)), abs=1e-6)


def test_the_method_with_the_chosen_weights_comes_fitted():
    space = {"weights": ["equal", "logistic"], "layers": [["stage1"], LAYERS]}
    tuned = MDSEnsemble(LAYERS).search(space, context(Source()))
    fresh = fit(with_params(MDSEnsemble(LAYERS), tuned.params), FITTING, Source(), CPU)
    assert tuned.fitted.params() == fresh.params()
    found, expected = (score_split(m, VALIDATION.ood_val, Scoring(Source(), CPU, 7)) for m in (tuned.fitted, fresh))
    np.testing.assert_array_equal(found, expected)


def test_only_validation_is_read_and_distances_are_taken_once():
    source = Source()
    MDSEnsemble(LAYERS).search({"weights": ["equal", "logistic"]}, context(source))
    assert set(source.asked) == {Role.ID_TRAIN, Role.ID_VAL, Role.OOD_VAL}
    assert source.asked.count(Role.OOD_VAL) == len(LAYERS)


def test_other_hyper_parameters_are_searched_with_the_weights():
    space = {"weights": ["equal", "logistic"], "layers": [["stage1"], LAYERS]}
    tuned = MDSEnsemble(LAYERS).search(space, context(Source()))
    assert [trial["params"]["layers"] for trial in tuned.trials] == [["stage1"]] * 2 + [LAYERS] * 2
    assert tuned.params["layers"] == LAYERS


def test_settings_that_cannot_be_are_recorded_or_named():
    tuned = MDSEnsemble(LAYERS).search({"weights": [[1.0], "equal"]}, context(Source()))
    assert "one per layer" in tuned.trials[0]["infeasible"]
    with pytest.raises(MethodError, match="none of the 1 settings"):
        MDSEnsemble(LAYERS).search({"weights": [[1.0]]}, context(Source()))
    with pytest.raises(ConfigError, match="alpha"):
        MDSEnsemble(LAYERS).search({"alpha": [1.0]}, context(Source()))
