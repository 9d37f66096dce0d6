"""Scores that somebody else computed become a record that says so."""

import json

import numpy as np
import pandas as pd
import pytest

from openbench.__main__ import main
from openbench.cli.commands.data import benchmark_config
from openbench.engine.given import Listed
from openbench.results.leaderboard.ranking import NOT_RUN, boards_in
from openbench.results.records.store import RecordStore
from openbench.results.scores.stored import ScoreStore

QUICK = ["+benchmark=digits", "metrics.families=[ranking]", "metrics.replicates=0"]


@pytest.fixture(scope="module")
def listed():
    return Listed.of(benchmark_config(["digits"]))


@pytest.fixture
def table(listed):
    """A row for each image that the benchmark tests on, named as in its lists."""
    rng, rows = np.random.default_rng(0), []
    for key, n in listed.counts.items():
        role, _, name = key.partition("/")
        if role in ("id_test", "near", "far"):
            part = pd.DataFrame({"score": rng.normal(role != "id_test", 1, n), "set": name, "role": role})
            rows.append(part.assign(image=list(listed.names[key])))
    return pd.concat(rows, ignore_index=True)


@pytest.fixture
def given(tmp_path, capsys):
    """Import a table of scores, and return the exit code, what was said, and the records."""

    def imported(table, *options):
        table.to_parquet(tmp_path / "mine.parquet")
        command = ["import", "scores", str(tmp_path / "mine.parquet"), *QUICK, "--name", "mine", *options]
        code, said = main([*command, "--results", str(tmp_path / "results")]), capsys.readouterr()
        return code, said.out + said.err, list(RecordStore(tmp_path / "results"))

    return imported


def test_the_record_has_the_numbers_of_its_scores_and_is_verified_from_them(given, table, tmp_path, capsys):
    code, _, (record,) = given(table)
    assert code == 0
    file, out = tmp_path / "mine.parquet", tmp_path / "m.json"
    assert main(["evaluate", str(file), "--families", "ranking", "--replicates", "0", "--json", str(out)]) == 0
    assert record.metrics == json.loads(out.read_text())
    assert main(["verify", record.run_id, "--results", str(tmp_path / "results")]) == 0
    assert record.benchmark["pristine"] is True
    assert record.config["scores"]["images"] == "named"


def test_a_file_called_id_test_has_the_scores_of_the_benchmarks_set(table, tmp_path):
    (tmp_path / "npz").mkdir()
    for (name, role), rows in table.groupby(["set", "role"]):
        np.savez(tmp_path / "npz" / (role if role == "id_test" else name), conf=-rows.score)
    command = ["import", "scores", str(tmp_path / "npz"), *QUICK, "--name", "mine", "--results", str(tmp_path / "r")]
    assert main(command) == 0
    (record,) = RecordStore(tmp_path / "r")
    assert set(record.counts) == set(table.role + "/" + table.set)


def test_overrides_that_nothing_reads_are_refused(given, table):
    code, said, records = given(table, "method=knn")
    assert (code, records) == (2, [])
    assert "'method=knn' has no effect" in said


def test_the_same_scores_give_the_same_record(given, table):
    (_, first, records), (code, second, again) = given(table), given(table)
    assert (code, len(records), len(again)) == (0, 1, 1)
    assert "written" in first.splitlines()[-1]
    assert "exists" in second.splitlines()[-1]


def test_images_that_are_named_are_brought_into_the_order_of_the_lists(given, table):
    (_, _, (first,)), (_, _, again) = given(table), given(table.sample(frac=1, random_state=1))
    assert [record.run_id for record in again] == [first.run_id]


def test_an_image_that_the_lists_do_not_have_is_refused(given, table):
    table.loc[3, "image"] = "other.png"
    code, said, records = given(table)
    assert (code, records) == (2, [])
    assert "other.png" in said
    assert said.count("—") == 1


def test_counts_must_be_those_of_the_sets_unless_the_benchmark_may_be_incomplete(given, table):
    first = table[table.role == "near"].set.iloc[0]
    n = int(((table.role == "near") & (table.set == first)).sum())
    fewer = table.drop(index=table.index[(table.role == "near") & (table.set == first)][:2]).drop(columns="image")
    code, said, records = given(fewer)
    assert (code, records) == (2, [])
    assert f"{n - 2} scores of near/{first}, which has {n} images" in said
    code, _, (record,) = given(fewer, "benchmark.incomplete=allow")
    assert code == 0
    assert record.benchmark["pristine"] is False
    assert record.benchmark["deviations"] == [f"near/{first}: {n - 2} of {n} images"]
    more = pd.concat([table, table[table.role == "near"].head(1)]).drop(columns="image")
    assert given(more, "benchmark.incomplete=allow")[0] == 2


def test_boards_show_them_last_under_a_heading_and_never_rank_them(given, table, tmp_path, capsys):
    given(table)
    (board,) = boards_in(RecordStore(tmp_path / "results"), pytest.fail)
    assert board.ranked == ()
    assert [(row.method, row.reasons) for row in board.unranked] == [("mine", (NOT_RUN,))]
    assert main(["leaderboard", "--benchmark", "digits", "--results", str(tmp_path / "results")]) == 0
    assert "Scores given, code not run" in capsys.readouterr().out


def test_seeds_of_a_name_are_one_row_with_their_mean(given, table, tmp_path, capsys):
    rng = np.random.default_rng(1)
    for seed in range(3):
        table["score"] += rng.normal(0, 0.5, len(table))
        given(table, "--seed", str(seed))
    given(table, "--seed", "2")  # once more
    given(table, "--seed", "2", "metrics.replicates=10")  # with other intervals
    code, said, records = given(table.assign(score=-table.score), "--seed", "2")
    assert (code, len(records)) == (2, 4)
    assert "has other scores of this seed" in said
    values = {record.config["seed"]: record.metrics["near"]["auroc"] for record in records}
    assert len({record.config["scores"]["sha256"] for record in records}) == 3
    (board,) = boards_in(RecordStore(tmp_path / "results"), pytest.fail)
    (row,) = board.unranked
    assert (len(row.runs), row.networks, row.settings, row.reasons) == (3, 3, "none", (NOT_RUN,))
    near = row.values["near auroc"]
    assert (near.value, near.std) == pytest.approx((np.mean(list(values.values())), np.std(list(values.values()))))
    assert main(["verify", records[0].run_id, "--results", str(tmp_path / "results")]) == 0


def test_other_scores_beside_the_record_are_found_out(given, table, tmp_path, capsys):
    _, _, (record,) = given(table)
    store = ScoreStore(tmp_path / "results/scores")
    sets = store.read(record.run_id)
    sets[0].scores[0] = np.nextafter(sets[0].scores[0], np.inf)
    store.write(record.run_id, sets)
    assert main(["verify", record.run_id, "--results", str(tmp_path / "results")]) == 2
    assert "are not those that were given" in capsys.readouterr().err


def test_scores_that_float32_would_merge_keep_their_order(given, table, tmp_path):
    ood = table.role != "id_test"
    table["score"] = 1.0 + 1e-12 * ood  # in float32 all are 1
    _, _, (record,) = given(table)
    assert record.metrics["near"]["auroc"] == 1.0
    assert main(["verify", record.run_id, "--results", str(tmp_path / "results")]) == 0


def test_no_command_makes_them_again(given, table, tmp_path, capsys):
    _, _, (record,) = given(table)
    assert main(["show", "record", record.run_id, "--results", str(tmp_path / "results")]) == 0
    assert "scores given, nobody here ran the code" in capsys.readouterr().out
    assert main(["verify", "--images", record.run_id, "--results", str(tmp_path / "results")]) == 2
    assert "no command makes them again" in capsys.readouterr().err
