"""Methods of one's own: a record is reused only by the method that made it."""

import sys
import textwrap
from importlib import import_module, invalidate_caches
from pathlib import Path

import numpy as np
import pytest
import torch

import openbench as ob
from openbench.errors import ConfigError
from openbench.methods.knn import KNN
from openbench.methods.msp import MSP

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(0, 3, (3, 8))


def drawn(n, shift=0.0):
    y = np.arange(n) % 3
    return (CENTRES[y] + shift + np.random.default_rng(n).normal(size=(n, 8))).astype(np.float32), y


TRAIN, TEST, NEAR = drawn(90), drawn(60), drawn(40, 2.0)[0]
CODE = """
    import os
    from dataclasses import dataclass
    from openbench.methods.knn import KNN

    GAIN = [1.0]  # no plain value

    @dataclass
    class Mine(KNN):
        reference = "-"
        sign = 1

        def score(self, x):
            return self.sign * GAIN[0] * float(os.environ.get("SIGN_OF_TEST", "1")) * super().score(x)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module with a method; it can be edited and, as in another process, loaded again."""
    (tmp_path / "code").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "code")
    file = tmp_path / "code" / "own_scores.py"
    file.write_text(textwrap.dedent(CODE))

    def load(field=""):
        if field:
            file.write_text(file.read_text().replace('reference = "-"', f'reference = "-"\n    {field}'))
        sys.modules.pop("own_scores", None)
        invalidate_caches()
        return import_module("own_scores")

    yield load
    sys.modules.pop("own_scores", None)


@pytest.fixture
def evaluate(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBENCH_CACHE", str(tmp_path / "cache"))

    def call(method):
        found = ob.evaluate_features(
            train=TRAIN,
            id_test=TEST,
            near={"beside": NEAR},
            methods={"mine": method},
            metrics={"families": ["ranking"], "replicates": 0},
            results=tmp_path / "results",
        )["mine"]
        return found, found.metrics["beside"]["auroc"]

    return call


def is_reused(result):
    return any("reused: nothing was computed" in note for note in result.notes)


def test_a_method_that_is_as_it_was_is_reused_and_its_probe_is_in_the_record(evaluate, mine):
    first, auroc = evaluate(mine().Mine(k=3))
    assert len(first.record.provenance["method_probe"]) == 12
    again, same = evaluate(mine().Mine(k=3))
    assert is_reused(again)
    assert same == auroc
    assert "method_probe" not in evaluate(KNN(k=3))[0].record.provenance


def test_what_a_method_reads_beside_its_sources_is_noticed_by_its_probe(evaluate, mine, monkeypatch):
    first, auroc = evaluate(mine().Mine(k=3))
    monkeypatch.setenv("SIGN_OF_TEST", "-1")
    turned, other = evaluate(mine().Mine(k=3))
    assert other == pytest.approx(1 - auroc)
    assert any("gave other scores for the same rows before" in note for note in turned.notes)
    assert turned.record.run_id != first.record.run_id
    assert is_reused(evaluate(mine().Mine(k=3))[0])
    monkeypatch.delenv("SIGN_OF_TEST")
    back, same = evaluate(mine().Mine(k=3))
    assert (back.record.run_id, same) == (first.record.run_id, auroc)


@pytest.mark.parametrize("change", [
    lambda module: setattr(module, "GAIN", [-1.0]),
    lambda module: setattr(module.Mine, "sign", -1),
    lambda module: setattr(module.Mine, "score", lambda self, x: -KNN.score(self, x)),
])  # fmt: skip
def test_a_global_a_class_attribute_and_a_replaced_score_are_another_method(evaluate, mine, change):
    _, auroc = evaluate(mine().Mine(k=3))
    module = mine()
    change(module)
    turned, other = evaluate(module.Mine(k=3))
    assert not is_reused(turned)
    assert other == pytest.approx(1 - auroc)


def test_a_shipped_class_whose_score_was_replaced_is_not_recorded_as_the_shipped_one(evaluate, monkeypatch):
    shipped, auroc = evaluate(KNN(k=3))
    score = KNN.score
    monkeypatch.setattr(KNN, "score", lambda self, x: -score(self, x))
    turned, other = evaluate(KNN(k=3))
    assert other == pytest.approx(1 - auroc)
    assert turned.record.run_id != shipped.record.run_id
    assert list(turned.record.provenance["sources"]) == ["openbench.methods.knn"]
    assert any("openbench.methods.knn was edited or replaced since it was loaded" in note for note in turned.notes)


def test_numbers_of_code_that_was_edited_after_its_import_are_not_reused_as_those_of_the_new_file(evaluate, mine):
    module = mine()
    file = Path(module.__file__)
    file.write_text(file.read_text().replace("return self.sign", "return -self.sign"))
    old, auroc = evaluate(module.Mine(k=3))
    assert any("own_scores was edited or replaced since it was loaded" in note for note in old.notes)
    new, other = evaluate(mine().Mine(k=3))
    assert not is_reused(new)
    assert other == pytest.approx(1 - auroc)


def test_an_attribute_of_an_object_that_is_no_field_is_refused():
    turned = KNN(k=3)
    turned.w = -1
    own = MSP()
    own.score = lambda x: -MSP.score(own, x)
    for method, name in ((turned, "w"), (own, "score")):
        with pytest.raises(ConfigError, match=f"the attribute '{name}' is not a hyper-parameter"):
            ob.evaluate_features(train=TRAIN, id_test=TEST, near={"beside": NEAR}, methods=[method])


@pytest.mark.parametrize(
    "value", [np.ma.array([1, 2], mask=[0, 1]), np.array([None]), torch.tensor(3.0), [lambda x: x]]
)
def test_a_hyper_parameter_that_is_not_plainly_a_value_is_refused_before_anything_is_computed(evaluate, mine, value):
    module = mine("table: object = None")
    with pytest.raises(ConfigError, match=r"Mine\.table is a \w+ — allowed: numbers"):
        evaluate(module.Mine(k=3, table=value))
    assert evaluate(module.Mine(k=3, table={"a": [1, 2.5]}))[0].path is not None
    unrecorded = module.Mine(k=3, table={"a": [np.inf, {2}]})
    assert ob.evaluate_features(train=TRAIN, id_test=TEST, near={"beside": NEAR}, methods=[unrecorded])
