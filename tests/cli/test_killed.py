"""A sweep whose processes are killed, as a system does that runs out of memory."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import openbench
from openbench.cli.hydra.killed import after_a_kill
from openbench.cli.hydra.outcome import RUNNING, Outcome, Plan, read_outcomes
from openbench.errors import OpenbenchError

ERROR = RuntimeError("A worker process was unexpectedly terminated.\nThe exit codes of the workers are {SIGKILL(-9)}\n")


def sweep_of(folder, *statuses):
    for number, status in enumerate(statuses):
        (folder / str(number)).mkdir()
        Outcome(number, [f"seed={number}"], 0, "", 0.0, status).write(folder / str(number))
    return Plan(len(statuses) + 3, ("seed",))


def test_a_job_that_was_killed_while_it_ran_alone_has_failed(tmp_path, capsys):
    plan = sweep_of(tmp_path, "written", RUNNING)
    assert after_a_kill(tmp_path, plan, ERROR) == ()
    done, killed = read_outcomes(tmp_path)
    assert done.status == "written"
    assert (killed.status, killed.code) == ("failed", 1)
    assert "its process was ended by SIGKILL(-9)" in killed.message
    assert "job 2 of 5 (seed=1): error: its process was ended by SIGKILL(-9)" in capsys.readouterr().err


def test_jobs_that_ran_together_run_again(tmp_path, capsys):
    plan = sweep_of(tmp_path, RUNNING, "written", RUNNING)
    assert after_a_kill(tmp_path, plan, ERROR) == (0, 2)
    assert [outcome.job for outcome in read_outcomes(tmp_path)] == [1]
    assert "job 1 of 6 (seed=0) or job 3 of 6 (seed=2): its process was ended by SIGKILL(-9)" in capsys.readouterr().err


def test_processes_that_end_before_any_job_began_are_an_error(tmp_path):
    plan = sweep_of(tmp_path, "written")
    with pytest.raises(OpenbenchError, match=r"before a job began.*SIGKILL\(-9\)"):
        after_a_kill(tmp_path, plan, ERROR)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("hydra_plugins.hydra_joblib_launcher") is None, reason="the extra joblib is not installed"
)
def test_a_killed_process_fails_its_job_and_the_others_go_on(tmp_path):
    script, root = Path(__file__).parent / "killed_jobs.py", Path(openbench.__file__).parent.parent
    tries = tmp_path / "tries"
    places = {"TRIES": str(tries), "OPENBENCH_CACHE": str(tmp_path), "PYTHONPATH": f"{root}:{script.parent}"}
    typed = ["-m", "+benchmark=digits", "seed=0,1,2,3", "runtime=joblib", "hydra.launcher.n_jobs=2"]
    done = subprocess.run(
        [sys.executable, script, *typed], env={**os.environ, **places}, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith((" 1", " 2", " 3", " 4"))]
    assert [row[-1] for row in rows] == ["written", "written", "failed", "written"]
    assert "failed, exit 1, job 3: its process was ended by SIGKILL(-9)" in done.stderr
    assert "sweep: 4 jobs, 3 done, 1 failed" in done.stderr
    assert [tries.read_text().split().count(seed) for seed in ("0", "1")] == [2, 2]
