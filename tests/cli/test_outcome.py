"""What a sweep says while it runs and when it ends."""

import pytest

from openbench.__main__ import main
from openbench.cli.hydra.app import Call
from openbench.cli.hydra.outcome import RUNNING, Outcome, Plan, duration, summary, table
from openbench.errors import DataError, NotApplicableError
from openbench.results.tables.render import to_console

NAMES = {"benchmark": "digits", "backbone": "tiny", "training": "cross_entropy", "seed": "0"}


def outcome(job, status="written", seconds=10.0, **names):
    code = 2 if status == "failed" else 0
    return Outcome(job, [], code, f"{status} it", seconds, status, {**NAMES, **names}, {"near": 0.875})


def test_every_line_of_a_sweep_tells_its_job_apart(engine, capsys):
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp", "seed=0,1", "tune=none"]) == 0
    shown = capsys.readouterr()
    starts = [line.split(",")[0] for line in shown.err.splitlines() if line.startswith("job ")]
    expected = [("knn", 0), ("knn", 1), ("msp", 0), ("msp", 1)]
    assert starts == [f"job {i} of 4 (method={m} seed={s})" for i, (m, s) in enumerate(expected, 1)]
    ends = [line.split(",")[0] for line in shown.out.splitlines() if "records/" in line]
    assert ends == [f"digits {m} seed={s}" for m, s in expected]


def test_a_sweep_ends_in_a_table_of_what_it_made_on_stdout(engine, capsys):
    engine.broken["knn"] = NotApplicableError("no such layer")
    assert main(["run", "-m", "+benchmark=digits,letters", "method=knn,msp", "backbone=tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("sweep · backbone tiny · training cross_entropy · seed 0")
    rows = [line.split() for line in lines[start + 2 :] if line]
    assert rows[0] == ["job", "benchmark", "method", "near", "AUROC", "↑", "far", "AUROC", "↑", "status"]
    assert rows[2:] == [
        ["1", "digits", "knn", "–", "–", "not", "applicable"],
        ["2", "digits", "msp", "87.50", "93.75", "written"],
        ["3", "letters", "knn", "–", "–", "not", "applicable"],
        ["4", "digits", "msp", "87.50", "93.75", "written"],  # the stand-in's record names digits
    ]


def test_the_table_of_a_sweep_has_a_column_for_other_keys_that_are_swept_over(engine, capsys):
    assert main(["run", "-m", "+benchmark=digits", "method=knn", "method.k=3,5"]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines() if line.startswith((" 1 ", " 2 "))]
    assert [row[1] for row in rows] == ["3", "5"]
    assert "method knn" in out


@pytest.mark.parametrize("command", ["train", "extract"])
def test_other_commands_end_in_a_table_without_scores(engine, capsys, command):
    assert main([command, "-m", "+benchmark=digits", "seed=0,1"]) == 0
    out = capsys.readouterr().out
    assert "AUROC" not in out
    assert [line.split() for line in out.splitlines() if line.endswith("done")] == [
        ["1", "0", "done"],
        ["2", "1", "done"],
    ]


@pytest.mark.parametrize(
    ("width", "other"),
    [(60, {}), (60, {"training": "outlier_exposure"}), (80, {"backbone": "resnet20_cifar10", "training": "npos"})],
)
def test_the_table_fits_a_narrow_terminal(width, other):
    first = {"benchmark": "openset_cifar10_0", "method": "mds_ensemble", "seed": "1", **other}
    ended = [outcome(0, "not applicable", **first), outcome(1, method="knn", seed="0")]
    text = to_console(table(ended, ["benchmark"]), width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for word in (*first.values(), "87.50", "applicable"):
        assert word in words, text  # nothing is broken or cut


def test_time_left_is_the_mean_of_what_was_computed_times_what_is_not():
    plan = Plan(12, ("seed",))
    assert plan.left([]) == ""
    # 30 s and 50 s were computed; one record was there before, which tells nothing. Nine are left.
    ended = [outcome(0, seconds=30.0), outcome(1, seconds=50.0), outcome(2, "skipped", 0.1)]
    assert plan.left([*ended, outcome(3, RUNNING, 0.0)]) == ", about 6 min left"
    # Three at a time take a third of that.
    assert plan.left([*ended, *(outcome(i, RUNNING, 0.0) for i in (3, 4, 5))]) == ", about 2 min left"
    assert plan.left([outcome(0, "skipped", 0.1)]) == ""


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (40.4, "40 s"), (89, "89 s"), (120, "2 min"), (5340, "89 min"), (7800, "2 h 10 min")],
)
def test_durations_are_said_as_people_say_them(seconds, said):
    assert duration(seconds) == said


def test_an_error_of_many_jobs_has_its_details_once(engine, capsys):
    engine.broken["knn"] = DataError("set 'tin' not found — searched 2 places\n  ./here\n  ./there\nput it there")
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp", "seed=0,1,2"]) == 2
    err = capsys.readouterr().err
    assert [line for line in err.splitlines() if "error: " in line] == [
        f"job {i} of 6 (method=knn seed={i - 1}): error: set 'tin' not found — searched 2 places" for i in (1, 2, 3)
    ]
    assert err.count("./there") == 1
    assert "failed, exit 2, jobs 1-3: set 'tin' not found — searched 2 places\n  ./here" in err


def test_the_closing_lines_count_what_did_not_run(tmp_path):
    said = summary([outcome(0), outcome(1, "failed"), outcome(2, RUNNING)], Plan(9, ()), tmp_path)
    assert said.splitlines() == [
        "failed, exit 2, job 2: failed it",
        f"sweep: 9 jobs, 1 done, 1 failed, 1 interrupted, 6 not run; the same command goes on ({tmp_path})",
    ]


def test_numbers_of_jobs_are_shortened(tmp_path):
    ended = [outcome(i, "failed") for i in (0, 1, 2, 4, 6, 7)]
    assert "failed, exit 2, jobs 1-3, 5, 7-8: failed it" in summary(ended, Plan(8, ()), tmp_path)


def test_an_interrupted_sweep_ends_in_what_was_not_run(engine, capsys):
    engine.broken["msp"] = KeyboardInterrupt()
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp", "seed=0,1,2"]) == 130
    shown = capsys.readouterr()
    last = shown.err.splitlines()[-1]
    assert last.startswith("sweep: 6 jobs, 3 done, 0 failed, 1 interrupted, 2 not run; the same command goes on (")
    assert [line.split()[-1] for line in shown.out.splitlines()[-5:] if line] == ["written"] * 3 + ["interrupted"]


def test_a_sweep_that_is_interrupted_in_its_first_job_has_no_table(engine, capsys):
    engine.broken["knn"] = KeyboardInterrupt()
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp"]) == 130
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "sweep: 2 jobs, 0 done, 0 failed, 1 interrupted, 1 not run" in shown.err


@pytest.mark.parametrize(
    ("runtime", "said"), [({}, "so far\n"), ({"progress": True}, "so far\n"), ({"progress": False}, "")]
)
def test_a_job_says_how_far_it_is_unless_told_otherwise(runtime, said, capsys):
    Call({}, runtime, False).say("so far")
    assert capsys.readouterr() == ("", said)
