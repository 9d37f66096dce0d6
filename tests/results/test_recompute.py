"""Metrics and comparisons from published scores, whose images may not be named."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openbench.core.scores import SetScores
from openbench.errors import DataError
from openbench.metrics.intervals import paired_delong, unpaired_delong
from openbench.metrics.rank_ranges import rank_ranges
from openbench.metrics.suite import MetricOptions, describe, evaluate
from openbench.results.checks import read_checks
from openbench.results.comparisons.runs import compared, difference_table, differences
from openbench.results.leaderboard.ranking import boards
from openbench.results.leaderboard.separable import ranges_of
from openbench.results.scores.recompute import recompute
from openbench.results.scores.stored import ScoreStore

from .records import make_record, metrics, named, split_scores, with_method

RESULTS = Path(__file__).parents[2] / "results"
OPTIONS = {"replicates": 20, "correction": "simes", "families": ["ranking", "threshold", "selective", "intervals"]}


def record_of(sets, **changes):
    options = MetricOptions(**OPTIONS)
    record = make_record(
        metrics=evaluate(sets, options),
        header=describe(options),
        counts={f"{s.role}/{s.name}": {"n": len(s.scores), "expected": len(s.scores)} for s in sets},
        **changes,
    )
    return named(replace(record, config={**record.config, "metrics": {"_name_": "mine", **OPTIONS}}))


def test_the_checks_that_are_published_are_of_the_records_and_scores_beside_them():
    stated = {
        path.stem: re.search(rb'\n "content_sha256": "(\w+)"', path.read_bytes())[1].decode()
        for path in (RESULTS / "records").rglob("*.json")
    }
    found, scores = read_checks(RESULTS), ScoreStore(RESULTS / "scores")
    assert len(found) == len((RESULTS / "checks.jsonl").read_text().splitlines())
    assert not [run_id for run_id, check in found.items() if check.record != stated.get(run_id)]
    assert not [run_id for run_id, check in found.items() if check.scores != scores.state(run_id)]
    assert all(check.reproduces for check in found.values())


def test_every_number_that_scores_give_is_compared_and_the_others_are_named():
    sets = split_scores()
    record = record_of(sets)
    found = recompute(record, sets)
    assert found.agrees
    assert (found.numbers, found.without) == (sum(map(len, record.metrics.values())), 0)
    values = dict(record.metrics["id"])
    augrc = values.pop("augrc")
    found = recompute(replace(record, metrics={**record.metrics, "id": {**values, "aps_size@0.05": 2.0}}), sets)
    assert found.agrees
    assert (found.without, found.added) == (1, {"id": {"augrc": augrc}})
    assert f"1 need class probabilities, which were not stored · not in the record: id.augrc {augrc:.4g}" in str(found)


def test_rows_get_their_range_of_ranks_from_published_scores(tmp_path):
    store, base = ScoreStore(tmp_path), make_record()
    records = [base, with_method(base, "msp"), with_method(replace(base, metrics=metrics(0.7, 0.7)), "mls")]
    rng, kept = np.random.default_rng(0), {}
    for record in records[:2]:
        kept[record.run_id] = [replace(s, scores=s.scores + rng.normal(size=s.scores.size)) for s in split_scores()]
        store.write(record.run_id, kept[record.run_id])
    (board,) = boards(records)
    found = ranges_of(board, store)
    by_role = {run: {str(s.role): np.asarray(s.scores, np.float32) for s in sets} for run, sets in kept.items()}
    expected = rank_ranges([[(s["id_test"], [s["near"]])] for s in by_role.values()])
    assert found == {(run,): ranks for run, ranks in zip(by_role, expected, strict=True)}


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
