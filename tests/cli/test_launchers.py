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


@needs("joblib")
def test_a_sweep_that_lost_a_process_lists_what_is_missing(tmp_path):
    script, root = Path(__file__).parent / "killed_jobs.py", Path(openbench.__file__).parent.parent
    places = {"OPENBENCH_CACHE": str(tmp_path), "PYTHONPATH": f"{root}:{script.parent}"}
    killed = subprocess.run(
        # Of a benchmark that is composed quickly, as nothing is computed.
        [sys.executable, script, "-m", "+benchmark.name=x", "seed=0,1", "runtime=joblib", "hydra.launcher.n_jobs=2"],
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert killed.returncode == 1, killed.stderr
    assert "Traceback" not in killed.stderr
    assert "error: the launcher stopped: TerminatedWorkerError" in killed.stderr
    rows = {
        line.split()[1]: line.split(maxsplit=2)[2].strip() for line in killed.stdout.splitlines() if "seed=" in line
    }
    assert rows == {"seed=0": "written", "seed=1": "not ended"}
    assert "; the same command goes on (" in killed.stderr.splitlines()[-1]


@needs("submitit")
def test_logs_of_slurm_jobs_lie_in_a_folder_that_is_there_before_the_jobs_are_submitted(tmp_path):
    from submitit.core.utils import JobPaths

    shipped = OmegaConf.load(paths.config_dir() / "runtime" / "slurm.yaml")
    shipped.hydra.sweep = {"dir": str(tmp_path)}
    folder = shipped.hydra.launcher.submitit_folder
    assert JobPaths.get_first_id_independent_folder(folder) == JobPaths(folder).stdout.parent
