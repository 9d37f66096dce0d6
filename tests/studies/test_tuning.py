"""The layout `tuning`: regrets, gains, orders and cross-tuning against numbers worked out by hand."""

import io
from dataclasses import replace

import pytest
from PIL import Image

from openbench.studies.tuning import Tuning

from ..results.records import named  # noqa: TID252 — the tests are no package
from .runs import YAML, config_of, of, run, study as made_of

TEXT = (
    YAML.replace("seeds: [0, 1, 2]", "seeds: [0]\nlayout: tuning").partition("columns:")[0]
    + "columns: {defaults: tune=none, synthetic: tune=synthetic, oracle: tune=oracle}\n"
)
SETS = ("eight", "nine", "noise", "patches")
# AUROCs of the four sets at two settings that the oracle tried.
TRIED = {"msp": [(0.9, 0.8, 0.7, 0.6), (0.8, 0.9, 0.6, 0.7)], "knn": [(0.6, 0.6, 0.6, 0.6), (0.9, 0.9, 0.9, 0.8)]}
CHOSEN = {
    ("msp", "none"): (0.5, 0.5, 0.5, 0.5),
    ("msp", "synthetic"): (0.8, 0.9, 0.6, 0.7),
    ("msp", "oracle"): (0.9, 0.8, 0.7, 0.6),
    ("knn", "none"): (0.4, 0.6, 0.4, 0.4),
    ("knn", "synthetic"): (0.6, 0.6, 0.6, 0.6),
    ("knn", "oracle"): (0.9, 0.9, 0.9, 0.8),
}


def record(method, strategy):
    values = dict(zip(SETS, CHOSEN[method, strategy], strict=True))
    made = run(method, 0, 0.9)
    groups = {"near": (values["eight"] + values["nine"]) / 2, "far": (values["patches"] + values["noise"]) / 2}
    tried = [
        {"params": {"k": i}, "auroc": 0.5, "sets": dict(zip(SETS, t, strict=True))} for i, t in enumerate(TRIED[method])
    ]
    trials = tried if strategy == "oracle" else []
    metrics = {name: {**made.metrics[name], "auroc": value} for name, value in {**values, **groups}.items()}
    config = {**made.config, "tune": config_of("+benchmark=digits", f"tune={strategy}")["tune"]}
    return named(replace(made, config=config, trials=trials, metrics={**made.metrics, **metrics}))


def tuning(tmp_path, keys=CHOSEN):
    return made(tmp_path, [record(*key) for key in keys])


def made(tmp_path, records):
    study = made_of(tmp_path, TEXT)
    return Tuning(study, of(study, records), records)


def rows(table):
    return {row[0]: row[1:] for row in table.rows}


def test_aurocs_are_those_of_the_groups_and_the_picture_is_a_png(tmp_path):
    found = tuning(tmp_path)
    assert rows(found.tables()[0])["MSP"] == pytest.approx((0.5, 0.85, 0.85, 0.5, 0.65, 0.65))
    assert Image.open(io.BytesIO(found.picture())).format == "PNG"


def test_regret_is_to_the_best_setting_of_each_set_and_gain_to_the_defaults(tmp_path):
    found = rows(tuning(tmp_path).tables()[1])
    # The best of each set: .9 .9 .7 .7, mean .8; and .9 .9 .9 .8, mean .875.
    assert found["MSP"] == pytest.approx((0.3, 0.05, 0.05, 0.25, 0.25))
    assert found["KNN"] == pytest.approx((0.425, 0.275, 0.0, 0.15, 0.425))
    assert found["mean of 2"] == pytest.approx((0.3625, 0.1625, 0.025, 0.2, 0.3375))


def test_orders_are_compared_with_that_of_the_defaults(tmp_path):
    found = rows(tuning(tmp_path).tables()[2])
    # MSP is first by the defaults and on synthetic images, KNN by the oracle.
    assert found == {"defaults": (1, 0, 0, "MSP"), "synthetic": (1, 0, 0, "MSP"), "oracle": (-1, 1, 1, "KNN")}


def test_a_choice_for_one_set_is_tested_on_the_others(tmp_path):
    found = rows(tuning(tmp_path).tables()[3])
    # MSP: chosen on eight or noise it has its first setting, on nine or patches its second; KNN always its second.
    assert list(found) == list(SETS)
    assert found["eight"] == pytest.approx((0, 0.05, 0, 0.05))
    assert found["patches"] == pytest.approx((0.05, 0, 0.05, 0))


def test_a_method_that_lacks_a_way_is_shown_without_it_and_does_not_count(tmp_path):
    tables = tuning(tmp_path, [key for key in CHOSEN if key != ("knn", "synthetic")]).tables()
    assert rows(tables[0])["KNN"][1] is None
    assert rows(tables[1])["KNN"][1] is None
    assert "mean of 1" in rows(tables[1])
    assert any(note == "without, not run yet: KNN (synthetic)" for note in tables[0].notes)
    assert rows(tables[2]) == {}


def test_trials_without_sets_leave_the_oracles_own_auroc_as_the_best(tmp_path, monkeypatch):
    monkeypatch.setitem(CHOSEN, ("msp", "oracle"), (0.8, 0.8, 0.8, 0.8))
    trials = [{"params": {"k": 1}, "auroc": 0.8}]
    found = made(tmp_path, [replace(record(*key), trials=trials) for key in CHOSEN])
    assert rows(found.tables()[1])["MSP"] == pytest.approx((0.3, 0.05, 0, 0.25, 0.3))
    assert rows(found.tables()[3]) == {}
