"""Which records a study is made of, what its cells hold, and why they are empty."""

from dataclasses import replace

import numpy as np
import pytest

from openbench.errors import ConfigError
from openbench.studies.cells import NO_RECORD, StudyOptions
from openbench.studies.plan import progress
from openbench.studies.runs import planned_run

from ..results.records import named  # noqa: TID252 — the tests are no package
from .runs import DRAWS, YAML, config_of, drawn, lookup, of, run, study

PART = {"digest": "bb", "pristine": False, "deviations": ["far.c: dropped"]}
OTHER = ("training.recipe.epochs=1", "metrics.correction=simes", "method.k=3", "tune=none", "+attack=pgd")


@pytest.fixture(scope="module")
def msp_runs():
    """With one seed each."""
    return [run("msp", seed, near) for seed, near in enumerate((0.90, 0.91, 0.95))]


def test_a_cell_is_the_mean_over_seeds_with_the_population_deviation(tmp_path, msp_runs):
    (msp, _), (knn, _) = of(study(tmp_path), msp_runs)
    assert msp.ours.value == pytest.approx(np.mean([0.90, 0.91, 0.95]))
    assert msp.ours.std == pytest.approx(np.std([0.90, 0.91, 0.95]))
    assert (knn.ours, knn.reason) == (None, NO_RECORD)


def test_a_risk_that_no_threshold_gives_is_told_from_a_number_that_was_not_measured(tmp_path, msp_runs):
    record = msp_runs[0]
    near = {**record.metrics["near"], "risk@tpr0.8,fpr0.2": "unable"}
    record = named(replace(record, metrics={**record.metrics, "near": near}))
    text = YAML.replace("near: near.auroc, far: far.auroc", 'risk: "near.risk@tpr0.8,fpr0.2", OSCR: near.oscr')
    (risk, oscr), _ = of(study(tmp_path, text), [record])
    assert risk.reason == "unable: no threshold meets its bounds (near)"
    assert oscr.reason == "its records have no oscr (near)"


def test_a_single_run_shows_its_interval_and_how_many_are_missing(tmp_path, msp_runs):
    ((msp, _), _) = of(study(tmp_path), msp_runs[:1])
    assert (msp.ours.low, msp.ours.high) == pytest.approx((0.89, 0.91))
    assert msp.incomplete
    assert list(msp.records) == ["0"]


@pytest.mark.parametrize(
    ("seed", "changes", "why"),
    [
        (7, {}, NO_RECORD),
        (0, {"of": PART}, "run on digits, but not as defined (--allow incomplete shows it)"),
    ],
)
def test_another_run_than_the_planned_one_does_not_count(tmp_path, msp_runs, seed, changes, why):
    _, (knn, _) = of(study(tmp_path), [*msp_runs, run("knn", seed, 0.9, **changes)])
    assert (knn.ours, knn.reason) == (None, why)


@pytest.mark.parametrize("word", OTHER)
def test_a_run_of_another_config_than_the_studys_does_not_count(tmp_path, word):
    record = run("knn", 0, 0.9)
    node = word.lstrip("+").partition("=")[0].partition(".")[0]
    config = {**record.config, node: config_of("+benchmark=digits", "method=knn", *OTHER)[node], "seed": 1}
    other = named(replace(record, config=config, metrics=run("knn", 1, 0.8).metrics))
    _, (knn, _) = of(study(tmp_path), [record, other])
    assert list(knn.records) == ["0"]
    # Where the study asks for it, the same record is its own.
    _, (knn, _) = of(study(tmp_path), [record, other], StudyOptions((word,)))
    assert list(knn.records) == ["1"]


def test_attacked_runs_stand_in_one_table_although_each_has_images_of_its_own(tmp_path, msp_runs):
    def attacked(method):
        of_run = {"digest": method, "pristine": False, "deviations": ["OOD images moved"]}
        config = {**config_of("+benchmark=digits", f"method={method}", "+attack=pgd"), "seed": 0}
        del config["outliers"]
        return named(replace(run(method, 0, 0.1, of=of_run), config=config))

    rows = of(study(tmp_path), [attacked("msp"), attacked("knn"), *msp_runs], StudyOptions(("+attack=pgd",)))
    assert [(near.ours.value, near.deviations) for near, _ in rows] == [(0.1, ("OOD images moved",))] * 2
    made = lookup([attacked("msp"), attacked("knn")])
    (part,) = progress(study(tmp_path, YAML.replace("[0, 1, 2]", "[0]")), StudyOptions(("+attack=pgd",)), made)
    assert (len(part.done), part.missing) == (2, [])


def test_how_wide_intervals_are_is_no_other_setting_and_those_of_95_percent_are_shown(tmp_path):
    def with_level(level):
        record = run("knn", 0, 0.9)
        metrics = {**record.config["metrics"], "replicates": 7, "confidence": level}
        return named(replace(record, config={**record.config, "metrics": metrics}))

    for levels, shown in (((0.9,), 0.9), ((0.5, 0.9, 0.95, 0.99), 0.95)):
        _, (knn, _) = of(study(tmp_path), map(with_level, levels))
        assert (knn.records["0"].level, knn.ours.value) == (shown, 0.9)


def test_a_record_that_a_later_version_supersedes_does_not_count(tmp_path):
    first = run("knn", 0, 0.9)
    second = named(replace(run("knn", 0, 0.8), method={**first.method, "version": 2}))
    _, (knn, _) = of(study(tmp_path), [first, second])
    assert (knn.records["0"].run_id, knn.ours.value) == (second.run_id, 0.8)


def test_a_run_on_part_of_the_data_counts_where_that_is_asked_for_and_says_so(tmp_path, msp_runs):
    records = [run("knn", 0, 0.9, of=PART), run("msp", 0, 0.8, of=PART)]
    (msp, _), (knn, _) = of(study(tmp_path), records, StudyOptions(incomplete=True))
    assert (msp.ours.value, knn.ours.value) == (0.8, 0.9)
    assert knn.deviations == ("far.c: dropped",)
    # A table is about one state of the benchmark: the one as defined, where there is one.
    (msp, _), (knn, _) = of(study(tmp_path), [*records, *msp_runs], StudyOptions(incomplete=True))
    assert (len(msp.records), knn.reason) == (3, "run on digits, but not as defined (--allow incomplete shows it)")


def test_a_record_whose_config_defines_another_benchmark_does_not_count(tmp_path):
    record = run("knn", 0, 0.9)  # it states the digest of the whole benchmark
    near = {name: node for name, node in record.config["benchmark"]["near"].items() if name != "nine"}
    benchmark = {**record.config["benchmark"], "near": near}
    record = named(replace(record, config={**record.config, "benchmark": benchmark}))
    for options in (StudyOptions(), StudyOptions(incomplete=True)):
        _, (knn, _) = of(study(tmp_path), [record], options)
        assert (knn.ours, knn.reason) == (None, NO_RECORD)


def test_released_weights_are_those_of_plain_training(tmp_path):
    config = config_of("+benchmark=digits", "method=msp", "backbone=resnet20_cifar10", "training=vos")
    backbone = {"name": "resnet20_cifar10", "digest": "released", "training": None}
    record = run("msp", 0, 0.9)
    config = {key: node for key, node in config.items() if key != "outliers"}
    record = named(replace(record, config=config, backbone=backbone))
    (msp, _), _ = of(study(tmp_path), [record], StudyOptions(("backbone=resnet20_cifar10",)))
    assert msp.ours.value == 0.9


def test_a_run_may_take_another_data_set_of_a_benchmark_and_its_keys():
    words = ["+benchmark=digits", "dataset@benchmark.far.noise=textures_drawn", "benchmark.far.noise.keep=[blobs]"]
    far = planned_run([*words, "method=msp"], "a cell").node["far"]
    assert (far["noise"]["name"], far["noise"]["keep"]) == ("textures_drawn", ["blobs"])
    assert far["patches"]["name"] == "patches"
    runs = [planned_run(["+benchmark=openset_digits", *own], "a cell") for own in (["benchmark.openset.seed=3"], [])]
    assert [run.benchmark for run in runs] == ["openset_digits_3", "openset_digits_0"]  # names that it gives itself


def test_draws_of_a_table_have_images_of_their_own_and_count_together(tmp_path):
    records = [drawn("pca", draw, near) for draw, near in ((1, 0.8), (2, 0.9), (4, 0.1))]
    ((cell,), _) = of(study(tmp_path, DRAWS), records)
    assert (list(cell.records), cell.ours.std) == (["1", "2"], pytest.approx(0.05))


def test_published_figures_are_found_by_what_stands_in_their_columns(tmp_path, msp_runs):
    (tmp_path / "printed.csv").write_text(
        "who,where,percent,std\nMSP,near,91.0,1.0\nMSP,far,95.00,\nKNN,near,80,2\nKNN,far,/,\n"
    )
    text = YAML.replace("columns: {near: near.auroc, far: far.auroc}", "columns:") + (
        "  near: {value: near.auroc, published: {where: near}}\n"
        "  far: {value: far.auroc, published: {where: far}}\n"
        "published: {file: printed.csv, row: who, value: percent, std: std, percent: true}\n"
    )
    (near, far), (knn, none) = of(study(tmp_path, text), [*msp_runs, *(run("knn", seed, 0.95) for seed in range(3))])
    assert (near.published.value.value, near.published.value.std) == pytest.approx((0.91, 0.01))
    assert far.published.value.value == pytest.approx(0.95)
    assert far.published.value.std is None
    assert near.difference.value == pytest.approx(0.01)
    assert (near.difference.verdict, far.difference.verdict) == ("~", "=")
    # .95 ± 0 against .80 ± .02 of three runs: t = .15 / (.02 · √(3/2) / √3) = 10.6, beyond t(.975, 2) = 4.3.
    assert (knn.difference.verdict, none.published) == ("*", None)
    only = study(tmp_path, text + "only_published: true\n")
    assert of(only, [])[1][1].reason == "not in the published table"
    with pytest.raises(ConfigError, match=r"file 'printed\.csv' has no key 'percnt'; did you mean 'percent'"):
        of(study(tmp_path, text.replace("value: percent", "value: percnt")), [])


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("seed=0,1", "a cell: seed — found '0,1', allowed: a whole number"),
        ("method.kk=3", "method.kk=3: method has no key 'kk' — allowed: k, index"),
    ],
)
def test_what_is_typed_wrongly_for_a_run_is_said_with_what_is_allowed(typed, words):
    with pytest.raises(ConfigError, match=words):
        assert planned_run(["+benchmark=digits", "method=knn", typed], "a cell").config_keys


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("rows:", "row:"), "study 'two' has no key 'row'; did you mean 'rows'"),
        (("near.auroc", "auroc"), r"columns.near: value: found 'auroc' — allowed: SET.METRIC"),
        (("{MSP: method=msp,", "{MSP: {runs: method=msp},"), r"rows.MSP has no key 'runs'; did you mean 'run'"),
        (("seeds: [0, 1, 2]", "seeds: yes"), "seeds"),
        (("+benchmark=digits", "+benchmark=digitz"), "benchmark 'digitz' not found in configs/benchmark; did you mean"),
        (("run: +benchmark=digits", "run: []"), "two': MSP, near: names no benchmark"),
        (("method=knn", "launcher=x"), "two': KNN, near: a run of a study has no key 'launcher'"),
        (("[0, 1, 2]", "[]"), r"columns.near: seeds: found \[\] — allowed: whole numbers ≥ 0, at least one"),
        (("[0, 1, 2]", "[0.5]"), r"columns.near: seeds: found \[0.5\]"),
        (("method=knn", "method=knm"), "two': KNN, near: method — found 'knm', allowed: .*did you mean 'knn'"),
        (("title: Two", "published: {file: x.csv, runs: 0}\ntitle: Two"), r"published\.runs: found 0"),
        (("title: Two", "test: NN\ntitle: Two"), "test — found 'NN', allowed: MSP, KNN; did you mean 'KNN'"),
        (("title: Two", "options: {tpr: 0.8}\ntitle: Two"), "options has no key 'tpr' — allowed: curves"),
        (("title: Two", "options: {curves: [ocsr]}\ntitle: Two"), r"options.curves.0: found 'ocsr' — allowed: 'oscr'"),
        (("title: Two", "layout: rejection\noptions: {tpr: 2}\ntitle: Two"), r"options.tpr: found 2 — allowed: less"),
        (("title: Two", "published: {file: none.csv}\ntitle: Two"), "'none.csv' not found in"),
    ],
)
def test_what_a_yaml_has_wrong_is_said_with_what_is_allowed(tmp_path, change, words):
    with pytest.raises(ConfigError, match=words):
        of(study(tmp_path, YAML.replace(*change)), [])
