"""What a sweep says while it runs, when it ends, and to `sweep status`."""

import shutil

import pytest

from openbench.__main__ import main
from openbench.cli.commands.jobs import NOT_ENDED, Outcome, Sweep
from openbench.errors import DataError, NotApplicableError


@pytest.fixture
def sweep(tmp_path):
    """A sweep of nine jobs, of which none has begun."""
    found = Sweep(tmp_path, "run", ("+benchmark=digits", "seed=range(9)"), ("seed",), [f"seed={n}" for n in range(9)])
    found.write()
    return found


def ended(sweep, job, status="written", seconds=10.0):
    code = 2 if status == "failed" else 0
    Outcome(code, f"{status} it", status, {"near": 0.875}, job, f"seed={job}", seconds).write(sweep.folder)


def test_every_line_of_a_sweep_tells_its_job_apart(engine, capsys):
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp", "seed=0,1", "tune=none"]) == 0
    shown = capsys.readouterr()
    starts = [line.split(",")[0] for line in shown.err.splitlines() if line.startswith("job ")]
    expected = [("knn", 0), ("knn", 1), ("msp", 0), ("msp", 1)]
    assert starts == [f"job {i} of 4 (method={m} seed={s})" for i, (m, s) in enumerate(expected, 1)]
    ends = [line.split(",")[0] for line in shown.out.splitlines() if "records/" in line]
    assert ends == [f"digits {m} seed={s}" for m, s in expected]


def test_a_sweep_ends_in_a_table_of_what_it_made_on_stdout(engine, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    engine.broken["knn"] = NotApplicableError("no such layer")
    assert main(["run", "-m", "+benchmark=digits,letters", "method=knn,msp", "backbone=tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines[lines.index("sweep · run backbone=tiny") + 2 :] if line]
    assert rows[0] == ["job", "what", "near", "AUROC", "↑", "far", "AUROC", "↑", "status"]
    assert rows[2:] == [
        ["1", "benchmark=digits", "method=knn", "–", "–", "not", "applicable"],
        ["2", "benchmark=digits", "method=msp", "87.50", "93.75", "written"],
        ["3", "benchmark=letters", "method=knn", "–", "–", "not", "applicable"],
        ["4", "benchmark=letters", "method=msp", "87.50", "93.75", "written"],
    ]


def test_time_left_is_the_mean_of_what_was_computed_times_what_is_not(sweep):
    assert sweep.left() == ""
    ended(sweep, 0, "skipped", 0.1)  # a record that was there before tells nothing
    assert sweep.left() == ""
    ended(sweep, 1, seconds=30.0)
    ended(sweep, 2, seconds=50.0)
    ended(sweep, 3, NOT_ENDED, 0.0)
    assert sweep.left() == ", about 4 min left"  # 6 jobs of 40 s
    ended(sweep, 4, NOT_ENDED, 0.0)
    assert sweep.left() == ", about 2 min left"  # two at a time


def test_a_sweep_goes_on_after_a_job_that_names_a_file_outside_utf_8(engine, capsys):
    engine.broken["knn"] = DataError("image 'a\udcff.png' cannot be read")
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp"]) == 2
    assert "sweep: 2 jobs, 1 done, 1 failed (" in capsys.readouterr().err


def test_status_reads_sweeps_of_earlier_versions(sweep):
    (sweep.folder / "outcomes").mkdir()
    (sweep.folder / "outcomes" / "0.json").write_text('{"code": 0, "status": "written", "job": 0, "objective": null}')
    assert Sweep.read(sweep.folder).counts() == "1 done, 0 failed, 8 not run"


def test_an_error_of_many_jobs_has_its_details_once(engine, capsys):
    engine.broken["knn"] = DataError("set 'tin' not found — searched 2 places\n  ./here\n  ./there\nput it there")
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp", "seed=0,1,2"]) == 2
    err = capsys.readouterr().err
    assert [line for line in err.splitlines() if "error: " in line] == [
        f"job {i} of 6 (method=knn seed={i - 1}): error: set 'tin' not found — searched 2 places" for i in (1, 2, 3)
    ]
    assert err.count("./there") == 1
    assert "failed, exit 2, jobs 1-3: set 'tin' not found — searched 2 places\n  ./here" in err


def test_an_interrupted_sweep_ends_in_what_is_missing(engine, capsys):
    engine.broken["msp"] = KeyboardInterrupt()
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp", "seed=0,1,2"]) == 130
    shown = capsys.readouterr()
    counts = "sweep: 6 jobs, 3 done, 0 failed, 1 not ended, 2 not run; the same command goes on ("
    assert counts in shown.err
    rows = [line.split()[-1] for line in shown.out.splitlines() if line.startswith(tuple(f" {n} " for n in range(7)))]
    assert rows == ["written"] * 3 + ["ended", "run", "run"]


def test_status_lists_sweeps_and_says_what_became_of_the_jobs_of_one(engine, capsys, tmp_path):
    assert main(["sweep", "status"]) == 0
    assert "no sweep below" in capsys.readouterr().out
    engine.broken["knn"] = DataError("no data")
    typed = ["+benchmark=digits", "method=knn,msp"]
    main(["run", "-m", *typed])
    capsys.readouterr()
    [folder] = (tmp_path / "cache" / "sweeps").iterdir()
    (folder.parent / "of_another_version").mkdir()
    (folder.parent / "of_another_version" / "sweep.json").write_text('{"jobs": 3}')
    assert main(["sweep", "status"]) == 0
    listed = capsys.readouterr().out
    assert "1 done, 1 failed" in listed
    assert folder.name in listed
    assert main(["sweep", "status", folder.name]) == 1
    assert "failed, exit 2, job 1: no data" in capsys.readouterr().out
    (folder / "outcomes" / "0.json").unlink()
    assert main(["sweep", "status", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "1 not run" in said
    assert "to run the missing jobs: python -m openbench run -m +benchmark=digits method=knn,msp\n" in said
    shutil.rmtree(folder)
    assert main(["sweep", "status", folder.name]) == 2
    assert "is not the folder of a sweep" in capsys.readouterr().err


def test_a_sweep_in_a_folder_of_the_users_naming_forgets_what_lay_there(engine, capsys, tmp_path):
    where = f"hydra.sweep.dir={tmp_path / 'mine'}"
    assert main(["run", "-m", "+benchmark=digits", "seed=0,1,2", where]) == 0
    assert main(["run", "-m", "+benchmark=digits", "seed=0,1", where]) == 0
    assert "sweep: 2 jobs, 2 done, 0 failed (" in capsys.readouterr().err.splitlines()[-1]


def test_a_sweep_that_cannot_begin_leaves_the_folder_that_it_was_given_as_it_is(engine, capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    typed = ["run", "-m", "+benchmark=digits", "method=knm,msp", f"hydra.sweep.dir={tmp_path / 'mine'}"]
    assert main(typed) == 2
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    assert not (tmp_path / "mine" / "sweep.json").exists()
