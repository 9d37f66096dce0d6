"""What `sweep status` says of jobs: done, running, failed and why, interrupted, queued, to do."""

import shutil
from datetime import datetime
from pathlib import Path

import pytest
from filelock import FileLock

from openbench.__main__ import main
from openbench.cli.hydra.job import Done, Job
from openbench.cli.hydra.outcome import ALIVE, FAILED_STATUS, RUNNING, WAITING, Outcome, Plan, read_outcomes, summary
from openbench.cli.hydra.states import Kept, counted, details, kept_sweeps
from openbench.errors import DataError, NotApplicableError
from openbench.storage.locks import wait_for

SWEEP = ("+benchmark=digits", "method=knn,msp", "seed=0,1")


@pytest.fixture
def sweep(tmp_path):
    """The folder of a sweep of six jobs, of which three have ended and two have begun."""
    names = tuple(f"seed={seed}" for seed in range(6))
    Plan(6, ("seed",), (), "run", ("+benchmark=digits", "seed=range(6)"), names).write(tmp_path)
    ended = [("written", 0, "written x.json"), ("failed", 2, "no such set"), ("not applicable", 0, "no head")]
    for number, (status, code, message) in enumerate([*ended, (RUNNING, 0, ""), (RUNNING, 0, "")]):
        Outcome(number, [f"seed={number}"], code, message, 1.0, status).write(tmp_path / str(number))
    return Kept(tmp_path, Plan.read(tmp_path))


def test_a_job_runs_as_long_as_its_process_lives(sweep):
    with FileLock(sweep.folder / "3" / ALIVE):
        states = {state.name: state.state for state in sweep.states()}
    expected = ["done", "failed", "not applicable", "running", "interrupted", "to do"]
    assert states == {f"seed={seed}": state for seed, state in enumerate(expected)}
    assert [state.state for state in sweep.states()][3] == "interrupted"


def test_a_job_whose_record_was_deleted_is_to_do(sweep):
    record = sweep.folder / "record.json"
    Outcome(0, ["seed=0"], 0, "written", 1.0, "written", record=str(record)).write(sweep.folder / "0")
    record.touch()
    assert sweep.states()[0].state == "done"
    record.unlink()
    assert (sweep.states()[0].state, sweep.states()[5].state) == ("to do", "to do")
    assert f"to do, job 1: its record is not there any more: '{record}'" in details(sweep.states(), "sweep")


def test_what_has_not_begun_is_queued_as_long_as_the_sweep_lives(sweep):
    with FileLock(sweep.folder / ALIVE):
        assert sweep.states()[5].state == "queued"


def test_what_messages_hold_does_not_steer_the_terminal(sweep, capsys):
    named = "set '\x1b]0;title\x07x' is empty\nsee \x1b[2Jthere"
    Outcome(1, ["seed=1"], 2, named, 1.0, "failed").write(sweep.folder / "1")
    print(details(sweep.states(), "sweep"))
    print(summary(read_outcomes(sweep.folder), sweep.plan, sweep.folder))
    job = Job(Outcome(1, ("seed=1",), 0, "", 0.0, RUNNING), sweep.folder / "1", sweep.folder, sweep.plan)
    for status in (FAILED_STATUS, WAITING):
        job.complain(Done(2, named, status))
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert shown.count("set '\\x1b]0;title\\x07x' is empty") == 4


def test_jobs_are_counted_by_state(sweep):
    assert counted(sweep.states()) == "1 done, 1 not applicable, 1 failed, 2 interrupted, 1 to do"


def test_the_status_of_a_sweep_tells_why_and_how_to_go_on(engine, capsys):
    engine.broken["knn"] = DataError("set 'tin' not found")
    assert main(["run", "-m", *SWEEP]) == 2
    [folder] = (Path("..") / "cache" / "sweeps").iterdir()
    capsys.readouterr()
    assert main(["sweep", "status", folder.name]) == 1
    shown = capsys.readouterr()
    rows = [line.split() for line in shown.out.splitlines()]
    assert [row[-1] for row in rows if row and row[0].isdigit() and len(row) == 4] == [
        "failed",
        "failed",
        "done",
        "done",
    ]
    assert "failed, jobs 1-2: set 'tin' not found" in shown.out
    assert "4 jobs: 2 done, 2 failed" in shown.out
    assert "python -m openbench run -m +benchmark=digits method=knn,msp seed=0,1" in shown.err
    assert main(["sweep", "status", str(folder)]) == 1
    assert main(["sweep", "status"]) == 0
    assert "2 done, 2 failed" in capsys.readouterr().out


def test_a_sweep_whose_jobs_are_done_or_not_applicable_is_done(engine, capsys):
    engine.broken["knn"] = NotApplicableError("no such layer")
    assert main(["run", "-m", *SWEEP]) == 0
    assert main(["sweep", "status", next((Path("..") / "cache" / "sweeps").iterdir()).name]) == 0
    shown = capsys.readouterr()
    assert "2 done, 2 not applicable" in shown.out
    assert "what is missing" not in shown.err


def test_a_sweep_whose_records_were_deleted_is_to_do_from_wherever_it_is_asked(engine, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBENCH_RESULTS", "here")
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp"]) == 0
    folder = next((Path("..") / "cache" / "sweeps").iterdir()).absolute()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    record = Path("here", "records", "x.json").absolute()
    monkeypatch.chdir(elsewhere)
    assert main(["sweep", "status", str(folder)]) == 0
    record.unlink()
    assert main(["sweep", "status", str(folder)]) == 1
    assert "2 jobs: 2 to do" in capsys.readouterr().out


@pytest.mark.slow
def test_words_find_the_latest_outcome_of_each_job_in_all_sweeps(engine, capsys):
    engine.broken["knn"] = DataError("set 'tin' not found")
    assert main(["extract", "-m", "+benchmark=digits", "method=knn,msp"]) == 2
    engine.broken.clear()
    kept = kept_sweeps(Path("..") / "cache" / "sweeps")[0].folder
    shutil.move(kept, kept.with_name("2020-01-01T00-00-00-1"))
    assert main(["extract", "-m", "+benchmark=digits", "method=knn", "seed=0,1"]) == 0
    # A process has one sweep in a second, but here.
    latest = kept_sweeps(Path("..") / "cache" / "sweeps")[0].folder
    shutil.move(latest, latest.with_name("2021-01-01T00-00-00-1"))
    assert main(["extract", "-m", "+benchmark=digits", "method=knn,msp", "runtime.batch_size=3"]) == 0
    capsys.readouterr()
    assert main(["sweep", "status", "extract", "-m", "+benchmark=digits", "method=knn,msp,rmds"]) == 1
    shown = capsys.readouterr().out
    assert "3 jobs: 2 done, 1 to do" in shown


def test_sweeps_that_begin_within_a_second_are_not_taken_for_each_other(engine, capsys, monkeypatch):
    class Standing(datetime):
        """A clock that stands still."""

        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, tzinfo=tz)

    monkeypatch.setattr("openbench.cli.hydra.app.datetime", Standing)
    for seeds in ("0,1", "2,3"):
        assert main(["run", "-m", "+benchmark=digits", "method=knn", f"seed={seeds}"]) == 0
    assert [config["seed"] for _, config, _ in engine.asked] == [0, 1, 2, 3]
    latest, first = kept_sweeps(Path("..") / "cache" / "sweeps")
    assert [kept.plan.names for kept in (latest, first)] == [("seed=2", "seed=3"), ("seed=0", "seed=1")]


@pytest.fixture
def busy(engine, monkeypatch):
    """An engine that finds knn's features being made by another job, as often as it is told; who was asked in order."""
    asked, answer = [], engine.answer
    engine.often = 0

    def answering(command, config, runtime):
        name = config["method"]["_name_"]
        asked.append(name)
        if name == "knn" and engine.often:
            engine.often -= 1
            wait_for("features of x: another job computes them", asked.append)
        return answer(command, config, runtime)

    monkeypatch.setattr(engine, "answer", answering)
    return asked


def test_a_job_that_would_wait_leaves_its_place_and_goes_on_when_others_have_ended(engine, busy, capsys):
    engine.often = 1
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp"]) == 0
    assert busy == ["knn", "msp", "knn"]
    shown = capsys.readouterr()
    assert "job 1 of 2 (method=knn): features of x: another job computes them — it goes on" in shown.err
    assert "1 of 2 jobs go on now that others have ended" in shown.err
    assert "sweep: 2 jobs, 2 done, 0 failed" in shown.err
    assert len([line for line in shown.out.splitlines() if line.endswith("written")]) == 2


@pytest.mark.slow
def test_jobs_that_only_wait_for_somebody_else_do_so_in_the_end(engine, busy, capsys):
    engine.often = 9
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp"]) == 0
    assert busy == ["knn", "msp", "knn", "knn", "features of x: another job computes them, waiting"]
    assert "1 of 2 jobs wait for what other jobs make" in capsys.readouterr().err


def test_a_job_by_itself_waits(engine, busy):
    engine.often = 1
    assert main(["run", "+benchmark=digits", "method=knn"]) == 0
    assert busy == ["knn", "features of x: another job computes them, waiting"]


@pytest.mark.parametrize(
    ("typed", "said"), [(["nothing"], "is not the folder of a sweep"), (["a", "b"], "allowed: one folder")]
)
def test_what_is_no_sweep_is_refused(engine, capsys, typed, said):
    assert main(["sweep", "status", *typed]) == 2
    assert said in capsys.readouterr().err


def test_files_of_another_version_are_read_as_far_as_they_are_known(tmp_path):
    from openbench.storage.checksum import write_sealed

    write_sealed(tmp_path / "sweep.json", b'{"jobs": 2, "swept": ["seed"], "later": [], "colour": 1}')
    assert Plan.read(tmp_path) == Plan(2, ("seed",))
    known = b'"job": 0, "overrides": [], "code": 0, "message": "m", "seconds": 1.0'
    write_sealed(tmp_path / "0" / "outcome.json", b"{" + known + b', "colour": 1}')
    write_sealed(tmp_path / "1" / "outcome.json", b'{"colour": 1}')
    assert read_outcomes(tmp_path) == [Outcome(0, [], 0, "m", 1.0)]
