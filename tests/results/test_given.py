"""Comparisons with scores whose images are not named: not in pairs."""

from dataclasses import replace

import numpy as np
import pytest

from openbench.core.scores import SetScores
from openbench.errors import DataError
from openbench.metrics.intervals import paired_delong, unpaired_delong
from openbench.results.comparisons.runs import compared, difference_table, differences
from tests.results.records import make_record, named


def sides(seed, n=30, m=20):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, n), [rng.normal(1, 1, m), rng.normal(0.5, 1, m)]


def variance(ids, oods):
    """Of the mean AUROC over OOD sets, by the definition: placements one by one."""
    u = np.mean([[(ood > x).mean() + (ood == x).mean() / 2 for x in ids] for ood in oods], axis=0)
    v = [np.array([(ids < x).mean() + (ids == x).mean() / 2 for x in ood]) for ood in oods]
    return u.var(ddof=1) / len(u) + sum(one.var(ddof=1) / len(one) for one in v) / len(v) ** 2


def test_variances_of_independent_scores_add_up():
    a, b = sides(0), sides(1)
    found = unpaired_delong(a, b)
    half = 1.959963984540054 * np.sqrt(variance(*a) + variance(*b))
    assert found.high - found.difference == pytest.approx(half, rel=1e-9)
    assert found.difference == pytest.approx(paired_delong(a, b).difference, abs=1e-12)


def run(method, seed, images=None, labels=None):
    ids, oods = sides(seed)
    record = make_record(method={"name": method, "version": 1, "reference": "", "params": {}})
    config = {**record.config, "benchmark": {"id": {}}} | (
        {"scores": {"sha256": "0", "images": images}} if images else {}
    )
    sets = [
        SetScores("t", "id_test", ids, labels=labels),
        SetScores("a", "near", oods[0]),
        SetScores("b", "near", oods[1]),
    ]
    return named(replace(record, config=config)), sets


@pytest.mark.parametrize(("images", "paired"), [(None, True), ("named", True), ("not named", False)])
def test_only_scores_of_named_images_are_compared_in_pairs(images, paired):
    one, other = compared([run("x", 0, images), run("y", 1)])
    (mean, *_) = differences(one, other)
    test = paired_delong if paired else unpaired_delong
    expected = test(sides(0), sides(1))
    assert (mean["auroc"], mean["other_auroc"], mean["difference"], mean["p"]) == (*expected[:3], expected.p)
    assert ("paired as images of x are not named" in difference_table(one, other).notes[0]) == (not paired)


def test_labels_in_another_order_matter_only_where_images_are_named():
    labels = [np.arange(30), np.arange(30)[::-1]]
    compared([run("x", 0, "not named", labels[0]), run("y", 1, None, labels[1])])
    compared([run("x", 0, "named", np.full(30, -1)), run("y", 1, None, labels[1])])
    with pytest.raises(DataError, match="images have other labels"):
        compared([run("x", 0, "named", labels[0]), run("y", 1, None, labels[1])])
