"""A method's author is told all that is wrong at once, in words, with the line."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import openbench as ob
from openbench.core.method import Method
from openbench.core.request import Field, Request, Role
from openbench.errors import MethodError
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP
from openbench.testing._checks import all_checks

HERE = Path(__file__).resolve()


@dataclass
class Distance(Method):
    """Distance to the mean of the training features.

    score(x) = ‖f − μ‖.

    Args:
        k: unused.

    Reference: nobody, TEST 2024, arXiv 2401.00001.
    """

    needs: ClassVar[Request] = Request(fields=frozenset({Field.FEATURES}), fit_on=Role.ID_TRAIN)
    reference: ClassVar[str] = "nobody, TEST 2024, arXiv 2401.00001"

    k: int = 3

    def fit(self, train, head):
        self.mean = train.features.mean(dim=0)  # no underscore
        self.mean_ = self.mean
        self.k = 4  # changed

    def score(self, x):
        return (x.features - self.learnt("mean_")).norm(dim=1)


@dataclass
class Undeclared(Distance):
    __doc__ = Distance.__doc__

    def fit(self, train, head):
        return self

    def score(self, x):
        return -x.logits.max(dim=1).values  # not declared


class NotDataclass(Method):
    def score(self, x):
        return x.features[:, 0]


@dataclass
class NoDefault(Method):
    k: int

    def score(self, x):
        return x.features[:, self.k]


@dataclass
class NoScore(Method):
    pass


def line_of(code: str) -> int:
    return next(n for n, line in enumerate(HERE.read_text().splitlines(), 1) if code in line)


def refused(method) -> str:
    with pytest.raises(MethodError) as error:
        ob.testing.check_method(method)
    return str(error.value)


@pytest.mark.parametrize("method", [MSP, KNN(k=5)], ids=["a class", "an instance"])
def test_a_right_method_is_reported_with_the_checks_that_it_passes(method):
    report = ob.testing.check_method(method)
    assert len(report.checks) == len(all_checks())
    assert str(report) == f"{report.method} passes all {len(all_checks())} checks"


def test_every_fault_is_told_at_once():
    text = refused(Distance)
    assert text.startswith(f"Distance fails 4 of {len(all_checks())} checks:")
    for what in ("learnt attributes without a final", "fit or score changed hyper-parameters", "fit must return self"):
        assert what in text
    # What fails because `fit` returns nothing is no fault of its own.
    assert len(re.findall(r"^  \d+\. ", text, re.M)) == 4
    assert "AUROC 0.001 on planted clusters — at least 0.8 expected; the sign may be swapped" in text


def test_an_error_in_the_code_is_told_with_the_line_that_raised_it_once():
    text = refused(Undeclared())
    code = "return -x.logits.max(dim=1).values"
    assert f"test_report.py:{line_of(code)}, in score: {code}" in text
    assert "reads a column that its request does not name" in text
    assert text.count("in score: " + code) <= 2  # once as the promise that is broken, once for all that it prevents


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (int, "int is not a Method"),
        (object(), "object is not a Method"),
        (NotDataclass, "NotDataclass is not a dataclass — write @dataclass above"),
        (NoScore, "NoScore cannot be made without arguments: .*'?score'?"),
        (NoDefault, r"cannot be made without arguments: .*'k' — give every hyper-parameter a default"),
        (KNN().fit, "method is not a Method"),
    ],
)
def test_what_is_no_method_is_refused_before_the_checks(method, words):
    assert re.search(words, refused(method))


def test_a_fitted_instance_is_checked_anew():
    method = KNN()
    method.bank_ = 1
    assert len(ob.testing.check_method(method).checks) == len(all_checks())


def test_a_class_whose_code_has_changed_is_checked_anew(monkeypatch):
    fit = KNN.fit
    ob.testing.check_method(KNN)
    monkeypatch.setattr(KNN, "fit", lambda *given: fit(*given) and None)
    assert "fit must return self" in refused(KNN)
