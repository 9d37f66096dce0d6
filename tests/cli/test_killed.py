"""A sweep whose processes are killed, as a system does that runs out of memory."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import openbench
from openbench.cli.hydra.killed import after_a_kill
from openbench.cli.hydra.outcome import RUNNING, Outcome, Plan, due, read_outcomes
from openbench.errors import OpenbenchError

ERROR = RuntimeError("A worker process was unexpectedly terminated.\nThe exit codes of the workers are {SIGKILL(-9)}\n")


def sweep_of(folder, *statuses):
    Plan(len(statuses) + 3, ("seed",)).write(folder)
    for number, status in enumerate(statuses):
        (folder / str(number)).mkdir()
        Outcome(number, [f"seed={number}"], 0, "", 0.0, status).write(folder / str(number))
    return Plan(len(statuses) + 3, ("seed",))


def test_a_job_that_was_killed_while_it_ran_alone_has_failed(tmp_path, capsys):
    plan = sweep_of(tmp_path, "written", RUNNING)
    assert after_a_kill(tmp_path, plan, ERROR, due(tmp_path)) == ()
    done, killed = read_outcomes(tmp_path)
    assert done.status == "written"
    assert (killed.status, killed.code) == ("failed", 1)
    assert "its process was ended by SIGKILL(-9)" in killed.message
    assert "job 2 of 5 (seed=1): error: its process was ended by SIGKILL(-9)" in capsys.readouterr().err


def test_jobs_that_ran_together_run_again(tmp_path, capsys):
    plan = sweep_of(tmp_path, RUNNING, "written", RUNNING)
    assert after_a_kill(tmp_path, plan, ERROR, due(tmp_path)) == (0, 2)
    assert [outcome.job for outcome in read_outcomes(tmp_path)] == [1]
    assert "job 1 of 6 (seed=0) or job 3 of 6 (seed=2): its process was ended by SIGKILL(-9)" in capsys.readouterr().err


def test_processes_that_end_before_any_job_began_are_an_error(tmp_path):
    plan = sweep_of(tmp_path, "written")
    with pytest.raises(OpenbenchError, match=r"before a job began.*SIGKILL\(-9\)"):
        after_a_kill(tmp_path, plan, ERROR, due(tmp_path))


def test_a_process_that_ends_between_two_jobs_leaves_the_rest_to_go_on(tmp_path, capsys):
    plan = sweep_of(tmp_path, "written")
    assert after_a_kill(tmp_path, plan, ERROR, frozenset({0, 1, 2, 3})) == ()
    assert [outcome.status for outcome in read_outcomes(tmp_path)] == ["written"]
    assert "between two jobs its process was ended by SIGKILL(-9)" in capsys.readouterr().err


def missing(name: str) -> pytest.MarkDecorator:
    """Skip where the extra of a launcher is not installed."""
    absent = importlib.util.find_spec(f"hydra_plugins.hydra_{name}_launcher") is None
    return pytest.mark.skipif(absent, reason=f"the extra {name} is not installed")


def swept_by(folder: Path, *launcher: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """How a sweep over four jobs ends of which some are killed, and which job was tried, once per try."""
    script, root = Path(__file__).parent / "killed_jobs.py", Path(openbench.__file__).parent.parent
    tries = folder / "tries"
    places = {"TRIES": str(tries), "OPENBENCH_CACHE": str(folder), "PYTHONPATH": f"{root}:{script.parent}"}
    done = subprocess.run(
        [sys.executable, script, "-m", "+benchmark=digits", "seed=0,1,2,3", *launcher],
        env={**os.environ, **places, **environment},
        capture_output=True,
        text=True,
        cwd=folder,
    )
    return done, tries.read_text().split() if tries.exists() else []


def check_that_only_the_third_failed(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith((" 1", " 2", " 3", " 4"))]
    assert [row[-1] for row in rows] == ["written", "written", "failed", "written"]
    assert "sweep: 4 jobs, 3 done, 1 failed" in done.stderr


@pytest.mark.slow
@missing("joblib")
def test_a_killed_process_fails_its_job_and_the_others_go_on(tmp_path):
    done, tries = swept_by(tmp_path, "runtime=joblib", "hydra.launcher.n_jobs=2", KILLED_TOGETHER="yes")
    check_that_only_the_third_failed(done)
    assert "failed, exit 1, job 3: its process was ended by SIGKILL(-9)" in done.stderr
    assert [tries.count(seed) for seed in ("0", "1")] == [2, 2]


@pytest.mark.slow
@missing("ray")
def test_a_killed_worker_of_ray_fails_its_job_and_the_others_go_on(tmp_path):
    done, tries = swept_by(tmp_path, "runtime=ray", "+hydra.launcher.ray.init.num_cpus=2")
    check_that_only_the_third_failed(done)
    assert "failed, exit 1, job 3: its task ended without a result — " in done.stderr
    assert [tries.count(seed) for seed in "0123"] == [1, 2, 4, 1]  # Ray tries a task again three times
