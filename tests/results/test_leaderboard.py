import csv
import io
import os
import random
import statistics
from dataclasses import replace

import pytest

from openbench.results.leaderboard import pages, ranking
from openbench.results.leaderboard.pages import generate, outdated, write
from openbench.results.records.store import RecordStore
from openbench.results.tables import views
from openbench.results.tables.published import Figure, Setup
from openbench.results.tables.render import Estimate

from .records import make_record, markdown_table, metrics, named, with_method, with_seed


def boards(records):
    """The boards of records whose ids follow from them, whatever a test has changed."""
    return ranking.boards(map(named, records))


def leaderboard(records, published=None):
    return pages.leaderboard(boards(records), published)


def ranked(records, index=0):
    return boards(records)[index].ranked


def test_seeds_become_mean_and_population_deviation_with_their_number():
    base, nears = make_record(), [0.90, 0.92, 0.97]
    (row,) = ranked([with_seed(base, seed, near) for seed, near in enumerate(nears)])
    cell = row.values["near auroc"]
    assert cell.value == pytest.approx(statistics.fmean(nears))
    assert cell.std == pytest.approx(statistics.pstdev(nears))
    assert (cell.low, cell.high) == (None, None)
    assert (len(row.runs), row.networks) == (3, 3)


def test_a_single_run_shows_its_interval_and_no_deviation():
    record = make_record()
    (row,) = ranked([record])
    assert row.values["near auroc"] == Estimate(0.9, 0.89, 0.91)
    assert row.values["near fpr95"] == Estimate(1 - 0.9)
    other = replace(record, config={**record.config, "metrics": {"confidence": 0.9}})  # not of 95 %
    assert ranked([other])[0].values["near auroc"] == Estimate(0.9)


def test_seeds_on_one_network_are_told_from_seeds_of_training():
    base = make_record()
    runs = [replace(with_seed(base, s, 0.9), backbone=base.backbone) for s in range(3)]
    again = replace(runs[0], config={**runs[0].config, "metrics": {"delta": 0.01}})  # counts once
    (row,) = ranked([*runs, again])
    assert (len(row.runs), row.networks) == (3, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: with_method(r, "msp"),
        lambda r: with_method(r, "knn", k=10),
        lambda r: replace(r, run_id="e" * 16, backbone={**r.backbone, "name": "wide"}),
        lambda r: replace(r, run_id="e" * 16, backbone={**r.backbone, "training": "logitnorm"}),
        lambda r: replace(r, run_id="e" * 16, config={**r.config, "tune": {"strategy": "validation"}}),
    ],
)
def test_what_differs_in_more_than_the_seed_is_another_row(change):
    base = make_record()
    assert len(ranked([base, change(base)])) == 2


def test_rows_are_in_the_order_of_near_auroc_then_far_then_name():
    base = make_record()
    plan = [("d", 0.9, 0.9), ("c", 0.9, 0.95), ("b", 0.95, 0.5), ("a", 0.9, 0.9), ("e", 0.5, 0.99)]
    records = [replace(with_method(base, name), metrics=metrics(near, far)) for name, near, far in plan]
    assert [row.method for row in ranked(records)] == ["b", "c", "a", "d", "e"]


def test_hyper_parameters_that_tuning_chose_differently_are_all_shown():
    base = make_record(config={"seed": 0, "tune": {"strategy": "validation"}})
    runs = [
        replace(with_seed(base, s, 0.9), tuned={"k": k}, method={**base.method, "params": {"k": k}})
        for s, k in enumerate([100, 50, 50])
    ]
    (row,) = ranked(runs)
    assert (row.params, row.settings, row.tuned) == ("k=50 | k=100", "k=50…100 (3 seeds)", "validation")


def test_what_was_tuned_without_ood_data_is_ranked_with_the_others_and_the_board_says_so():
    config = {"seed": 0, "tune": {"strategy": "held_out_classes", "folds": 5, "seed": 0}}
    base = make_record()
    own = replace(with_method(base, "own"), config=config, tuned={"k": 50})
    (board,) = boards([base, own])
    assert {row.method: row.tuned for row in board.ranked} == {"knn": "no", "own": "held_out_classes"}
    assert "read ID data only" in leaderboard([base, own])["toy.md"]
    assert "read ID data only" not in leaderboard([base])["toy.md"]
    (row,) = ranked([replace(base, config=config)])  # nothing to tune
    assert row.tuned == "no"


def not_pristine(record, *deviations):
    return replace(record, benchmark={**record.benchmark, "pristine": False, "deviations": list(deviations)})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda r: not_pristine(r, "tin: dropped"), "benchmark not as defined: tin: dropped"),
        (lambda r: replace(r, config={**r.config, "tune": {"strategy": "oracle"}}), "chosen on test data"),
        (lambda r: replace(r, config={**r.config, "tune": {"strategy": "oracle_per_set"}}), "(oracle per set)"),
        (lambda r: replace(r, metrics={"id": {"accuracy": 0.5}}), "no AUROC was measured"),
    ],
)
def test_what_must_not_be_ranked_is_shown_apart_with_the_reason(spoil, reason):
    base = make_record()
    good, bad = with_method(base, "good"), spoil(with_method(base, "bad"))
    (board,) = boards([good, bad])
    assert [row.method for row in board.ranked] == ["good"]
    assert [row.method for row in board.unranked] == ["bad"]
    assert reason in board.unranked[0].reasons[0]
    page = leaderboard([good, bad])["toy.md"]
    assert [row["method"] for row in markdown_table(page, "toy")] == ["good"]
    (shown,) = markdown_table(page, "Not ranked")
    assert shown["not ranked because"] == "[a]"
    assert any(line.startswith("- [a] ") and reason in line for line in page.splitlines())


def test_one_bad_seed_takes_its_row_out_of_the_ranking():
    base = make_record()
    (board,) = boards([with_seed(base, 0, 0.9), not_pristine(with_seed(base, 1, 0.9), "a (near): 3 of 5")])
    assert board.ranked == ()
    assert len(board.unranked[0].runs) == 2


def test_records_of_different_benchmark_digests_are_never_in_one_table():
    base = make_record()
    other = replace(with_method(base, "msp"), benchmark={**base.benchmark, "digest": "zzzz"})
    found = {board.digest: [row.method for row in board.ranked] for board in boards([base, other])}
    assert found == {"aaaa": ["knn"], "zzzz": ["msp"]}
    assert "2 versions of this benchmark (digests aaaa, zzzz)" in leaderboard([base, other])["toy.md"]


def test_full_spectrum_has_a_table_of_its_own_from_its_own_numbers():
    base = make_record()
    both = metrics(0.9, 0.95) | {f"full_spectrum/{name}": v for name, v in metrics(0.6, 0.7, accuracy=0.5).items()}
    standard, wide = boards([replace(base, metrics=both)])
    assert (standard.full_spectrum, wide.full_spectrum) == (False, True)
    assert wide.ranked[0].values["near auroc"].value == 0.6
    assert wide.ranked[0].values["accuracy"].value == 0.5


def test_unable_in_one_seed_is_unable_in_the_mean():
    base = make_record()
    broken = with_seed(base, 1, 0.9)
    values = {**broken.metrics}
    values |= {name: {**values[name], "fpr95": "unable"} for name in ("near", "a")}
    (row,) = ranked([with_seed(base, 0, 0.9), replace(broken, metrics=values)])
    assert row.values["near fpr95"] == "unable"


FIGURE = Figure(Estimate(0.5, std=0.01), Estimate(0.6), 0.7, "openood_v1.5_table1.csv")


def test_a_published_figure_stands_in_its_own_column_with_its_source_and_is_not_ranked():
    base = make_record()
    records = [base, replace(with_method(base, "msp"), metrics=metrics(0.3, 0.3))]
    others = {Setup("toy", "logitnorm", "tiny", "knn"): FIGURE, Setup("toy", "cross_entropy", "wide", "knn"): FIGURE}
    page = leaderboard(records, {Setup("toy", "cross_entropy", "tiny", "msp"): FIGURE, **others})["toy.md"]
    first, second = markdown_table(page, "toy")
    assert [first["method"], second["method"]] == ["knn", "msp"]
    assert (first["published near"], first["published far"]) == ("–", "–")
    assert (second["published near"], second["published far"]) == ("50.00 ± 1.00 [1]", "60.00 [1]")
    assert second["near AUROC ↑"] == "30.00 [29.00, 31.00]"
    assert "Published: [1] Zhang et al., OpenOOD v1.5, arXiv 2306.09301, table 1." in page


def test_the_csv_holds_every_row_unrounded_with_its_runs():
    base = make_record()
    runs = [with_seed(base, s, near) for s, near in enumerate([0.1, 0.2, 0.4])]
    bad = not_pristine(with_method(base, "bad"), "tin: dropped")
    rows = list(csv.DictReader(io.StringIO(leaderboard([*runs, bad])["toy.csv"])))
    assert [row["rank"] for row in rows] == ["1", ""]
    assert float(rows[0]["near_auroc"]) == pytest.approx(0.7 / 3, abs=1e-15)
    assert float(rows[0]["near_auroc std"]) == pytest.approx(statistics.pstdev([0.1, 0.2, 0.4]), abs=1e-15)
    assert rows[0]["run_ids"].split() == sorted(r.run_id for r in runs)
    assert rows[1]["not_ranked_because"] == "benchmark not as defined: tin: dropped"


def many() -> list:
    base = make_record()
    methods = [with_method(base, f"m{i}", k=i) for i in range(6)]
    return [with_seed(m, s, 0.5 + 0.05 * ((i * 7 + s) % 5)) for i, m in enumerate(methods) for s in range(3)]


def test_the_leaderboard_does_not_depend_on_the_order_of_records():
    records = many()
    expected = leaderboard(records)
    for seed in range(5):
        random.Random(seed).shuffle(records)
        assert leaderboard(records) == expected


def test_regenerating_without_new_records_changes_no_byte_and_touches_no_file(tmp_path):
    store = RecordStore(tmp_path)
    for record in many():
        store.write(record)
    written = write(tmp_path, generate(tmp_path).files)
    assert sorted(p.name for p in written) == ["README.md", "toy.csv", "toy.md"]
    before = [path.read_bytes() for path in written]
    for path in written:
        os.utime(path, ns=(0, 0))
    assert outdated(tmp_path, generate(tmp_path).files) == []
    assert write(tmp_path, generate(tmp_path).files) == []
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in written] == [(content, 0) for content in before]
    store.write(with_method(make_record(), "msp"))
    assert outdated(tmp_path, generate(tmp_path).files) == sorted(written)


def test_pages_without_records_go_and_files_of_others_stay(tmp_path):
    path = RecordStore(tmp_path).write(make_record())
    write(tmp_path, generate(tmp_path).files)
    folder = tmp_path / "leaderboard"
    (folder / "notes.md").write_text("mine")
    path.unlink()
    assert sorted(p.name for p in write(tmp_path, generate(tmp_path).files)) == ["README.md", "toy.csv", "toy.md"]
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "notes.md"]
    assert "No records yet" in (folder / "README.md").read_text()


def test_a_reason_that_many_rows_share_is_written_once():
    base = make_record()
    records = [not_pristine(with_method(base, name), "tin: dropped") for name in ("a", "b")]
    records.append(not_pristine(with_method(base, "c"), "svhn: dropped"))
    page = leaderboard(records)["toy.md"]
    marks = {row["method"]: row["not ranked because"] for row in markdown_table(page, "Not ranked")}
    assert marks["a"] == marks["b"] != marks["c"]
    assert page.count("tin: dropped") == page.count("svhn: dropped") == 1


@pytest.mark.parametrize("name", ["imagenet1k", "imagenet1k_fs"])
def test_published_full_spectrum_figures_stand_beside_full_spectrum_numbers_only(name):
    """A benchmark with csID sets reports both sides; its standard side is that of the benchmark without them."""
    both = {f"full_spectrum/{group}": values for group, values in metrics(0.6, 0.7).items()} | metrics(0.8, 0.9)
    record = replace(make_record(metrics=both), benchmark={**make_record().benchmark, "name": name})
    figures = {
        Setup(f"imagenet1k{suffix}", "cross_entropy", "tiny", "knn"): Figure(
            Estimate(near), Estimate(near), None, "openood_leaderboard.csv"
        )
        for suffix, near in (("", 0.81), ("_fs", 0.61))
    }
    page = leaderboard([record], figures)[f"{name}.md"]
    standard, wide = (part for part in page.split("\n### ") if part.startswith(name))
    assert ("81.00 [1]" in standard, "61.00 [1]" in standard) == (True, False)
    assert ("81.00 [1]" in wide, "61.00 [1]" in wide) == (False, True)


def test_methods_whose_near_auroc_is_printed_the_same_share_their_rank():
    base = make_record()
    nears = {"a": 0.91, "b": 0.904, "c": 0.90402, "d": 0.9, "e": 0.89996}
    records = [replace(with_method(base, name), metrics=metrics(near, 0.9)) for name, near in nears.items()]
    files = leaderboard(records)
    rows = markdown_table(files["toy.md"], "toy")
    assert [row["rank"] + row["method"] for row in rows] == ["1a", "2=c", "2=b", "4=d", "4=e"]
    assert [row["rank"] for row in csv.DictReader(io.StringIO(files["toy.csv"]))] == ["1", "2", "2", "4", "4"]


def test_an_edited_record_leaves_the_other_seeds_of_its_row_their_rank():
    base = make_record()
    good = [with_seed(base, seed, 0.9) for seed in (0, 1)]
    bad = with_seed(base, 2, 0.9)
    bad = replace(bad, metrics={**bad.metrics, "near": {**bad.metrics["near"], "auroc": 0.999}})
    (board,) = boards([*good, bad])
    assert [sorted(row.runs) for row in board.ranked] == [sorted(run.run_id for run in map(named, good))]
    assert [row.runs for row in board.unranked] == [(named(bad).run_id,)]


def test_deviations_are_those_of_the_standard_library():
    draw = random.Random(0)
    cases = [
        [draw.choice((draw.random(), draw.random() * 1e-9, 1.0, 0, 7)) for _ in range(2 + n % 5)] for n in range(300)
    ]
    assert [views.deviation(case) for case in cases] == [statistics.pstdev(case) for case in cases]
    assert views.deviation([0.1, 0.1, 0.1]) == 0.0


def test_what_released_weights_have_seen_of_the_ood_classes_is_a_column():
    made = make_record(backbone={"name": "tiny", "digest": "bbbb", "training": None})
    released = replace(made, config={**made.config, "backbone": {"model": "tiny"}})
    found = boards([released, with_seed(make_record(), 1, 0.8)])
    told = pages.leaderboard(found, seen=lambda benchmark, node: f"3 of 5 {node['model']} {benchmark}")["toy.md"]
    assert told.count("3 of 5 tiny toy") == 1  # a network that was trained here has seen what its training showed
    assert "| OOD classes seen |" in told
    assert "OOD classes seen" not in pages.leaderboard(found)["toy.md"]
