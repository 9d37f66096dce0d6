"""`compare`: runs on the same images beside each other, and what cannot be compared refused."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from openbench.__main__ import main
from openbench.core.request import Role
from openbench.core.scores import SetScores
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore
from tests.results.records import make_record, with_method

PLAN = {(Role.ID_TEST, "toy"): 0.0, (Role.NEAR, "a"): 1.0, (Role.NEAR, "b"): 1.2, (Role.FAR, "c"): 2.0}


def scores(seed, n=50):
    images, own = np.random.default_rng(0), np.random.default_rng(seed)
    unknown = np.full(n, -1)
    return [
        SetScores.of_split(
            name, role, (images.normal(shift, 1, n) + own.normal(0, 1, n)).astype("f4"), unknown, unknown
        )
        for (role, name), shift in PLAN.items()
    ]


def record(method, digest="aaaa", **params):
    benchmark = {"name": "toy", "digest": digest, "pristine": True, "deviations": []}
    config = {"benchmark": {"id": {}}, "seed": 0}
    made = make_record(config=config, benchmark=benchmark, metrics={"near": {"auroc": 0.5}}, counts={})
    return with_method(made, method, **params)


@pytest.fixture
def compare(tmp_path, capsys):
    """Write runs with their scores, compare them, and return the exit code and what was printed."""

    def compared(runs, *words):
        for made, sets in runs:
            RecordStore(tmp_path / "results").write(made)
            if sets is not None:
                ScoreStore(tmp_path / "cache" / "scores").write(made.run_id, sets)
        ids = [made.run_id for made, _ in runs]
        folders = ["--results", str(tmp_path / "results"), "--cache", str(tmp_path / "cache")]
        code = main(["compare", *ids, *folders, *words])
        return code, capsys.readouterr()

    return compared


def first_table(text):
    return list(csv.DictReader(io.StringIO(text.split("\n\n")[0])))


def test_differences_are_those_of_mann_whitney_with_their_signs(compare):
    one, two = scores(1), scores(2)
    code, said = compare([(record("knn", k=5), one), (record("msp"), two)], "--format", "csv", "--images", "0")
    assert code == 0
    rows = {row["set"].strip(): row for row in first_table(said.out)}

    def area(sets, name):
        found = {s.name: s.scores.astype(float) for s in sets}
        return stats.mannwhitneyu(found[name], found["toy"]).statistic / 2500

    assert float(rows["c"]["difference [interval]"]) == pytest.approx(area(one, "c") - area(two, "c"))
    near = np.mean([area(one, name) - area(two, name) for name in "ab"])
    assert float(rows["near"]["difference [interval]"]) == pytest.approx(near)
    low, high = (float(rows["near"][f"difference [interval] {end}"]) for end in ("low", "high"))
    assert low < near < high


def test_json_has_the_numbers_of_all_tables_with_their_intervals(compare):
    _, said = compare([(record("knn"), scores(1)), (record("msp"), scores(2))], "--format", "json", "--images", "0")
    differences, configs = json.loads(said.out)
    for row in differences["rows"]:
        estimate = row["difference [interval]"]
        assert estimate["value"] == pytest.approx(row["knn ↑"] - row["msp ↑"])
        assert estimate["low"] < estimate["value"] < estimate["high"]
    assert configs["rows"] == [{"key": "config.method._name_", "knn": "knn", "msp": "msp"}]


def test_what_differs_in_the_configs_is_listed_and_nothing_else(compare):
    _, said = compare([(record("knn", k=5), scores(1)), (record("knn", k=9), scores(2))], "--images", "0")
    part = said.out.split("What differs in their configs")[1]
    keys = [line.split()[0] for line in part.splitlines() if line.strip().startswith(("chosen", "config"))]
    assert keys == ["chosen.k", "config.method.k"]


def test_the_image_on_which_two_runs_disagree_most_is_named(compare):
    one, two = scores(1), scores(1)
    two[3].scores[7] = -99.0
    one[3].scores[7] = 99.0
    _, said = compare([(record("knn"), one), (record("msp"), two)], "--images", "1")
    (line,) = (line for line in said.out.splitlines() if line.strip().startswith("c ") and "image" in line)
    assert line.split() == ["c", "far", "image", "7", "99.5", "0.5"]


per_set = record("msp", k=5)
per_set = replace(per_set, tuned={"k": {"b": 5}}, config={**per_set.config, "tune": {"strategy": "oracle_per_set"}})


@pytest.mark.parametrize(
    ("other", "sets", "why"),
    [
        (record("msp", digest="cccc"), scores(2), "different benchmarks"),
        (record("msp"), scores(2, 49), "images — compare runs"),
        (record("msp"), None, "scores of run"),
        (per_set, scores(2), "has its own ID scores — name runs of another `tune`"),
    ],
)
def test_what_cannot_be_compared_is_refused(compare, other, sets, why):
    code, said = compare([(record("knn"), scores(1)), (other, sets)])
    assert code == 2
    assert why in said.err


def test_the_curves_are_drawn(compare, tmp_path):
    runs = [(record("knn"), scores(1)), (record("msp"), scores(2))]
    code, said = compare(runs, "--images", "0", "--plots", str(tmp_path / "a.svg"))
    assert code == 0
    assert f"drew {tmp_path / 'a.svg'}" in said.err
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")
