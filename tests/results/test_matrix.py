"""Networks × methods: which numbers are compared, and what is said of their orders."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from openbench.errors import ConfigError
from openbench.metrics.rank_ranges import kendall_taus
from openbench.results.leaderboard import plots
from openbench.results.leaderboard.matrix import matrices, needed, packed_boards, table_csv, tables
from openbench.results.leaderboard.plots import accuracy_picture
from openbench.results.leaderboard.ranking import boards
from openbench.results.records.store import RecordStore, packed
from openbench.results.tables.render import to_csv

from .records import make_record, metrics, named, with_method

# Near AUROC of four methods on two seeds of one training and on another backbone.
NEAR = {"knn": (0.91, 0.92, 0.80), "msp": (0.85, 0.84, 0.86), "vim": (0.88, 0.89, 0.82), "mls": (0.86, 0.80, 0.84)}
NETWORKS = (("tiny", 0, 0.75), ("tiny", 1, 0.77), ("big", 0, 0.90))


def run(method, network, near):
    """A run of a method on a network: its backbone, seed and ID accuracy."""
    backbone, seed, accuracy = network
    record = with_method(make_record(metrics=metrics(near, 1 - near, accuracy)), method)
    about = {"name": backbone, "digest": f"{backbone}{seed}", "training": "cross_entropy"}
    return named(replace(record, config={**record.config, "seed": seed}, backbone=about))


def records():
    return [run(method, *pair) for method, line in NEAR.items() for pair in zip(NETWORKS, line, strict=True)]


def found(made, metric="auroc", view="networks", of=()):
    return matrices(boards(made, needed(metric)), view, of, metric)


@pytest.fixture(scope="module")
def matrix():
    return found(records(), of=("near",))[0]


@pytest.mark.parametrize("decimals", [8, 0])
def test_tau_is_that_of_scipy_with_and_without_ties(decimals):
    values = np.random.default_rng(0).normal(scale=2, size=(12, 4)).round(decimals)
    taus = kendall_taus(values, replicates=2)[:, :, 0]
    expected = [[stats.kendalltau(a, b).statistic for b in values.T] for a in values.T]
    np.testing.assert_allclose(taus, expected, atol=1e-12)
    assert np.isnan(kendall_taus([[1, 1], [1, 2]], replicates=10)[0, 1]).all()


def test_the_interval_of_tau_is_that_of_resampled_methods():
    rng = np.random.default_rng(1)
    x = rng.normal(size=20)
    values = np.column_stack([x, x + rng.normal(size=20)])
    draws = [rng.integers(0, 20, 20) for _ in range(500)]
    drawn = [stats.kendalltau(*values[rows].T).statistic for rows in draws]
    _, low, high = kendall_taus(values, replicates=1500)[0, 1]
    assert (low, high) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.04)


def test_methods_stand_by_mean_rank_and_networks_by_accuracy(matrix):
    assert [network.label for network in matrix.networks] == ["big", "tiny · seed 0", "tiny · seed 1"]
    ranks = dict(zip(matrix.methods, matrix.ranks.tolist(), strict=True))
    assert ranks == {"knn": [4, 1, 1], "vim": [3, 2, 2], "msp": [1, 4, 3], "mls": [2, 3, 4]}
    assert matrix.methods[:2] == ("knn", "vim")


def test_what_survives_is_said_of_seeds_and_of_other_networks(matrix):
    # Between the seeds one pair of six changes places; between them and `big` at most one does not.
    said = matrix.summary()
    assert "4 methods on 3 networks" in said
    assert "from -1.00 to 0.67; 0.67 between seeds of one training, -0.83 between others" in said
    assert "Of the best 2 on one, 0.7 are among the best 2 on another" in said


def test_the_best_and_the_critical_difference_are_said(matrix):
    said = matrix.details()
    assert "Best: knn on 2, msp on 1." in said
    # q.05 of four methods is 2.569 (Demšar 2006, table 5); Friedman's p is scipy's.
    assert f"critical difference {2.569 * np.sqrt(4 * 5 / (6 * 3)):.1f}" in said
    values = np.array(list(NEAR.values()))
    assert f"p = {stats.friedmanchisquare(*values).pvalue:.2g}" in said
    taus = [stats.kendalltau([network[2] for network in NETWORKS], line).statistic for line in NEAR.values()]
    assert f"Kendall's τ between ID accuracy and near AUROC is {np.median(taus):.2f}" in said


def test_methods_and_networks_without_all_numbers_are_shown_and_not_compared():
    made = [*records(), run("sngp", NETWORKS[0], 0.99), run("knn", ("other", 0, 0.5), 0.5)]
    one = found(made, of=("near",))[0]
    assert one.compared == (4, 3)
    assert (one.methods[4:], [network.label for network in one.networks[3:]]) == (("sngp",), ["other"])
    assert one.notes == ("Not compared, as numbers are missing: sngp, other.",)
    values, taus = tables(one)
    assert [row[:3] for row in values.rows][-1] == (None, None, "sngp")
    assert [len(values.columns), len(taus.rows)] == [6, 3]


@pytest.mark.parametrize("metric", ["f1_threshold", "n_ood", "arouc"])
def test_a_metric_without_better_and_worse_is_an_error(metric):
    with pytest.raises(ConfigError, match=f"'{metric}' has no better and worse"):
        needed(metric)


def test_trainings_of_a_backbone_are_means_over_their_seeds():
    other = [
        named(replace(record, backbone={**record.backbone, "training": "logitnorm", "digest": "l"}, metrics=worse))
        for record in records()[::3]
        for worse in [metrics(record.metrics["near"]["auroc"] - 0.1, 0.5)]
    ]
    (one,) = found([*records(), *other], view="trainings", of=("near",))
    assert [network.label for network in one.networks] == ["cross_entropy", "logitnorm"]
    cells = dict(zip(one.methods, one.values, strict=True))
    assert cells["knn"] == pytest.approx([0.915, 0.81])
    assert "4 methods on 2 ways of training" in one.summary()


def test_one_network_or_benchmark_or_a_metric_of_no_set_is_nothing_to_compare():
    assert found(records()[::3]) == found(records(), view="benchmarks") == found(records(), "aurc") == []


def trained(training, outliers, gains, at):
    """Runs of a training whose methods differ from cross-entropy's by some gains in near AUROC."""
    made = []
    for (method, (near, *_)), gain in zip(NEAR.items(), gains, strict=True):
        one = run(method, ("tiny", 0, 0.75 + 0.01 * at), near + gain)
        node = {"training": {"_name_": training}, **({"outliers": {"_name_": outliers}} if outliers else {})}
        about = {**one.backbone, "training": training, "digest": training, "outliers": outliers}
        made.append(named(replace(one, config={**one.config, **node}, backbone=about)))
    return made


def test_trainings_with_outliers_stand_last_and_their_gains_are_told_apart():
    made = [
        *trained("oe", "textures", (0.01, 0.02, 0.03, -0.01), 9),
        *trained("cross_entropy", "", (0, 0, 0, 0), 0),
        *trained("vos", "", (-0.01, 0.02, -0.03, -0.01), 1),
    ]
    (one,) = found(made, view="trainings", of=("near",))
    assert [network.label for network in one.networks] == ["vos", "cross_entropy", "oe · textures"]
    text = one.details().replace(" improve most of the 4 methods over cross_entropy", "")
    assert "Of 1 trainings without outliers, 0, first vos (1)" in text
    assert "Of 1 trainings with outliers, 1, first oe · textures (3)" in text
    assert "between trainings without outliers" in one.summary()
    assert found(made, of=("near",))[0].gains() == ""


def pack_of(tmp_path, rows):
    path = tmp_path / "trainings" / "records.parquet"
    path.parent.mkdir()
    pd.DataFrame(rows, columns=["path", "content"]).to_parquet(path)
    return path


def test_packed_records_are_those_that_were_written_and_a_bad_one_is_left_out(tmp_path):
    store, made = RecordStore(tmp_path), records()
    files = [store.write(one) for one in made]
    rows = [(str(file), file.read_bytes()) for file in files]
    changed = (str(files[0]), files[0].read_bytes().replace(b'"near"', b'"naer"'))
    path = pack_of(tmp_path, [*rows[1:], changed, ("x.json", b"\xff"), ("y.json", b"{}")])
    errors = []
    assert sorted(one.run_id for one in packed(path, errors.append)) == sorted(one.run_id for one in made[1:])
    assert len(errors) == 3
    assert sum(len(row.runs) for board in packed_boards(tmp_path, errors.append) for row in board.ranked) == 11


def test_settings_that_differ_are_named_and_those_that_were_tuned_per_network_are_not():
    base = records()
    more = [replace(with_method(record, "knn", k=k)) for k in (5, 10) for record in base[:3]]
    one = found([*base[3:], *more], of=("near",))[0]
    assert {name for name in one.methods if name.startswith("knn")} == {"knn · k=5", "knn · k=10"}
    tuned = [
        named(replace(record, tuned={"k": at}, config={**record.config, "tune": {"strategy": "validation"}}))
        for at, record in enumerate(base[:3])
    ]
    one = found([*base[3:], *tuned], of=("near",))[0]
    assert "knn" in one.methods
    assert one.compared == (4, 3)


def test_programs_get_every_number(matrix):
    lines = list(csv.DictReader(io.StringIO(to_csv(table_csv([matrix])))))
    assert len(lines) == 12
    line = next(line for line in lines if (line["method"], line["network"]) == ("knn", "big"))
    assert (float(line["value"]), float(line["rank"]), float(line["mean_rank"])) == pytest.approx((0.80, 4, 2))
    assert float(line["accuracy"]) == 0.90


def test_the_picture_shows_every_method_against_accuracy(matrix):
    (axes,) = accuracy_picture(matrix).axes
    points = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert np.array(points["knn"]) == pytest.approx(np.array([[75, 91], [77, 92], [90, 80]]))
    assert len(axes.lines) == 4
    assert re.search("ID accuracy", axes.get_xlabel())


def test_benchmarks_are_compared_by_the_methods_that_all_have_with_seeds_averaged():
    """Most methods were not run on the other benchmark, and another training has one method only."""
    other = {"knn": 0.7, "msp": 0.9}
    made = [run(method, ("tiny", 0, 0.6), near) for method, near in other.items()]
    made = [replace(record, benchmark={**record.benchmark, "name": "hard", "digest": "hhhh"}) for record in made]
    alone = run("sngp", ("tiny", 0, 0.99), 0.99)
    alone = replace(alone, backbone={**alone.backbone, "training": "sngp", "digest": "sngp"})
    tiny = [record for record in records() if record.backbone["name"] == "tiny"]
    tiny += [run("gen", network, 0.8) for network in NETWORKS[:2]]
    (matrix,) = found([*tiny, *map(named, [*made, alone])], view="benchmarks", of=("near",))
    assert [network.label for network in matrix.networks[:2]] == ["toy · cross_entropy", "hard"]
    methods = matrix.methods[: matrix.compared[0]]
    assert sorted(methods) == sorted(other)
    values = [[np.mean(NEAR[method][:2]), other[method]] for method in methods]
    np.testing.assert_allclose(matrix.complete, values)
    assert matrix.taus[0, 1, 0] == pytest.approx(stats.kendalltau(*np.array(values).T).statistic)
    assert matrix.notes == ("Not compared, as numbers are missing: gen, mls, sngp, vim, toy · sngp.",)
    assert "Kendall's τ between the two orders is -1.00 [" in matrix.summary()


def test_all_methods_beyond_the_colours_are_grey_points_over_their_networks(matrix, monkeypatch):
    monkeypatch.setattr(plots, "COLOURS", plots.COLOURS[:1])
    (axes,) = accuracy_picture(matrix).axes
    named, grey = sorted(axes.lines, key=lambda line: line.get_color() == "0.6")
    assert len(named.get_xydata()) == 3
    worse = 100 * matrix.values[1:4]
    accuracy = [100 * network.accuracy for network in matrix.networks]
    assert sorted(map(tuple, grey.get_xydata())) == sorted(
        (x, y) for line in worse for x, y in zip(accuracy, line, strict=True)
    )
