"""Sweeps by Hydra's launchers: one that loses a process, and where the logs of Slurm lie."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import openbench
from openbench import paths


def needs(name: str) -> pytest.MarkDecorator:
    """Skip where the plug-in of a launcher is missing."""
    missing = importlib.util.find_spec(f"hydra_plugins.hydra_{name}_launcher") is None
    return pytest.mark.skipif(missing, reason=f"hydra-{name}-launcher is not installed")


def swept_by(folder: Path, *launcher: str) -> subprocess.CompletedProcess[str]:
    """How a sweep over two seeds ends, of which the second kills its process the first time."""
    script, root = Path(__file__).parent / "killed_jobs.py", Path(openbench.__file__).parent.parent
    places = {"TRIES": str(folder / "tries"), "OPENBENCH_CACHE": str(folder), "PYTHONPATH": f"{root}:{script.parent}"}
    return subprocess.run(
        [sys.executable, script, "-m", "+benchmark=digits", "seed=0,1", *launcher],
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        cwd=folder,
    )


@needs("joblib")
def test_a_sweep_that_lost_a_process_lists_what_is_missing_and_the_same_command_goes_on(tmp_path):
    typed = ("runtime=joblib", "hydra.launcher.n_jobs=2")
    killed = swept_by(tmp_path, *typed)
    assert killed.returncode == 1, killed.stderr
    assert "Traceback" not in killed.stderr
    assert "error: the launcher stopped: TerminatedWorkerError" in killed.stderr
    rows = {
        line.split()[1]: line.split(maxsplit=2)[2].strip() for line in killed.stdout.splitlines() if "seed=" in line
    }
    assert rows.keys() == {f"seed={seed}" for seed in range(2)}
    assert rows["seed=0"] == "written"
    assert rows["seed=1"] == "not ended"
    assert "; the same command goes on (" in killed.stderr.splitlines()[-1]
    again = swept_by(tmp_path, *typed[:1], "hydra.launcher.n_jobs=1")  # in its own process
    assert again.returncode == 0, again.stderr
    assert "sweep: 2 jobs, 2 done, 0 failed (" in again.stderr


@needs("submitit")
def test_logs_of_slurm_jobs_lie_in_a_folder_that_is_there_before_the_jobs_are_submitted(tmp_path):
    from submitit.core.utils import JobPaths

    shipped = OmegaConf.load(paths.config_dir() / "runtime" / "slurm.yaml")
    shipped.hydra.sweep = {"dir": str(tmp_path)}
    folder = shipped.hydra.launcher.submitit_folder
    assert JobPaths.get_first_id_independent_folder(folder) == JobPaths(folder).stdout.parent
