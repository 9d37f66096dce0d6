"""What every method does without the split or the head that it needs, and that batches and blocks change nothing."""

import re

import pytest
import torch

from openbench.core.features import FeatureSet, Head
from openbench.core.request import Role
from openbench.errors import MethodError
from openbench.methods.gaussians import SSD
from openbench.methods.histograms import WeiPer
from openbench.methods.knn import KNN
from openbench.methods.logits import TempScaling
from openbench.methods.neighbours import CFOOD, OODD, CombOOD, Relation
from openbench.methods.shaping import ASH, LTS, SCALE, LINe
from openbench.methods.subspaces import NECO, Residual, ViM
from openbench.methods.tabular import COF, COPOD, ECOD, SOD

from .discovered import NODES, again, reading_columns, scores
from .problems import assert_equal, problem, scores as fitted_scores

METHODS = {name: method for name, method in reading_columns() if name in NODES}
HEADED = [name for name, method in METHODS.items() if method.request.head and method.request.fit_on is None]
FITTED = [name for name, method in METHODS.items() if method.request.fit_on is not None]


def refusal(name: str, train: FeatureSet | None, head: Head | None) -> str:
    """What a method says to what it cannot be fitted on."""
    with pytest.raises(MethodError) as raised:
        again(METHODS[name]).fit(train, head)
    return str(raised.value)


def unlike(said: dict[str, str], pattern: str) -> dict[str, str]:
    """The methods that do not say what they should, with their name in front."""
    return {n: text for n, text in said.items() if not re.match(rf"{type(METHODS[n]).__name__}{pattern}", text)}


def test_methods_refuse_by_their_name_what_they_cannot_be_fitted_on():
    data = problem()
    assert len(HEADED) > 3
    assert len(FITTED) > 40
    no_head = r"((\.fit)?: .*found None| needs the classifier head)"
    assert unlike({name: refusal(name, None, None) for name in HEADED}, no_head) == {}
    assert unlike({name: refusal(name, None, data.head) for name in FITTED}, r"\.fit: .*found None") == {}


# Networks of their own are trained on batches, which there is no other way to draw.
STREAMED = [
    name
    for name in FITTED
    if METHODS[name].request.fit_on == Role.ID_TRAIN
    and not METHODS[name].request.layers
    and not {"epochs", "epoch", "max_train"} & METHODS[name].params().keys()
]


@pytest.mark.parametrize("name", STREAMED)
def test_what_is_learnt_does_not_depend_on_the_size_of_batches(name, monkeypatch):
    data = problem()
    try:
        whole = scores(again(METHODS[name]).fit(data.train, data.head), data.test)
    except MethodError as error:
        pytest.skip(f"not for this problem: {error}")
    monkeypatch.setattr(FeatureSet.batches, "__defaults__", (67,))
    assert len(list(data.train.batches())) > 2
    parts = scores(again(METHODS[name]).fit(data.train, data.head), data.test)
    torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (KNN(k=601), "k — found 601, allowed: 1 to 600"),
        (CombOOD(k=601), "k — found 601, allowed: 1 to 600"),
        (COF(k=600), "k — found 600, allowed: 1 to 599"),
        (SOD(k=600), "k — found 600, allowed: 1 to 599"),
        (OODD(k1=301), "k1 — found 301, allowed: 1 to 300"),
        (CFOOD(alpha=0.001), "alpha — found 0.001, allowed: at least 0.00333 for 600 samples"),
        (ViM(dim=24), "dim — found 24, allowed: 1 to 23"),
        (Residual(dim=24), "dim — found 24, allowed: 1 to 23"),
        (NECO(dim=24), "dim — found 24, allowed: 1 to 23"),
        (ASH(percentile=99.0), "a percentile that keeps at least one of 24"),
        (LTS(percentile=99.0), "a percentile that keeps at least one of 24"),
        (SCALE(percentile=99.0), "a percentile that keeps at least one of 24"),
    ],
)
def test_parameters_that_do_not_fit_the_data_are_refused_with_the_range(method, words):
    data = problem()
    with pytest.raises(MethodError, match=re.escape(words)):
        scores(method.fit(data.train, data.head), data.test)


SMALL_BANK = {"_bank._BANK_CHUNK": 37, "_bank._QUERY_CHUNK": 11, "_bank._ENTRIES": 1000}
IN_BLOCKS = [
    (KNN(50), SMALL_BANK),
    (KNN(50, normalise=False), SMALL_BANK),
    (Relation(), {"neighbours._BANK_CHUNK": 37, "neighbours._QUERY_CHUNK": 11}),
    (CFOOD(1), {"neighbours._ENTRIES": 1000}),
    (LINe(), {"shaping._ENTRIES": 500}),
    (SSD("labels"), {"_stats.FIT_BATCH": 37}),
    (WeiPer(repeats=5, bins=20, smoothing_perturbed=7), {"histograms._LOGITS": 31 * 5 * 6}),
    *((TempScaling(solver), {"logits._ROWS": 7}) for solver in ("lbfgs", "converged")),
    *((method, {"tabular._SORTED": 5 * 300 + 3}) for method in (ECOD(), COPOD())),  # strips of 5 of the 24 features
]


@pytest.mark.parametrize(("method", "sizes"), IN_BLOCKS, ids=[repr(method) for method, _ in IN_BLOCKS])
def test_blocks_leave_no_trace(method, sizes, monkeypatch):
    data = problem(n=300)
    whole = fitted_scores(method, data)
    for name, size in sizes.items():
        monkeypatch.setattr(f"openbench.methods.{name}", size)
    assert_equal(fitted_scores(method, data), whole)
