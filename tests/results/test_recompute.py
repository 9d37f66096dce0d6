"""Metrics from published scores: equal to the record's, and different where either was changed."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openbench.core.scores import SetScores
from openbench.errors import RecordError
from openbench.metrics.rank_ranges import rank_ranges
from openbench.metrics.suite import MetricOptions, describe, evaluate
from openbench.results.checks import read_checks
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


def test_every_number_that_scores_give_is_compared():
    sets = split_scores()
    record = record_of(sets)
    found = recompute(record, sets)
    assert found.agrees
    assert (found.numbers, found.without) == (sum(map(len, record.metrics.values())), 0)


def test_a_changed_number_is_found():
    sets = split_scores()
    record = record_of(sets)
    changed = {**record.metrics, "near": {**record.metrics["near"], "auroc": record.metrics["near"]["auroc"] + 0.01}}
    found = recompute(replace(record, metrics=changed), sets)
    assert [difference.key for difference in found.comparison.differ] == ["metrics.near.auroc"]


def test_what_needs_class_probabilities_is_counted_and_not_compared():
    sets = split_scores()
    record = record_of(sets)
    more = {**record.metrics, "id": {**record.metrics["id"], "aps_size@0.05": 2.0}}
    found = recompute(replace(record, metrics=more), sets)
    assert found.agrees
    assert found.without == 1
    assert "1 need class probabilities" in str(found)


def test_what_the_record_does_not_have_is_computed_and_said():
    sets = split_scores()
    record = record_of(sets)
    old = {of: {k: v for k, v in values.items() if k != "augrc"} for of, values in record.metrics.items()}
    found = recompute(replace(record, metrics=old), sets)
    assert found.agrees
    value = record.metrics["id"]["augrc"]
    assert found.added["id"] == {"augrc": value}
    assert f"not in the record: id.augrc {value:.4g}" in str(found)


def test_another_number_of_images_is_an_error():
    sets = split_scores()
    cut = [SetScores(s.name, s.role, s.scores[1:], None, s.labels[1:], predictions=s.predictions[1:]) for s in sets]
    with pytest.raises(RecordError, match="counts 41 images in csid/noisy, its scores 40"):
        recompute(record_of(sets), cut)


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
