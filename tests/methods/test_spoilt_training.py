"""Every method of configs/method, fitted on spoilt training data: an error that names it, or scores that rank."""

import math
import re
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import pytest
import torch

from openbench.config.build import build
from openbench.core.features import FeatureSet
from openbench.core.method import Method, leaves
from openbench.core.request import Field
from openbench.errors import OpenbenchError
from openbench.testing._toy import Toy, fitted, planted, samples_of, scored

from .discovered import NODES, node_of
from .problems import changed

INSTALLED = [
    n for n, node in NODES.items() if "libraries" not in node["_target_"] or find_spec(node["detector"].split(".")[0])
]
NAMED_BY = {
    "pytorch_ood": "pytorch_ood.detector.KNN",
    "mds_ensemble": "MDSEnsemble at stage",
    "mds_ensemble_openood": "MDSEnsemble at stage",
}


@cache
def spoilt(change) -> Toy:
    """The planted problem with fewer and changed ID samples, for all methods alike."""
    data = planted()
    return replace(data, train=change(data.train[:200]), val=change(data.val[:200]))


def of(name: str) -> Method:
    return build(node_of(name), name, Method)


def each(x: FeatureSet, change) -> FeatureSet:
    """Every column but the labels, and every map, changed in the same way."""
    columns = {name: c if name == Field.LABELS else change(c.clone()) for name, c in x.columns.items()}
    return FeatureSet(columns, {name: change(m.clone()) for name, m in x.maps.items()})


def at_row_7(value):
    def change(column):
        if math.isfinite(value) and abs(value) > torch.finfo(column.dtype).max:
            return column  # patches are half precision, and cannot hold it
        column[7] = column[7].clone().index_fill(0, torch.tensor([0]), value)
        return column

    return lambda x: each(x, change)


def labelled(label):
    return lambda x: changed(x, labels=x.labels.clone().index_fill(0, ROW, label))


def first_column_constant(x):
    return each(x, lambda column: column.index_fill_(1, torch.tensor([0]), 0.5))


def class_2_constant(x):
    rows = (x.labels == 2).nonzero()[:, 0]
    return each(x, lambda column: column.index_copy(0, rows, column[rows[:1]].expand(len(rows), *column.shape[1:])))


def one_per_class(x):
    return x[torch.stack([(x.labels == c).nonzero()[0, 0] for c in range(5)])]


ROW = torch.tensor([3])
REFUSED = {
    "nan": (at_row_7(torch.nan), r"1 of 200 rows of '\w+' are not finite \(first: row 7\)"),
    "inf": (at_row_7(torch.inf), r"1 of 200 rows of '\w+' are not finite \(first: row 7\)"),
    "-inf": (at_row_7(-torch.inf), r"1 of 200 rows of '\w+' are not finite \(first: row 7\)"),
    "1e30": (at_row_7(1e30), r"training \w+ reach 1e\+30, allowed: 1e\+15"),
    "no rows": (lambda x: x[:0], "the training set has no rows"),
    "one row": (lambda x: x[:1], "all training .* are equal"),
    "equal rows": (lambda x: each(x, lambda c: c[:1].expand(c.shape).contiguous()), "all training .* are equal"),
    "zeros": (lambda x: each(x, torch.zeros_like), "all training .* are equal"),
    "label -1": (labelled(-1), "label -1 — allowed: classes from 0"),
    "label 10⁹": (labelled(10**9), "label 1000000000 — allowed: "),
}
FITTED = {
    "first column constant": first_column_constant,
    "class 2 constant": class_2_constant,
    "class 2 empty": lambda x: x[x.labels != 2],
    "one class": lambda x: x[x.labels == 1],
    "one per class": one_per_class,
}


def told(change, name: str) -> torch.Tensor | str:
    """Scores of ID and OOD samples, by a method fitted on changed ID samples; what it says where it refuses these."""
    data, method = spoilt(change), of(name)
    try:
        method = fitted(method, data)
        return scored(method, samples_of(method, data), data)
    except OpenbenchError as error:
        return str(error)


@pytest.mark.parametrize("case", REFUSED)
def test_training_data_that_nothing_can_be_learnt_from_is_refused_by_method_and_cause(case):
    change, message = REFUSED[case]
    tried, wrong = 0, {}
    for name in INSTALLED:
        parts = list(leaves(of(name)))
        reads = {field for part in parts if part.request.fit_on for field in part.request.fields}
        if not reads or (case.startswith("label") and Field.LABELS not in reads):
            continue
        tried += 1
        found = told(change, name)
        names = "|".join(type(part).__name__ for part in parts)
        if not isinstance(found, str) or not re.match(rf"({names})\.fit: .*{message}", found):
            wrong[name] = found
    assert not wrong
    assert tried >= 10


@pytest.mark.parametrize("case", FITTED)
def test_lopsided_training_data_gives_scores_that_rank_or_an_error_that_names_the_method(case):
    wrong = {}
    for name in INSTALLED:
        found = told(FITTED[case], name)
        if isinstance(found, str):
            good = found.startswith(tuple(NAMED_BY.get(name, type(part).__name__) for part in leaves(of(name))))
        else:
            good = bool(found.isfinite().all()) and len(found.unique()) > 1
        if not good:
            wrong[name] = found
    assert not wrong
