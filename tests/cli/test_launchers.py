"""Launchers whose jobs are killed or interrupted: Slurm through submitit, and joblib."""

import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import openbench
from openbench import paths
from openbench.__main__ import main
from openbench.cli.hydra.app import QUIET
from openbench.cli.hydra.launchers import ray_tasks, submitit_jobs
from openbench.cli.hydra.outcome import RUNNING, WAITING, Outcome, Plan, due, read_outcomes


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where the plug-in of a launcher is missing."""
    missing = importlib.util.find_spec(f"hydra_plugins.hydra_{name}_launcher") is None
    return pytest.mark.skipif(missing, reason=f"hydra-{name}-launcher is not installed")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """What Slurm answers: write it into this file; without the file, squeue fails."""
    says = tmp_path / "says"
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(f"#!/bin/sh\ncat {says} 2>/dev/null && exit\necho controller is away >&2; exit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    return says


@pytest.mark.parametrize("state", ["CANCELLED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT", "FAILED"])
def test_a_job_that_slurm_ended_is_done(slurm, state):
    slurm.write_text(f"7_0 RUNNING\n7_1 {state}\n")
    queue = submitit_jobs.Queue()
    for job in ("7_0", "7_1"):
        queue.register_job(job)
    assert [queue.is_done("7_0"), queue.is_done("7_1")] == [False, True]


@pytest.mark.parametrize("state", ["PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "PREEMPTED"])
def test_a_job_that_may_go_on_is_waited_for(slurm, state):
    slurm.write_text(f"7 {state}\n")
    queue = submitit_jobs.Queue()
    queue.register_job("7")
    assert not queue.is_done("7", "force")


def test_a_job_that_slurm_does_not_know_for_two_seconds_is_gone(slurm, monkeypatch):
    now = 100.0
    monkeypatch.setattr(submitit_jobs.time, "monotonic", lambda: now)
    slurm.write_text("8 RUNNING\n")
    queue = submitit_jobs.Queue()
    queue.register_job("7")
    assert not queue.is_done("7", "force")
    assert not queue.is_done("7", "force")  # the same moment tells nothing new
    now += 2.5
    slurm.write_text("7 RUNNING\n")
    assert not queue.is_done("7", "force")
    slurm.write_text("8 RUNNING\n")
    assert not queue.is_done("7", "force")  # the first time that it is missing again
    now += 2.5
    assert queue.is_done("7", "force")


@pytest.mark.parametrize(
    ("trace", "last"),
    [
        ("Traceback\n  …\nValueError: odd\n", "ValueError: odd"),
        (f"Traceback\n  {'-' * 60}\nValueError: {'-' * 50}\n", f"ValueError: {'-' * 50}"),
        ("", "it left no trace"),
    ],
)
def test_the_last_line_of_a_trace_is_found_whatever_is_in_it(trace, last):
    rule = "-" * 22
    said = f"Job (task=0) failed during processing with trace:\n{rule}\n{trace}{rule}\nYou can check full logs"
    assert submitit_jobs._last_line(said) == last


@pytest.mark.parametrize("said", ["", "no trace here"])
def test_an_error_without_a_trace_is_told_as_it_is(said):
    assert submitit_jobs._last_line(said) == (said or "it left no trace")


def test_a_slurm_that_does_not_answer_ends_no_job_and_is_told_once(slurm, capsys):
    queue = submitit_jobs.Queue()
    queue.register_job("7")
    assert not any(queue.is_done("7", "force") for _ in range(3))
    said = capsys.readouterr().err
    assert said.count("WARNING") == 1
    assert "controller is away" in said


def submit(folder: Path, number: int):
    """A job of Slurm as submitit leaves it, which has ended without a result."""
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
    from submitit.core.utils import DelayedSubmission
    from submitit.slurm.slurm import SlurmJob

    job = SlurmJob(folder / "%j", f"7_{number}")
    job.paths.folder.mkdir()
    job._results_timeout_s = 0
    given = {"sweep_overrides": [f"seed={number}"], "job_num": number}
    names = list(inspect.signature(BaseSubmititLauncher.__call__).parameters)[1:]
    DelayedSubmission(print, *(given.get(name) for name in names)).dump(job.paths.submitted_pickle)
    return job


@needs("submitit")
def test_a_job_without_a_result_has_failed_and_the_sweep_goes_on(slurm, tmp_path, capsys):
    slurm.write_text("7_0 OUT_OF_MEMORY\n7_1 CANCELLED\n7_2 NODE_FAIL\n")
    Plan(3, ("seed",)).write(tmp_path)
    Outcome(1, ["seed=1"], 0, "", 0.0, RUNNING, {"seed": "1"}).write(tmp_path / "1")
    Outcome(2, ["seed=2"], 0, "went well", 0.0).write(tmp_path / "2")
    with submitit_jobs.patient(tmp_path):
        results = [submit(tmp_path, number).results()[0].return_value for number in range(3)]
    assert results == [1, 1, 1]
    begun_not, killed, ended = read_outcomes(tmp_path)
    assert (begun_not.status, begun_not.code, list(begun_not.overrides)) == ("failed", 1, ["seed=0"])
    assert "its job 7_0 ended without a result (OUT_OF_MEMORY)" in begun_not.message
    assert (killed.status, killed.code, killed.names) == ("failed", 1, {"seed": "1"})
    assert (ended.status, ended.message) == ("done", "went well")
    assert "job 2 of 3 (seed=1): error: its job 7_1 ended without a result (CANCELLED)" in capsys.readouterr().err


@needs("submitit")
def test_logs_of_slurm_jobs_lie_in_a_folder_that_is_there_before_the_jobs_are_submitted(tmp_path):
    from submitit.core.utils import JobPaths

    shipped = OmegaConf.load(paths.config_dir() / "runtime" / "slurm.yaml")
    shipped.hydra.sweep = {"dir": str(tmp_path)}
    folder = shipped.hydra.launcher.submitit_folder
    assert JobPaths.get_first_id_independent_folder(folder) == JobPaths(folder).stdout.parent


@needs("submitit")
def test_an_error_outside_the_job_is_told_by_its_last_line(slurm, tmp_path):
    import cloudpickle

    Plan(1, ()).write(tmp_path)
    with submitit_jobs.patient(tmp_path):
        job = submit(tmp_path, 0)
        trace = "Traceback (most recent call last):\n  …\nModuleNotFoundError: No module named 'openbench'\n"
        job.paths.result_pickle.write_bytes(cloudpickle.dumps(("error", trace)))
        job.results()
    [outcome] = read_outcomes(tmp_path)
    assert "could not begin — ModuleNotFoundError: No module named 'openbench' — see" in outcome.message


class LostError(Exception):
    """What Ray raises for a task whose node is gone."""


@pytest.fixture
def ray(monkeypatch):
    """The part of Ray's launcher that is mended: a task is its number, and those in `lost` have no result."""
    lost: set[int] = set()

    def get(task):
        if task in lost:
            raise LostError("The node died.\n\nIts raylet was killed.\n")
        return f"result {task}"

    core = types.ModuleType("_core")
    core.ray = types.SimpleNamespace(get=get, exceptions=types.SimpleNamespace(RayError=LostError))
    core.launch_job_on_ray = lambda context, remote, config, function, state: config.hydra.job.num
    core.start_ray = lambda init: core.begun.append(dict(init))
    core.begun = []
    plugin = types.ModuleType("hydra_plugins.hydra_ray_launcher")
    plugin._core = core
    monkeypatch.setitem(sys.modules, plugin.__name__, plugin)
    core.lost = lost
    return core


def test_a_lost_task_of_ray_has_failed_and_the_others_are_waited_for(ray, tmp_path, capsys):
    Plan(3, ("seed",)).write(tmp_path)
    ray.lost |= {1, 2}
    with ray_tasks.patient(tmp_path):
        configs = [
            OmegaConf.create({"hydra": {"job": {"num": number}, "overrides": {"task": [f"seed={number}"]}}})
            for number in range(3)
        ]
        tasks = [ray.launch_job_on_ray(None, {}, config, print, {}) for config in configs]
        Outcome(1, ["seed=1"], 0, "", 0.0, RUNNING, {"seed": "1"}).write(tmp_path / "1")
        Outcome(2, ["seed=2"], 0, "went well", 0.0).write(tmp_path / "2")
        found = [ray.ray.get(task) for task in tasks]
    assert found[0] == "result 0"
    assert [one.return_value for one in found[1:]] == [1, 1]
    lost, ended = read_outcomes(tmp_path)
    assert (lost.status, lost.code, lost.names) == ("failed", 1, {"seed": "1"})
    assert (ended.status, ended.message) == ("done", "went well")
    assert (
        "job 2 of 3 (seed=1): error: its task ended without a result — Its raylet was killed."
        in capsys.readouterr().err
    )
    assert ray.ray.get(0) == "result 0"
    with pytest.raises(LostError):
        ray.ray.get(1)


def test_a_job_that_has_ended_or_is_to_wait_is_not_sent_to_ray(ray, tmp_path):
    Plan(4, ("seed",), later=(3,)).write(tmp_path)
    Outcome(0, ["seed=0"], 0, "went well", 0.0).write(tmp_path / "0")
    Outcome(1, ["seed=1"], 0, "features of x", 0.0, WAITING).write(tmp_path / "1")
    with ray_tasks.patient(tmp_path):
        configs = [OmegaConf.create({"hydra": {"job": {"num": n}, "overrides": {"task": []}}}) for n in range(4)]
        found = [ray.ray.get(ray.launch_job_on_ray(None, {}, config, print, {})) for config in configs]
    assert [one if isinstance(one, str) else one.return_value for one in found] == [0, "result 1", "result 2", 0]


@needs("submitit")
def test_a_job_that_has_ended_or_is_to_wait_is_not_submitted(tmp_path, monkeypatch):
    import submitit

    sent = []

    def submit(self, function, *columns):
        sent.extend(zip(*columns, strict=True))
        return [types.SimpleNamespace(results=lambda number=row[2]: [f"result {number}"]) for row in sent]

    monkeypatch.setattr(submitit.AutoExecutor, "map_array", submit)
    Plan(4, ("seed",), later=(3,)).write(tmp_path)
    Outcome(0, ["seed=0"], 0, "went well", 0.0).write(tmp_path / "0")
    rows = [([f"seed={number}"], "hydra.sweep.dir", number, "id", {}) for number in range(4)]
    with submitit_jobs.patient(tmp_path):
        jobs = submitit.AutoExecutor.map_array(None, print, *zip(*rows, strict=True))
    assert [row[2] for row in sent] == [1, 2]
    found = [job.results()[0] for job in jobs]
    assert [one if isinstance(one, str) else one.return_value for one in found] == [0, "result 1", "result 2", 0]


@needs("submitit")
def test_a_job_whose_time_is_over_for_the_last_time_says_which_key_gives_it_more(engine, capsys):
    from submitit.core.utils import UncompletedJobError

    engine.broken["knn"] = UncompletedJobError("Job not requeued because: timed-out too many times.")
    assert main(["run", "-m", "+benchmark=digits", "method=knn,msp"]) == 2
    said = capsys.readouterr().err
    assert "job 1: its time is over" in said
    assert "hydra.launcher.max_num_timeout" in said
    assert "Traceback" not in said


@needs("submitit")
def test_a_job_that_goes_back_into_the_queue_ends_without_an_exception(monkeypatch):
    from submitit.core.job_environment import SignalHandler

    monkeypatch.setattr(SignalHandler, "_exit", SignalHandler._exit)
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    submitit_jobs.end_when_queued_again()
    SignalHandler._exit(object())
    assert codes == [1]


def test_a_job_that_goes_back_into_the_queue_leaves_no_outcome_and_is_carried_out_again(engine, tmp_path):
    engine.broken["knn"] = SystemExit(-1)  # how submitit ends a job that it has queued again
    typed = ["run", "-m", "+benchmark=digits", "method=knn,msp"]
    with pytest.raises(SystemExit):
        main(typed)
    [folder] = (tmp_path / "cache" / "sweeps").iterdir()
    assert [outcome.status for outcome in read_outcomes(folder)] == [RUNNING]
    assert due(folder) == {0, 1}


@pytest.mark.parametrize("given", [{"address": "10.0.0.1:6379"}, {"address": None}])
def test_a_cluster_of_ray_is_joined_with_the_memory_that_it_has(ray, tmp_path, monkeypatch, given):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with ray_tasks.patient(tmp_path):
        ray.start_ray(OmegaConf.create({**given, "object_store_memory": 78643200}))
    [begun] = ray.begun
    assert begun.pop("runtime_env")
    assert begun == (given if given["address"] else {**given, "object_store_memory": 78643200})


def test_tasks_of_ray_have_the_folders_of_the_command(ray, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENBENCH_RESULTS", "/here/results")
    monkeypatch.setenv("OPENBENCH_DATA", "/here/data")
    given = {"address": None, "runtime_env": {"pip": ["x"], "env_vars": {"OPENBENCH_DATA": "/there"}}}
    with ray_tasks.patient(tmp_path):
        ray.start_ray(OmegaConf.create(given))
    found = ray.begun[0]["runtime_env"]
    assert found["pip"] == ["x"]
    assert found["env_vars"]["OPENBENCH_RESULTS"] == "/here/results"
    assert found["env_vars"]["OPENBENCH_DATA"] == "/there"


@pytest.mark.slow
@needs("submitit")
def test_a_killed_job_fails_and_the_others_go_on(tmp_path):
    script, root = Path(__file__).parent / "killed_jobs.py", Path(openbench.__file__).parent.parent
    places = {"TRIES": str(tmp_path / "tries"), "OPENBENCH_CACHE": str(tmp_path)}
    typed = ["-m", "+benchmark=digits", "seed=2,3", "hydra/launcher=submitit_local"]
    done = subprocess.run(
        [sys.executable, script, *typed],
        env={**os.environ, **places, "PYTHONPATH": f"{root}:{script.parent}"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "job 1 of 2 (seed=2): error: its job" in done.stderr
    assert "sweep: 2 jobs, 1 done, 1 failed" in done.stderr


JOBLIB = """
import sys, time
from pathlib import Path
from joblib import Parallel, delayed
import openbench.__main__ as m
from openbench.cli.hydra.launchers.joblib_processes import quiet
def act(rest):
    with quiet(Path()):
        Parallel(n_jobs=2)(delayed(time.sleep)(60) for _ in range(2))
m._dispatch = act
sys.exit(m.script())
"""


@pytest.mark.slow
@needs("joblib")
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="/proc tells when a process has begun")
def test_ctrl_c_while_joblibs_processes_start_gives_no_traceback():
    process = subprocess.Popen(
        [sys.executable, "-c", JOBLIB],
        env={**os.environ, "PYTHONWARNINGS": QUIET},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a group of its own, as in a terminal
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    end = time.monotonic() + 600
    while not importing(process.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert importing(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=600)  # until the last process has closed its output
    assert (process.returncode, said) == (130, "interrupted\n")


def importing(group: int) -> bool:
    """Whether a process of joblib in this group has begun to import, which takes it a good part of a second."""
    found = subprocess.run(["pgrep", "-g", str(group), "-f", "popen_loky_posix"], capture_output=True, text=True)
    loaded = [Path("/proc", pid, "maps") for pid in found.stdout.split()]
    return any("_ssl" in maps.read_text() or "libcrypto" in maps.read_text() for maps in loaded if maps.exists())
