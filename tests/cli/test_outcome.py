"""What a sweep says while it runs, when it ends, and to `sweep status`."""

import shutil

import pytest

from openbench.__main__ import main
from openbench.cli.commands.jobs import NOT_ENDED, Outcome, Sweep
from openbench.errors import DataError, NotApplicableError


@pytest.fixture
def sweep(tmp_path):
    """A sweep of nine jobs, of which none has begun."""
    jobs = [f"seed={n}" for n in range(9)]
    found = Sweep(tmp_path / "sweep", "run", ("+benchmark=digits", "seed=range(9)"), ("seed",), jobs)
    found.write()
    return found


def ended(sweep, job, status="written", seconds=10.0):
    code = 2 if status == "failed" else 0
    Outcome(code, f"{status} it", status, {"near": 0.875}, job, f"seed={job}", seconds).write(sweep.folder)


def test_a_sweep_ends_in_a_table_of_every_combination_and_skips_what_is_made_for_other_networks(
    engine, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "120")
    engine.broken["knn"] = NotApplicableError("backbone 'tiny' has no layer 'confidence'")
    assert main(["run", "-m", "+benchmark=digits,letters", "method=glob(*)", "backbone=tiny"]) == 0
    ran = [(config["benchmark"]["name"], config["method"]["_name_"]) for _, config, _ in engine.asked]
    assert ran == [(b, m) for b in ("digits", "letters") for m in ("knn", "msp")]
    out, err = capsys.readouterr()
    lines = out.splitlines()
    rows = [line.split() for line in lines[lines.index("sweep · run backbone=tiny") + 2 :] if line]
    assert rows[0] == ["job", "what", "near", "AUROC", "↑", "far", "AUROC", "↑", "status"]
    assert rows[2:] == [
        ["1", "benchmark=digits", "method=knn", "–", "–", "not", "applicable"],
        ["2", "benchmark=digits", "method=msp", "87.50", "93.75", "written"],
        ["3", "benchmark=letters", "method=knn", "–", "–", "not", "applicable"],
        ["4", "benchmark=letters", "method=msp", "87.50", "93.75", "written"],
    ]
    assert "sweep: 4 jobs, 2 done, 0 failed, 2 skipped: not applicable" in err
    skipped = "skipped: not applicable — backbone 'tiny' has no layer 'confidence'"
    assert f"job 1 of 4 (benchmark=digits method=knn): {skipped}" in err


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


def test_status_reads_sweeps_of_earlier_versions(sweep):
    (sweep.folder / "outcomes").mkdir()
    (sweep.folder / "outcomes" / "0.json").write_text('{"code": 0, "status": "written", "job": 0, "objective": null}')
    assert Sweep.read(sweep.folder).counts() == "1 done, 0 failed, 8 not run"


def test_a_sweep_goes_on_after_errors_and_ends_in_the_worst_exit_code_and_the_details_of_each_once(engine, capsys):
    missing = "image 'a\udcff.png' not found — searched 2 places"
    engine.broken = {"msp": DataError(f"{missing}\n  ./here\n  ./there\nput it there"), "knn": RuntimeError("boom")}
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp,msp,knn"]) == 2
    err = capsys.readouterr().err
    told = {"msp": "image 'a\\udcff.png' not found — searched 2 places", "knn": "RuntimeError: boom"}
    assert [line for line in err.splitlines() if ": error: " in line] == [
        f"job {i} of 4 (method={name}): error: {told[name]}" for i, name in enumerate(("knn", "msp", "msp", "knn"), 1)
    ]
    assert err.count("./there") == 1
    assert f"failed, exit 2, jobs 2-3: {told['msp']}\n  ./here" in err
    assert "failed, exit 1, jobs 1, 4: RuntimeError: boom" in err
    assert "sweep: 4 jobs, 0 done, 4 failed (" in err
    engine.broken.clear()
    assert main(["run", "-m", "+benchmark=digits", "seed=x,0"]) == 2  # read when the job begins
    assert "sweep: 2 jobs, 1 done, 1 failed (" in capsys.readouterr().err


def test_an_interrupted_sweep_tells_its_jobs_apart_and_ends_in_what_is_missing(engine, capsys):
    engine.broken["msp"] = KeyboardInterrupt()
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp", "seed=0,1", "tune=none"]) == 130
    out, err = capsys.readouterr()
    starts = [line.split(",")[0] for line in err.splitlines() if line.startswith("job ")]
    begun = ["method=knn seed=0", "method=knn seed=1", "method=msp seed=0"]
    assert starts == [f"job {i} of 4 ({job})" for i, job in enumerate(begun, 1)]
    ends = [line.split(",")[0] for line in out.splitlines() if "records/" in line]
    assert ends == ["digits knn seed=0", "digits knn seed=1"]
    assert "sweep: 4 jobs, 2 done, 0 failed, 1 not ended, 1 not run; the same command goes on (" in err
    rows = [line.split()[-1] for line in out.splitlines() if line.startswith(tuple(f" {n} " for n in range(5)))]
    assert rows == ["written"] * 2 + ["ended", "run"]


def test_status_lists_sweeps_and_says_what_became_of_the_jobs_of_one(here, capsys):
    assert main(["sweep", "status"]) == 0
    assert "no sweep below" in capsys.readouterr().out
    folder, jobs = here / "cache" / "sweeps" / "one", ["method=knn", "method=msp"]
    Sweep(folder, "run", ("+benchmark=digits", "method=knn,msp"), ("method",), jobs).write()
    Outcome(2, "no data", "failed", {}, 0, jobs[0]).write(folder)
    Outcome(0, "written it", "written", {}, 1, jobs[1]).write(folder)
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


def test_a_sweep_in_a_folder_of_the_users_naming_forgets_what_lay_there(engine, sweep, capsys):
    ended(sweep, 1, "failed")
    assert main(["run", "-m", "+benchmark=digits", "seed=0", f"hydra.sweep.dir={sweep.folder}"]) == 0
    assert "sweep: 1 jobs, 1 done, 0 failed (" in capsys.readouterr().err.splitlines()[-1]
    assert not (sweep.folder / "outcomes" / "1.json").exists()


def test_a_sweep_that_cannot_begin_leaves_the_folder_that_it_was_given_as_it_is(engine, capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    typed = ["run", "-m", "+benchmark=digits", "method=knm,msp", f"hydra.sweep.dir={tmp_path / 'mine'}"]
    assert main(typed) == 2
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
    assert not (tmp_path / "mine" / "sweep.json").exists()
