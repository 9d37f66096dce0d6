"""Ways of training side by side: which runs meet, the paired gain and its interval, and what is refused."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from pandas.testing import assert_frame_equal
from scipy import stats

from openbench.errors import RecordError
from openbench.results.frame import run_of
from openbench.results.leaderboard.trainings import COLUMNS, compared, comparison, training_runs
from openbench.results.tables.frames import read_frame, write_frame
from openbench.results.tables.render import render

from .records import make_record, metrics

PUBLISHED = Path(__file__).parents[2] / "results" / "trainings"
GAIN = 7
SAME = 8


def record(training="cross_entropy", score="msp", seed=0, near=0.8, **changes):
    whole = {
        "config": {"seed": seed, "method": {"_name_": score}, "tune": {"_name_": "none"}},
        "backbone": {"name": "tiny", "digest": "bbbb", "training": training},
        "method": {"name": score, "version": 1, "reference": "-", "params": {}},
        "metrics": metrics(near, 0.9, 0.7),
    }
    return make_record(**{**whole, **changes})


def runs_of(records, backbone=None):
    return training_runs(map(run_of, records), "toy", backbone)


def table_of(records):
    return comparison(runs_of(records), "toy")


def rows_of(records):
    return {row[0]: row for row in table_of(records).rows}


def seeds(training, score, nears):
    return [record(training, score, seed, near) for seed, near in enumerate(nears)]


def test_cross_entropy_comes_first_and_the_others_by_near_auroc():
    records = [record("vos", "energy", near=0.7), record("csi", "csi", near=0.95), record(near=0.8), record("udg")]
    assert [row[0] for row in table_of(records).rows] == ["cross_entropy", "csi", "udg", "vos"]


def test_cells_are_mean_and_population_deviation_over_seeds():
    nears = [0.81, 0.84, 0.9]
    (one,), (two,) = (rows_of(seeds("cross_entropy", "msp", nears[:n])).values() for n in (1, 2))
    assert (one[4].std, two[4].std) == (None, pytest.approx(0.015))
    row = rows_of(seeds("cross_entropy", "msp", nears))["cross_entropy"]
    assert row[1:3] == ("msp", 3)
    assert row[4].value == pytest.approx(np.mean(nears))
    assert row[4].std == pytest.approx(np.std(nears))
    assert (row[3].value, row[5].value) == (pytest.approx(0.7), pytest.approx(0.9))
    assert row[6].value == pytest.approx(1 - np.mean(nears))


def test_the_gain_has_the_interval_of_a_paired_t_test():
    base, other = [0.80, 0.85, 0.70, 0.77], [0.82, 0.88, 0.71, 0.83]
    row = rows_of([*seeds("cross_entropy", "msp", base), *seeds("vos", "energy", other)])["vos"]
    expected = stats.ttest_rel(other, base).confidence_interval(0.95)
    assert row[GAIN].value == pytest.approx(np.mean(other) - np.mean(base))
    assert (row[GAIN].low, row[GAIN].high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_the_gain_is_taken_over_the_seeds_that_both_have():
    records = [*seeds("cross_entropy", "msp", [0.5, 0.6, 0.9]), *seeds("vos", "energy", [0.6, 0.8])]
    assert rows_of(records)["vos"][GAIN].value == pytest.approx(0.15)
    assert rows_of([record(seed=1), record("vos", "energy", seed=2)])["vos"][GAIN] is None


@pytest.mark.parametrize("common", [1, 2])
def test_fewer_than_three_common_seeds_give_a_gain_without_interval(common):
    records = [*seeds("cross_entropy", "msp", [0.5] * 3), *seeds("vos", "energy", [0.6] * common)]
    row = rows_of(records)["vos"]
    assert row[GAIN].value == pytest.approx(0.1)
    assert (row[GAIN].low, row[GAIN].std) == (None, None)


def test_the_same_score_on_cross_entropy_fills_the_last_column_and_no_row():
    records = [record(near=0.8), record(score="energy", near=0.65), record("vos", "energy", near=0.7)]
    rows = table_of(records).rows
    assert [row[:2] for row in rows] == [("cross_entropy", "msp"), ("vos", "energy")]
    assert rows[1][SAME].value == pytest.approx(0.65)


def test_a_score_with_other_settings_is_not_the_same_score():
    other = {"seed": 0, "method": {"_name_": "energy", "temperature": 2.0}, "tune": {"_name_": "none"}}
    records = [record(), record(score="energy", config=other), record("vos", "energy")]
    assert rows_of(records)["vos"][SAME] is None


def test_runs_are_of_one_backbone_and_one_state_of_a_benchmark_and_of_networks_that_were_trained():
    big = record(backbone={"name": "big", "digest": "d", "training": "cross_entropy"}, seed=3)
    elsewhere = record(benchmark={"name": "other", "digest": "cccc"})
    released = record(backbone={"name": "big", "digest": "d", "training": None})
    assert runs_of([record(), big, elsewhere, released], "big")["seed"].tolist() == [3]
    with pytest.raises(RecordError, match="several backbones, big, tiny"):
        runs_of([record(), big])
    with pytest.raises(RecordError, match="several states of the benchmark"):
        runs_of([record(), record(seed=1, benchmark={"name": "toy", "digest": "zzzz"})])


def test_two_recipes_of_one_training_are_refused():
    with pytest.raises(RecordError, match="training 'vos' with method 'energy', seed 0: two runs"):
        table_of([record(), record("vos", "energy"), record("vos", "energy", near=0.6)])


def test_without_cross_entropy_the_command_that_makes_it_is_named():
    with pytest.raises(RecordError, match=r"run \+benchmark=toy training=cross_entropy"):
        table_of([record("vos", "energy")])


def test_what_is_kept_gives_the_same_table_without_scores_that_no_row_has():
    records = [record(), record(score="energy", near=0.65), record(score="vim"), record("vos", "energy", near=0.7)]
    runs = runs_of(records)
    kept = compared(runs)
    assert kept["score"].tolist() == ["energy", "msp", "energy"]
    assert comparison(kept, "toy") == comparison(runs, "toy")


def test_runs_survive_their_csv(tmp_path):
    records = [record(t, seed=s, near=0.6 + s / 7) for t, s in product(("cross_entropy", "udg"), (0, 1))]
    runs = runs_of(records)
    write_frame(runs, tmp_path / "runs.csv", COLUMNS)
    assert_frame_equal(read_frame(tmp_path / "runs.csv", COLUMNS), runs)
    assert_frame_equal(runs_of(records[::-1]), runs)


@pytest.mark.parametrize(
    ("change", "message"), [(("near,", "nearly,"), "found the columns"), (("0.8,", "much,"), "a number is expected")]
)
def test_a_csv_that_cannot_be_read_is_named(tmp_path, change, message):
    write_frame(runs_of([record("vos", near=0.8)]), tmp_path / "runs.csv", COLUMNS)
    text = (tmp_path / "runs.csv").read_text()
    (tmp_path / "runs.csv").write_text(text.replace(*change, 1))
    with pytest.raises(RecordError, match=message) as caught:
        read_frame(tmp_path / "runs.csv", COLUMNS)
    assert "runs.csv" in str(caught.value)


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.csv")), ids=lambda path: path.stem)
def test_a_published_table_follows_from_its_runs(path):
    runs = read_frame(path, COLUMNS)
    table = comparison(runs, path.stem)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == render(table, "markdown")
    assert runs["seed"].nunique() > 1
